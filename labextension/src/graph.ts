/** Where the lines of the tree run: one column for each branch that passes a row. */
import { ICheckpoint } from './tokens';

export interface ILine {
  from: number;
  to: number;
  /** Whether it belongs to the present branch. */
  present: boolean;
}

export interface IRow {
  record: ICheckpoint;
  column: number;
  /** From the row's upper edge to its middle. */
  above: ILine[];
  /** From its middle to its lower edge. */
  below: ILine[];
  /** On the way from the first checkpoint to the present. */
  present: boolean;
  head: boolean;
  /** The kernel was started anew between the row below and this one. */
  boundary: boolean;
}

/** The ids from `head` to its oldest known ancestor. */
export function pathOf(head: string | null, parents: Map<string, string | null>): Set<string> {
  const path = new Set<string>();
  for (let id = head; id !== null && !path.has(id); id = parents.get(id) ?? null) {
    path.add(id);
  }
  return path;
}

/**
 * Rows for these checkpoints, newest first. What is left out of `records` is passed over: a row's
 * line leads to its nearest ancestor that is shown. The present branch keeps the first column.
 */
export function layOut(
  records: ICheckpoint[],
  parents: Map<string, string | null>,
  head: string | null
): IRow[] {
  const shown = new Set(records.map(record => record.id));
  const shownFrom = (id: string | null): string | null => {
    while (id !== null && !shown.has(id)) {
      id = parents.get(id) ?? null;
    }
    return id;
  };
  const path = pathOf(head, parents);
  // what each column waits for, and whether the line in it is of the present branch
  const columns: ({ id: string; present: boolean } | null)[] = [null];
  const top = shownFrom(head);
  if (top !== null) {
    columns[0] = { id: top, present: true };
  }
  const newestFirst = [...records].sort((a, b) => b.number - a.number);
  const rows = newestFirst.map((record, index): IRow => {
    let column = columns.findIndex(line => line?.id === record.id);
    const above: ILine[] = [];
    if (column < 0) {
      column = columns.indexOf(null, 1);
      if (column < 0) {
        column = columns.length;
      }
    }
    columns.forEach((line, from) => {
      if (line !== null) {
        above.push({ from, to: line.id === record.id ? column : from, present: line.present });
        if (line.id === record.id) {
          columns[from] = null;
        }
      }
    });
    const present = path.has(record.id);
    const parent = shownFrom(parents.get(record.id) ?? null);
    columns[column] = parent === null ? null : { id: parent, present };
    while (columns.length > 1 && columns[columns.length - 1] === null) {
      columns.pop();
    }
    const below = columns.flatMap((line, from) =>
      line === null ? [] : [{ from, to: from, present: line.present }]
    );
    const older = newestFirst[index + 1];
    const boundary = older !== undefined && older.coordinate.epoch !== record.coordinate.epoch;
    return { record, column, above, below, present, head: record.id === head, boundary };
  });
  return rows;
}
