/** What differs between two states: variables, files, packages, environment variables. */
import { TranslationBundle } from '@jupyterlab/translation';
import React, { useState } from 'react';

import { IKeptCell, Snapshot, sourceOf } from './cells';
import { CellView, FileView, ISides, Loaded, VariableView } from './inspect';
import { IChange, IDiff, ISummary } from './tokens';
import { size } from './times';

/** Rows of one table beyond this are counted, not shown. */
export const MOST = 200;

interface ILine {
  id?: string;
  sign: '+' | '−' | '~';
  name: string;
  before: string;
  after: string;
}

export function summaryText(summary: ISummary): string {
  const { type, shape, value } = summary;
  return [type, shape && `(${shape})`, value, summary.size !== null && `· ${size(summary.size)}`]
    .filter(Boolean)
    .join(' ');
}

function variableLines(diff: IDiff): ILine[] {
  const { added, removed, changed } = diff.variables;
  return [
    ...changed.map(({ name, before, after }): ILine => ({
      sign: '~',
      name,
      before: summaryText(before),
      after: summaryText(after)
    })),
    ...added.map((v): ILine => ({ sign: '+', name: v.name, before: '', after: summaryText(v) })),
    ...removed.map((v): ILine => ({ sign: '−', name: v.name, before: summaryText(v), after: '' }))
  ];
}

function fileLines(changes: IChange[]): ILine[] {
  const signs = { created: '+', deleted: '−', changed: '~', metadata: '~' } as const;
  return changes.map(change => ({
    id: absolute(change),
    sign: signs[change.kind],
    name: change.path,
    before: size(change.size_before),
    after: size(change.size_after)
  }));
}

function valueLines(found: { name: string; before: string | null; after: string | null }[]) {
  return found.map(({ name, before, after }): ILine => ({
    sign: before === null ? '+' : after === null ? '−' : '~',
    name,
    before: before ?? '',
    after: after ?? ''
  }));
}

/** What can be chosen in a list of differences. */
export interface IChosen {
  names: Set<string>;
  /** Absolute paths. */
  paths: Set<string>;
}

interface ISectionProps {
  title: string;
  kind: string;
  lines: ILine[];
  /** What is shown when a line is opened, or null where there is nothing more. */
  open: ((line: ILine) => React.ReactNode) | null;
  /** Of the lines that are chosen, by what they are chosen as; null where none can be. */
  chosen: { set: Set<string>; of(line: ILine): string | null } | null;
  trans: TranslationBundle;
}

function Section(props: ISectionProps): JSX.Element | null {
  const { title, kind, lines, chosen, trans } = props;
  if (lines.length === 0) {
    return null;
  }
  return (
    <section className="jp-TimeTravel-section" data-kind={kind}>
      <h3>
        {title} ({lines.length})
      </h3>
      <table>
        <thead>
          <tr>
            {chosen && <th scope="col">{trans.__('bring')}</th>}
            <th scope="col">{trans.__('what')}</th>
            <th scope="col">{trans.__('name')}</th>
            <th scope="col">{trans.__('from')}</th>
            <th scope="col">{trans.__('to')}</th>
          </tr>
        </thead>
        <tbody>
          {lines.slice(0, MOST).map(line => (
            <Line key={line.id ?? line.name} {...props} line={line} />
          ))}
        </tbody>
      </table>
      {lines.length > MOST && <p>{trans.__('and %1 more', lines.length - MOST)}</p>}
    </section>
  );
}

function Line(props: ISectionProps & { line: ILine }): JSX.Element {
  const { line, open, chosen, trans } = props;
  const [isOpen, setOpen] = useState(false);
  const words = { '+': trans.__('added'), '−': trans.__('removed'), '~': trans.__('changed') };
  const choice = chosen?.of(line) ?? null;
  return (
    <>
      <tr data-name={line.name} data-sign={line.sign}>
        {chosen && (
          <td>
            {choice !== null && (
              <input
                type="checkbox"
                aria-label={trans.__('Choose %1', line.name)}
                onChange={event =>
                  event.target.checked ? chosen.set.add(choice) : chosen.set.delete(choice)
                }
              />
            )}
          </td>
        )}
        <td title={words[line.sign]}>
          <span aria-hidden="true">{line.sign}</span>
          <span className="jp-TimeTravel-hidden">{words[line.sign]}</span>
        </td>
        <th scope="row" dir="auto">
          {open ? (
            <button
              className="jp-TimeTravel-open"
              aria-expanded={isOpen}
              title={trans.__('Show it before and after')}
              onClick={() => setOpen(!isOpen)}
            >
              <span aria-hidden="true">{isOpen ? '▾' : '▸'}</span> {line.name}
            </button>
          ) : (
            line.name
          )}
        </th>
        <td dir="auto">{line.before}</td>
        <td dir="auto">{line.after}</td>
      </tr>
      {isOpen && (
        <tr data-inside={line.name}>
          <td colSpan={chosen ? 5 : 4}>{open!(line)}</td>
        </tr>
      )}
    </>
  );
}

interface IDifferencesProps {
  diff: IDiff;
  /** Where to look into what differs; null where that is not at hand. */
  sides: ISides | null;
  /** The cells of the two states, where they are known. */
  cells: (() => Promise<[Snapshot, Snapshot]>) | null;
  chosen: IChosen | null;
  trans: TranslationBundle;
}

export function Differences(props: IDifferencesProps): JSX.Element {
  const { diff, sides, cells, chosen, trans } = props;
  const inspect = sides && { sides, trans };
  const changeOf = new Map(
    [...diff.files, ...diff.environment].map(change => [absolute(change), change])
  );
  const openFile =
    inspect && ((line: ILine) => <FileView {...inspect} change={changeOf.get(line.id!)!} />);
  const openVariable =
    inspect && ((line: ILine) => <VariableView {...inspect} name={line.name} sign={line.sign} />);
  const section = (
    kind: string,
    title: string,
    lines: ILine[],
    open: ISectionProps['open'] = null,
    choose: ISectionProps['chosen'] = null
  ) => <Section {...{ kind, title, lines, open, trans }} chosen={choose} />;
  const isEmpty = !(
    [diff.files, diff.packages, diff.environment, diff.environ].some(list => list.length > 0) ||
    Object.values(diff.variables).some(list => list.length > 0)
  );
  return (
    <div className="jp-TimeTravel-diff">
      {isEmpty && <p>{trans.__('No difference is known.')}</p>}
      {section(
        'variables',
        trans.__('Variables'),
        variableLines(diff),
        openVariable,
        // what was made since cannot be brought from before
        chosen && { set: chosen.names, of: line => (line.sign === '+' ? null : line.name) }
      )}
      {section(
        'files',
        trans.__('Files'),
        fileLines(diff.files),
        openFile,
        chosen && { set: chosen.paths, of: line => line.id! }
      )}
      {section('packages', trans.__('Packages'), valueLines(diff.packages))}
      {section(
        'environment',
        trans.__('Files outside of the workspace'),
        fileLines(diff.environment),
        openFile
      )}
      {section('environ', trans.__('Environment variables'), valueLines(diff.environ))}
      {!diff.environment_complete && (
        <p>{trans.__('Not all files outside of the workspace are listed.')}</p>
      )}
      {cells && inspect && (
        <Loaded load={cells} trans={trans}>
          {([before, after]) => {
            const pairs = pairsOf(before, after);
            return section('cells', trans.__('Cells'), cellLines(pairs, trans), line => {
              const pair = pairs.get(line.id!)!;
              return <CellView {...inspect} before={pair[0]} after={pair[1]} />;
            });
          }}
        </Loaded>
      )}
    </div>
  );
}

function absolute(change: IChange): string {
  return `${change.root.replace(/\/$/, '')}/${change.path}`;
}

type Pair = [IKeptCell | null, IKeptCell | null];

/** The cells that differ, by id, in the order of the second notebook. */
function pairsOf(before: Snapshot, after: Snapshot): Map<string, Pair> {
  const old = new Map(before.map(cell => [cell.json.id as string, cell]));
  const pairs = new Map<string, Pair>();
  for (const cell of after) {
    const id = cell.json.id as string;
    const was = old.get(id) ?? null;
    old.delete(id);
    if (was === null || (was !== cell && !isAlike(was, cell))) {
      pairs.set(id, [was, cell]);
    }
  }
  old.forEach((cell, id) => pairs.set(id, [cell, null]));
  return pairs;
}

function isAlike(a: IKeptCell, b: IKeptCell): boolean {
  const outputs = (cell: IKeptCell) => JSON.stringify(cell.json.outputs ?? []);
  return sourceOf(a.json) === sourceOf(b.json) && outputs(a) === outputs(b);
}

function cellLines(pairs: Map<string, Pair>, trans: TranslationBundle): ILine[] {
  const told = (cell: IKeptCell | null) =>
    cell === null ? '' : trans._n('%1 output', '%1 outputs', outputsOf(cell));
  return [...pairs].map(([id, [before, after]]) => ({
    id,
    sign: before === null ? '+' : after === null ? '−' : '~',
    name: sourceOf((after ?? before)!.json).split('\n')[0] || trans.__('(empty)'),
    before: told(before),
    after: told(after)
  }));
}

function outputsOf(cell: IKeptCell): number {
  return ((cell.json.outputs ?? []) as unknown[]).length;
}
