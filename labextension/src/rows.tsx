/** The list of checkpoints: only the rows in view are in the page. */
import { TranslationBundle } from '@jupyterlab/translation';
import React, { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'react';

import { ChangesReader } from './changes';
import { IRow } from './graph';
import { Groups, IMoment, membersOf } from './groups';
import { captureOf, holds, ICapture, IChanges, ICheckpoint, ICounted, IMAGE } from './tokens';
import { age, moment, size } from './times';

export const ROW_PX = 62;
const LANE_PX = 12;
const MOST_LANES = 6;
const SPARE_ROWS = 6;

interface IRowsProps {
  rows: IRow[];
  selected: string | null;
  trans: TranslationBundle;
  disabled: boolean;
  select(record: ICheckpoint | null): void;
  restore(record: ICheckpoint): void;
  remove(record: ICheckpoint): void;
  menu(record: ICheckpoint, x: number, y: number): void;
  changes: ChangesReader;
  groups: Groups;
  want(records: ICheckpoint[]): void;
}

export function Rows(props: IRowsProps): JSX.Element {
  const { rows, selected, select, trans } = props;
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [now, setNow] = useState(Date.now());
  const index = rows.findIndex(row => row.record.id === selected);

  useLayoutEffect(() => {
    const node = box.current!;
    const measure = () => setView({ top: node.scrollTop, height: node.clientHeight || 600 });
    const observer = new ResizeObserver(measure);
    observer.observe(node);
    measure();
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 30_000); // ages only: nothing is asked
    return () => clearInterval(timer);
  }, []);

  useLayoutEffect(() => {
    // also when what is below the list has taken some of its height
    const node = box.current!;
    const at = index * ROW_PX;
    if (index >= 0 && at < node.scrollTop) {
      node.scrollTop = at;
    } else if (index >= 0 && at + ROW_PX > node.scrollTop + node.clientHeight) {
      node.scrollTop = at + ROW_PX - node.clientHeight;
    }
  }, [selected, view.height]);

  const go = (to: number) => {
    const row = rows[Math.max(0, Math.min(rows.length - 1, to))];
    if (row !== undefined) {
      select(row.record);
    }
  };
  const page = Math.max(1, Math.floor(view.height / ROW_PX) - 1);
  const keys: Record<string, () => void> = {
    ArrowDown: () => go(index + 1),
    ArrowUp: () => go(index < 0 ? 0 : index - 1),
    PageDown: () => go(index + page),
    PageUp: () => go(index - page),
    Home: () => go(0),
    End: () => go(rows.length - 1),
    Escape: () => select(null),
    Enter: () => index >= 0 && props.restore(rows[index].record),
    Delete: () => index >= 0 && props.remove(rows[index].record)
  };
  const onKey = (event: React.KeyboardEvent) => {
    if (event.target === box.current && keys[event.key] && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      event.stopPropagation();
      keys[event.key]();
    }
  };

  const first = Math.max(0, Math.floor(view.top / ROW_PX) - SPARE_ROWS);
  const last = Math.min(rows.length, Math.ceil((view.top + view.height) / ROW_PX) + SPARE_ROWS);
  useEffect(() => {
    props.want(rows.slice(first, last).map(row => row.record));
  });
  const lanes = useMemo(() => Math.min(MOST_LANES, Math.max(1, ...rows.map(widthOf))), [rows]);
  return (
    <div
      ref={box}
      className="jp-TimeTravel-rows"
      role="tree"
      aria-label={trans.__('Checkpoints, newest first')}
      aria-activedescendant={index >= 0 ? idOf(rows[index].record) : undefined}
      tabIndex={0}
      data-count={rows.length}
      onKeyDown={onKey}
      onScroll={event =>
        setView({
          top: event.currentTarget.scrollTop,
          height: event.currentTarget.clientHeight
        })
      }
    >
      <div role="presentation" style={{ height: rows.length * ROW_PX, position: 'relative' }}>
        {rows.slice(first, last).map((row, offset) => (
          <Row
            key={row.record.id}
            {...props}
            row={row}
            at={first + offset}
            lanes={lanes}
            now={now}
          />
        ))}
      </div>
    </div>
  );
}

function widthOf(row: IRow): number {
  return 1 + Math.max(row.column, ...row.above.map(l => l.from), ...row.below.map(l => l.from));
}

function idOf(record: ICheckpoint): string {
  return `jp-timetravel-row-${record.id}`;
}

function Row(
  props: IRowsProps & { row: IRow; at: number; lanes: number; now: number }
): JSX.Element {
  const { row, at, trans, now } = props;
  const { record } = row;
  const ofGroup = props.groups.of(record);
  const can = holds(record);
  const isSelected = props.selected === record.id;
  const why = can.memory
    ? trans.__('Go back to #%1', record.number)
    : can.files
      ? trans.__('Bring back the files of #%1: its memory is gone', record.number)
      : trans.__('#%1 holds neither memory nor files any more', record.number);
  const missing = record.captures.flatMap(capture =>
    capture.kind === 'namespace' ? [] : capture.not_captured
  );
  const name = record.label ?? record.comment;
  const classes = ['jp-TimeTravel-row'];
  classes.push(row.present ? 'jp-mod-present' : 'jp-mod-aside');
  if (row.head) classes.push('jp-mod-head');
  if (isSelected) classes.push('jp-mod-selected');
  if (row.boundary) classes.push('jp-mod-boundary');
  return (
    <div
      id={idOf(record)}
      className={classes.join(' ')}
      style={{ top: at * ROW_PX, height: ROW_PX }}
      role="treeitem"
      aria-level={1}
      aria-posinset={at + 1}
      aria-setsize={props.rows.length}
      aria-selected={isSelected}
      aria-current={row.head || undefined}
      data-number={record.number}
      data-present={row.present}
      data-head={row.head}
      title={[`#${record.number} · ${moment(record)}`, record.label, record.comment, record.code]
        .filter(Boolean)
        .join('\n')}
      onClick={() => props.select(isSelected ? null : record)}
      onContextMenu={event => {
        event.preventDefault();
        event.stopPropagation();
        props.select(record);
        props.menu(record, event.clientX, event.clientY);
      }}
    >
      <Lines row={row} lanes={props.lanes} />
      <div className="jp-TimeTravel-text">
        <div className="jp-TimeTravel-first">
          <span className="jp-TimeTravel-number">#{record.number}</span>
          {name && (
            <span
              className={`jp-TimeTravel-name ${record.label ? 'jp-mod-label' : ''}`}
              data-alone={!record.code}
              dir="auto"
            >
              {name}
            </span>
          )}
          {(record.code || !name) && (
            <span className="jp-TimeTravel-title" dir="auto">
              {record.code || reasonOf(record, trans)}
            </span>
          )}
          {row.head && <span className="jp-TimeTravel-now">{trans.__('present')}</span>}
        </div>
        <div className="jp-TimeTravel-second jp-TimeTravel-facts">
          <span>{age(record, now)}</span>
          <span>{reasonOf(record, trans)}</span>
          <Size record={record} trans={trans} />
          <Changed changes={props.changes.get(record)} trans={trans} />
        </div>
        <div className="jp-TimeTravel-second">
          {ofGroup && <GroupBadge moment={ofGroup} trans={trans} />}
          {record.pinned && <Badge name="pinned" text={trans.__('pinned')} />}
          <Badges record={record} trans={trans} />
          {missing.length > 0 && (
            <Badge
              name="missing"
              text={trans.__('%1 not held', missing.length)}
              hint={missing.map(n => `${n.kind} ${n.subject}: ${n.detail}`).join('\n')}
            />
          )}
          {(record.effects ?? 0) > 0 && (
            <Badge
              name="effects"
              text={trans._n('%1 effect', '%1 effects', record.effects!)}
              hint={trans.__('What its cells did outside, which no restore takes back.')}
            />
          )}
          {row.boundary && <Badge name="boundary" text={trans.__('new kernel')} />}
        </div>
      </div>
      <button
        className="jp-TimeTravel-restore jp-mod-styled jp-mod-minimal"
        tabIndex={isSelected ? 0 : -1}
        title={why}
        aria-label={why}
        disabled={props.disabled || !(can.memory || can.files)}
        onClick={event => {
          event.stopPropagation();
          props.restore(record);
        }}
      >
        ⟲
      </button>
    </div>
  );
}

/** How much it holds, with what that is made of to point at. */
function Size(props: { record: ICheckpoint; trans: TranslationBundle }): JSX.Element | null {
  const held = props.record.captures.filter(one => one.state === 'ready' && one.bytes > 0);
  if (held.length === 0) {
    return null; // not known yet, or nothing
  }
  const kinds = kindsOf(props.trans);
  const lines = held.map(one => `${kinds[one.engine] ?? kinds[one.kind]}: ${size(one.bytes)}`);
  return (
    <span className="jp-TimeTravel-size" title={lines.join('\n')}>
      {size(held.reduce((sum, one) => sum + one.bytes, 0))}
    </span>
  );
}

/** What captures are of, by engine or kind. */
export function kindsOf(trans: TranslationBundle): Record<string, string> {
  return {
    fork: trans.__('Memory, at hand'),
    process: trans.__('Memory, on the disk'),
    overlay: trans.__('Packages, and files elsewhere'),
    filesystem: trans.__("Files of the notebook's folder"),
    namespace: trans.__('Variables, on the disk'),
    document: trans.__('Cells of the notebook')
  };
}

/** How much a checkpoint changed, with the names to point at. */
function Changed(props: {
  changes: IChanges | null;
  trans: TranslationBundle;
}): JSX.Element | null {
  const { changes, trans } = props;
  if (changes === null) {
    return null;
  }
  const { variables, files, packages } = changes;
  const parts: [string, ICounted | null][] = [
    [trans._n('%1 variable', '%1 variables', variables.count), variables],
    [trans._n('%1 file', '%1 files', files?.count ?? 0), files],
    [trans._n('%1 package', '%1 packages', packages?.count ?? 0), packages]
  ];
  const told = parts.filter(([, counted]) => (counted?.count ?? 0) > 0);
  return (
    <span className="jp-TimeTravel-changed" data-known="true">
      {told.length === 0 && <span>{trans.__('no change')}</span>}
      {told.map(([text, counted]) => (
        <span key={text} title={namesOf(counted!, trans)}>
          {text}
        </span>
      ))}
    </span>
  );
}

function namesOf(counted: ICounted, trans: TranslationBundle): string {
  const lines = counted.names.map(([sign, name]) => `${sign === '-' ? '−' : sign} ${name}`);
  const more = counted.count - lines.length;
  return [...lines, ...(more > 0 ? [trans.__('and %1 more', more)] : [])].join('\n');
}

function reasonOf(record: ICheckpoint, trans: TranslationBundle): string {
  switch (record.reason) {
    case 'cell':
      return trans.__('auto');
    case 'safety':
      return trans.__('before a restore');
    case 'part':
      return trans.__('after a restore of a part');
    case 'restart':
      return trans.__('before a restart');
    case 'start':
      return trans.__('start');
    default:
      return trans.__('by hand');
  }
}

export function Badge(props: { name: string; text: string; hint?: string }): JSX.Element {
  return (
    <span className={`jp-TimeTravel-badge jp-mod-${props.name}`} title={props.hint}>
      {props.text}
    </span>
  );
}

/** The group that a checkpoint belongs to, and who else is in it. */
function GroupBadge(props: { moment: IMoment; trans: TranslationBundle }): JSX.Element {
  const { moment, trans } = props;
  const hint = trans.__('Group %1, %2: %3', moment.group, moment.record.title, membersOf(moment));
  return <Badge name="group" text={moment.group} hint={hint} />;
}

/** How fast and for how long a checkpoint can be gone back to. */
export function Badges(props: { record: ICheckpoint; trans: TranslationBundle }): JSX.Element {
  const { record, trans } = props;
  const memory = record.captures.filter(c => c.kind === 'process' && c.state === 'ready');
  const namespace = captureOf(record, 'namespace');
  return (
    <>
      {memory.some(capture => capture.engine !== IMAGE) && (
        <Badge
          name="instant"
          text={trans.__('instant')}
          hint={trans.__('The frozen process is there: all of the memory comes back at once.')}
        />
      )}
      {memory.some(capture => capture.engine === IMAGE) && (
        <Badge
          name="exact"
          text={trans.__('exact')}
          hint={trans.__('An image of the whole process is on the disk.')}
        />
      )}
      {namespace !== undefined && <OnDisk capture={namespace} trans={trans} />}
      {namespace?.verified_at && (
        <Badge
          name="verified"
          text={trans.__('verified')}
          hint={trans.__('Loaded for real and compared: %1', namespace.verified_at)}
        />
      )}
    </>
  );
}

function OnDisk(props: { capture: ICapture; trans: TranslationBundle }): JSX.Element {
  const { capture, trans } = props;
  const lost = capture.not_captured.map(note => `${note.subject}: ${note.detail}`);
  switch (capture.state) {
    case 'pending':
      return <Badge name="pending" text={trans.__('being written')} />;
    case 'failed':
    case 'evicted':
      return (
        <Badge name="failed" text={trans.__('not on disk')} hint={capture.error ?? undefined} />
      );
    default:
      return lost.length > 0 ? (
        <Badge
          name="partial"
          text={trans.__('on disk, but %1', lost.length)}
          hint={`${trans.__('These variables could not be kept:')}\n${lost.join('\n')}`}
        />
      ) : (
        <Badge
          name="durable"
          text={trans.__('on disk')}
          hint={trans.__('The variables outlive the kernel: %1', size(capture.bytes))}
        />
      );
  }
}

function Lines(props: { row: IRow; lanes: number }): JSX.Element {
  const { row, lanes } = props;
  const x = (lane: number) => LANE_PX * (Math.min(lane, MOST_LANES - 1) + 0.5);
  const middle = ROW_PX / 2;
  return (
    <svg className="jp-TimeTravel-lines" width={lanes * LANE_PX} height={ROW_PX} aria-hidden="true">
      {row.above.map(line => (
        <path
          key={`a${line.from}`}
          className={line.present ? 'jp-mod-present' : ''}
          d={`M${x(line.from)} 0 C${x(line.from)} ${middle} ${x(line.to)} 0 ${x(line.to)} ${middle}`}
        />
      ))}
      {row.below.map(line => (
        <path
          key={`b${line.from}`}
          className={line.present ? 'jp-mod-present' : ''}
          d={`M${x(line.from)} ${middle} V${ROW_PX}`}
        />
      ))}
      <circle
        cx={x(row.column)}
        cy={middle}
        r={row.head ? 5 : 3.5}
        className={row.present ? 'jp-mod-present' : ''}
      />
    </svg>
  );
}
