/** What differs between two states: variables, files, packages, environment variables. */
import { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import React from 'react';

import { IChange, IDiff, IEffect, IReplayed, IRestored, ISummary } from './tokens';
import { size } from './times';

/** Rows of one table beyond this are counted, not shown. */
const MOST = 200;

interface ILine {
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

function Section(props: {
  title: string;
  lines: ILine[];
  trans: TranslationBundle;
}): JSX.Element | null {
  const { title, lines, trans } = props;
  if (lines.length === 0) {
    return null;
  }
  const words = { '+': trans.__('added'), '−': trans.__('removed'), '~': trans.__('changed') };
  return (
    <section className="jp-TimeTravel-section">
      <h3>
        {title} ({lines.length})
      </h3>
      <table>
        <thead>
          <tr>
            <th scope="col">{trans.__('what')}</th>
            <th scope="col">{trans.__('name')}</th>
            <th scope="col">{trans.__('from')}</th>
            <th scope="col">{trans.__('to')}</th>
          </tr>
        </thead>
        <tbody>
          {lines.slice(0, MOST).map(line => (
            <tr key={line.name} data-name={line.name} data-sign={line.sign}>
              <td title={words[line.sign]} aria-label={words[line.sign]}>
                {line.sign}
              </td>
              <th scope="row" dir="auto">
                {line.name}
              </th>
              <td dir="auto">{line.before}</td>
              <td dir="auto">{line.after}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {lines.length > MOST && <p>{trans.__('and %1 more', lines.length - MOST)}</p>}
    </section>
  );
}

export function Differences(props: { diff: IDiff; trans: TranslationBundle }): JSX.Element {
  const { diff, trans } = props;
  const sections: [string, ILine[]][] = [
    [trans.__('Variables'), variableLines(diff)],
    [trans.__('Files'), fileLines(diff.files)],
    [trans.__('Packages'), valueLines(diff.packages)],
    [trans.__('Files outside of the workspace'), fileLines(diff.environment)],
    [trans.__('Environment variables'), valueLines(diff.environ)]
  ];
  const isEmpty = sections.every(([, lines]) => lines.length === 0);
  return (
    <div className="jp-TimeTravel-diff">
      {isEmpty && <p>{trans.__('No difference is known.')}</p>}
      {sections.map(([title, lines]) => (
        <Section key={title} title={title} lines={lines} trans={trans} />
      ))}
      {!diff.environment_complete && (
        <p>{trans.__('Not all files outside of the workspace are listed.')}</p>
      )}
    </div>
  );
}

/** What no restore takes back. */
function Effects(props: { effects: IEffect[]; trans: TranslationBundle }): JSX.Element | null {
  const { effects, trans } = props;
  if (effects.length === 0) {
    return null;
  }
  return (
    <section className="jp-TimeTravel-section" data-effects={effects.length}>
      <h3>
        {trans.__('No restore takes this back')} ({effects.length})
      </h3>
      <ul>
        {effects.slice(0, MOST).map((effect, at) => (
          <li key={at} dir="auto">
            {effect.cell}: {effect.text}
          </li>
        ))}
      </ul>
    </section>
  );
}

/** The body of the dialog before a replay. */
export class ReplayBody extends ReactWidget {
  constructor(
    private _plan: IReplayed,
    private _trans: TranslationBundle
  ) {
    super();
    this.addClass('jp-TimeTravel-dialog');
  }

  protected render(): JSX.Element {
    const trans = this._trans;
    return (
      <div>
        <p>{trans.__('The session goes back, and these cells run again, in this order:')}</p>
        <ol>
          {this._plan.not_run.map(cell => (
            <li key={cell.cell}>
              {cell.cell} <code>{cell.code}</code>
            </li>
          ))}
        </ol>
        <Effects effects={this._plan.effects} trans={trans} />
      </div>
    );
  }
}

/** The body of a dialog that compares. */
export class DiffBody extends ReactWidget {
  constructor(
    private _diff: IDiff,
    private _trans: TranslationBundle
  ) {
    super();
    this.addClass('jp-TimeTravel-dialog');
  }

  protected render(): JSX.Element {
    return <Differences diff={this._diff} trans={this._trans} />;
  }
}

export interface IChoice {
  /** Run the registered undos of effects first. */
  compensate: boolean;
  /** Put the notebook's cells back, too. */
  notebook: boolean;
  /** Go on showing this preview. */
  preview: boolean;
}

/** The body of the dialog before a restore. */
export class PreviewBody extends ReactWidget {
  constructor(
    private _plan: IRestored,
    /** null where the cells of that time are not known. */
    private _notebook: boolean | null,
    private _trans: TranslationBundle
  ) {
    super();
    this.addClass('jp-TimeTravel-dialog');
    this._choice = { compensate: false, notebook: _notebook === true, preview: true };
  }

  getValue(): IChoice {
    return this._choice;
  }

  protected render(): JSX.Element {
    const trans = this._trans;
    const plan = this._plan;
    const box = (name: keyof IChoice, text: string, isOn: (checked: boolean) => boolean) => (
      <label className="jp-TimeTravel-choice">
        <input
          type="checkbox"
          name={name}
          defaultChecked={isOn(this._choice[name])}
          onChange={event => (this._choice[name] = isOn(event.target.checked))}
        />
        {text}
      </label>
    );
    return (
      <div>
        <p>{trans.__('Everything stays undoable: the present is kept as a checkpoint first.')}</p>
        {plan.warnings.map(text => (
          <p key={text} className="jp-TimeTravel-warning">
            {text}
          </p>
        ))}
        <Differences diff={plan} trans={trans} />
        {plan.environment_paths !== undefined && (
          <p>{trans.__('%1 paths outside of the workspace differ.', plan.environment_paths)}</p>
        )}
        <Effects effects={plan.effects ?? []} trans={trans} />
        {(plan.compensations?.length ?? 0) > 0 &&
          box(
            'compensate',
            trans.__(
              'First run what the cells registered to undo that: %1',
              plan.compensations!.map(item => item.text).join(', ')
            ),
            on => on
          )}
        {this._notebook !== null &&
          box('notebook', trans.__("Put the notebook's cells and outputs back, too"), on => on)}
        {box('preview', trans.__('Do not show this again'), on => !on)}
      </div>
    );
  }

  private _choice: IChoice;
}
