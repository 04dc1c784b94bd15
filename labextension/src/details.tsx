/** One checkpoint in full: what it holds, what it does not, its variables. */
import { TranslationBundle } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import React, { useEffect, useState } from 'react';

import { Badges, kindsOf } from './badges';
import { summaryText } from './diff';
import { IMoment, membersOf } from './groups';
import { Timeline } from './model';
import { CommandIDs, ICheckpoint, ISummary } from './tokens';
import { moment, size } from './times';

interface IDetailsProps {
  timeline: Timeline;
  record: ICheckpoint;
  /** What it belongs to. */
  moment: IMoment | null;
  commands: CommandRegistry;
  trans: TranslationBundle;
  close(): void;
}

const BUTTONS = [
  CommandIDs.restore,
  CommandIDs.restoreMemory,
  CommandIDs.restoreFiles,
  CommandIDs.asItWas,
  CommandIDs.comparePresent,
  CommandIDs.changed,
  CommandIDs.exportCells,
  CommandIDs.exportCheckpoint
];
/** The important one, and those whose names are long. */
const WIDE: string[] = [
  CommandIDs.restore,
  CommandIDs.asItWas,
  CommandIDs.comparePresent,
  CommandIDs.exportCheckpoint
];

export function Details(props: IDetailsProps): JSX.Element {
  const { timeline, record, commands, trans, moment: ofGroup } = props;
  const [variables, setVariables] = useState<Record<string, ISummary> | string | null>(null);
  const [chosen, setChosen] = useState<Set<string>>(new Set());
  useEffect(() => {
    let isLate = false;
    setVariables(null);
    setChosen(new Set());
    timeline.about(record).then(
      found => isLate || setVariables(found.variables),
      error => isLate || setVariables((error as Error).message)
    );
    return () => {
      isLate = true;
    };
  }, [timeline, record.id]);

  const kinds = kindsOf(trans);
  const states = {
    pending: trans.__('being written'),
    ready: trans.__('held'),
    failed: trans.__('not held'),
    evicted: trans.__('no longer held')
  };
  const run = (id: string) => void commands.execute(id, { checkpoint: record.id });
  return (
    <section
      className="jp-TimeTravel-details"
      aria-label={trans.__('Checkpoint #%1', record.number)}
      data-number={record.number}
    >
      <header>
        <h2>
          #{record.number} {record.label}
        </h2>
        <button
          className="jp-mod-styled jp-mod-minimal"
          onClick={props.close}
          title={trans.__('Close')}
          aria-label={trans.__('Close')}
        >
          ✕
        </button>
      </header>
      <p>
        {moment(record)} <Badges record={record} trans={trans} />
      </p>
      {record.comment && <p dir="auto">{record.comment}</p>}
      {ofGroup && (
        <p className="jp-TimeTravel-group" dir="auto">
          {trans.__('Group %1, %2: %3', ofGroup.group, ofGroup.record.title, membersOf(ofGroup))}{' '}
          <button
            className="jp-mod-styled"
            data-command={CommandIDs.restoreGroup}
            disabled={!commands.isEnabled(CommandIDs.restoreGroup, { checkpoint: record.id })}
            onClick={() => run(CommandIDs.restoreGroup)}
          >
            {trans.__('Take the whole group back')}
          </button>
        </p>
      )}
      {record.code && (
        <pre dir="ltr" tabIndex={0}>
          {record.code}
        </pre>
      )}
      <div className="jp-TimeTravel-buttons">
        {BUTTONS.filter(id => commands.isVisible(id, { checkpoint: record.id })).map(id => (
          <button
            key={id}
            className={`jp-mod-styled ${id === CommandIDs.restore ? 'jp-mod-accept' : ''}`}
            data-command={id}
            data-wide={WIDE.includes(id)}
            disabled={!commands.isEnabled(id, { checkpoint: record.id })}
            onClick={() => run(id)}
          >
            {commands.label(id, { checkpoint: record.id })}
          </button>
        ))}
      </div>
      {commands.isEnabled(CommandIDs.insertAgain, { checkpoint: record.id }) && (
        <p className="jp-TimeTravel-missing">
          {trans.__('Its cell is not in the notebook.')}{' '}
          <button
            className="jp-mod-styled"
            data-command={CommandIDs.insertAgain}
            onClick={() => run(CommandIDs.insertAgain)}
          >
            {trans.__('Insert it')}
          </button>
        </p>
      )}
      <ul>
        {record.captures.map(capture => (
          <li key={capture.kind + capture.engine}>
            <span title={capture.engine}>{kinds[capture.engine] ?? kinds[capture.kind]}</span>:{' '}
            {states[capture.state]}
            {capture.bytes > 0 && ` · ${size(capture.bytes)}`}
            {capture.error && ` · ${capture.error}`}
            {capture.not_captured.length > 0 && (
              <ul>
                {capture.not_captured.map((note, at) => (
                  <li key={at} className="jp-TimeTravel-warning">
                    {note.kind} {note.subject}: {note.detail}
                  </li>
                ))}
              </ul>
            )}
          </li>
        ))}
      </ul>
      {variables === null && <p role="status">{trans.__('Reading…')}</p>}
      {typeof variables === 'string' && <p className="jp-TimeTravel-warning">{variables}</p>}
      {variables !== null && typeof variables === 'object' && (
        <>
          <table data-loaded="true">
            <thead>
              <tr>
                <th scope="col">{trans.__('bring')}</th>
                <th scope="col">{trans.__('name')}</th>
                <th scope="col">{trans.__('value')}</th>
              </tr>
            </thead>
            <tbody>
              {Object.entries(variables).map(([name, summary]) => (
                <tr key={name} data-name={name}>
                  <td>
                    <input
                      type="checkbox"
                      aria-label={trans.__('Choose %1', name)}
                      checked={chosen.has(name)}
                      onChange={event => {
                        const next = new Set(chosen);
                        event.target.checked ? next.add(name) : next.delete(name);
                        setChosen(next);
                      }}
                    />
                  </td>
                  <th scope="row" dir="ltr">
                    {name}
                  </th>
                  <td dir="auto">{summaryText(summary)}</td>
                </tr>
              ))}
            </tbody>
          </table>
          <button
            className="jp-mod-styled"
            data-command={CommandIDs.bring}
            disabled={chosen.size === 0}
            onClick={() =>
              void commands.execute(CommandIDs.bring, {
                checkpoint: record.id,
                names: [...chosen]
              })
            }
          >
            {trans.__('Bring into the present')}
          </button>
        </>
      )}
    </section>
  );
}
