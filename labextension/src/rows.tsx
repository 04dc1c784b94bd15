/** The list of checkpoints: only the rows in view are in the page. */
import { TranslationBundle } from '@jupyterlab/translation';
import React, { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'react';

import { Badge, Badges, Changed, GroupBadge, reasonOf, Size } from './badges';
import { ChangesReader } from './changes';
import { IRow } from './graph';
import { Groups, IMoment } from './groups';
import { holds, IChanges, ICheckpoint } from './tokens';
import { age, moment } from './times';

export const ROW_PX = 62;
const LANE_PX = 12;
const SIDE_PX = 4;
const MOST_LANES = 6;
const SPARE_ROWS = 3;

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
        <Lines rows={rows.slice(first, last)} first={first} lanes={lanes} />
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
  const { row, at, trans } = props;
  const { record } = row;
  const can = holds(record);
  const isSelected = props.selected === record.id;
  const why = can.memory
    ? trans.__('Go back to #%1', record.number)
    : can.files
      ? trans.__('Bring back the files of #%1: its memory is gone', record.number)
      : trans.__('#%1 holds neither memory nor files any more', record.number);
  const classes = ['jp-TimeTravel-row'];
  classes.push(row.present ? 'jp-mod-present' : 'jp-mod-aside');
  if (row.head) classes.push('jp-mod-head');
  if (isSelected) classes.push('jp-mod-selected');
  if (row.boundary) classes.push('jp-mod-boundary');
  return (
    <div
      id={idOf(record)}
      className={classes.join(' ')}
      style={{
        top: at * ROW_PX,
        height: ROW_PX,
        paddingInlineStart: SIDE_PX + props.lanes * LANE_PX + SIDE_PX
      }}
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
      <Text
        record={record}
        head={row.head}
        boundary={row.boundary}
        age={age(record, props.now)}
        changes={props.changes.get(record)}
        moment={props.groups.of(record)}
        trans={trans}
      />
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

/** What a row says. It is kept while that stays: most rows are as they were after a cell. */
const Text = React.memo(function Text(props: {
  record: ICheckpoint;
  head: boolean;
  boundary: boolean;
  age: string;
  changes: IChanges | null;
  moment: IMoment | null;
  trans: TranslationBundle;
}): JSX.Element {
  const { record, trans } = props;
  const missing = record.captures.flatMap(capture =>
    capture.kind === 'namespace' ? [] : capture.not_captured
  );
  const name = record.label ?? record.comment;
  return (
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
        {props.head && <span className="jp-TimeTravel-now">{trans.__('present')}</span>}
      </div>
      <div className="jp-TimeTravel-second jp-TimeTravel-facts">
        <span>
          <bdi>{props.age}</bdi>
        </span>
        <span>
          <bdi>{reasonOf(record, trans)}</bdi>
        </span>
        <Size record={record} trans={trans} />
        <Changed changes={props.changes} trans={trans} />
      </div>
      <div className="jp-TimeTravel-second">
        {props.moment && <GroupBadge moment={props.moment} trans={trans} />}
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
        {props.boundary && <Badge name="boundary" text={trans.__('new kernel')} />}
      </div>
    </div>
  );
});

/** The tree. One picture for all rows in view: each picture is laid out and painted by itself. */
function Lines(props: { rows: IRow[]; first: number; lanes: number }): JSX.Element {
  const { rows, first, lanes } = props;
  const x = (lane: number) => LANE_PX * (Math.min(lane, MOST_LANES - 1) + 0.5);
  return (
    <svg
      className="jp-TimeTravel-lines"
      style={{ top: first * ROW_PX, insetInlineStart: SIDE_PX }}
      width={lanes * LANE_PX}
      height={rows.length * ROW_PX}
      aria-hidden="true"
    >
      {rows.map((row, at) => {
        const top = at * ROW_PX;
        const middle = top + ROW_PX / 2;
        return (
          <React.Fragment key={row.record.id}>
            {row.above.map(line => (
              <path
                key={`a${line.from}`}
                className={line.present ? 'jp-mod-present' : ''}
                d={`M${x(line.from)} ${top} C${x(line.from)} ${middle} ${x(line.to)} ${top} ${x(line.to)} ${middle}`}
              />
            ))}
            {row.below.map(line => (
              <path
                key={`b${line.from}`}
                className={line.present ? 'jp-mod-present' : ''}
                d={`M${x(line.from)} ${middle} V${top + ROW_PX}`}
              />
            ))}
            <circle
              cx={x(row.column)}
              cy={middle}
              r={row.head ? 5 : 3.5}
              className={row.present ? 'jp-mod-present' : ''}
            />
          </React.Fragment>
        );
      })}
    </svg>
  );
}
