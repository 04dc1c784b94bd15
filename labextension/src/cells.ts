/** Cells of a notebook as values: reading them, and making a notebook equal them as one edit. */
import { ICellModel, isCodeCellModel } from '@jupyterlab/cells';
import type * as nbformat from '@jupyterlab/nbformat';
import { INotebookModel } from '@jupyterlab/notebook';
import { JSONExt } from '@lumino/coreutils';

/** A cell as it was. Cells that did not change between two snapshots are one and the same object. */
export interface IKeptCell {
  json: nbformat.ICell;
  trusted: boolean;
  /** Characters of its JSON. */
  weight: number;
  /** Its outputs were too large to be kept. */
  isBare?: boolean;
}

export type Snapshot = IKeptCell[];

/** Reads notebooks; a cell that is as it was when it was read last is not read again. */
export class CellReader {
  take(model: INotebookModel | null): Snapshot {
    return Array.from(model?.cells ?? [], cell => {
      const state = stateOf(cell);
      const last = this._kept.get(cell);
      if (last !== undefined && last.state === state) {
        return last.kept;
      }
      const kept = keep(cell);
      this._kept.set(cell, { state, kept });
      return kept;
    });
  }

  private _kept = new WeakMap<ICellModel, { state: string; kept: IKeptCell }>();
}

/** Make the document equal a snapshot; other cells end up below, or go if they are `excess`. */
export function apply(model: INotebookModel, snapshot: Snapshot, excess: Set<string>): void {
  const shared = model.sharedModel;
  const wanted = new Map(snapshot.map(cell => [cell.json.id as string, cell]));
  // the shared notebook lists its cells anew only after the transaction: what it will be is here
  const order = Array.from(model.cells, cell => cell.id);
  const now = new Map(Array.from(model.cells, cell => [cell.id, keep(cell)]));
  const owners = new Map(shared.cells.map(cell => [cell.id, cell]));
  const since = order.filter(id => !wanted.has(id) && !excess.has(id));
  const isOfType = (id: string) => wanted.get(id)?.json.cell_type === now.get(id)!.json.cell_type;
  // a cell that is of another type now is made anew
  const gone = order.filter(id => !since.includes(id) && !isOfType(id));
  const trusted = new Set<string>();
  const insert = (at: number, cell: IKeptCell) => {
    shared.insertCell(at, cell.json as any);
    order.splice(at, 0, cell.json.id as string);
    if (cell.trusted) {
      trusted.add(cell.json.id as string);
    }
  };
  const remove = (at: number) => {
    shared.deleteCell(at);
    order.splice(at, 1);
  };
  for (const cell of model.cells) {
    // outputs that are not trusted must not come into a cell that is
    if (wanted.get(cell.id)?.trusted === false) {
      cell.trusted = false;
    }
  }
  separateUndo(shared);
  const outputs: (() => void)[] = [];
  shared.transact(() => {
    gone.forEach(id => remove(order.indexOf(id)));
    const kept = order.filter(id => wanted.has(id));
    for (const id of kept) {
      outputs.push(...update(owners.get(id), now.get(id)!.json, wanted.get(id)!));
    }
    // cells made since that are below already stay as they are: one may be in use
    const isBelow = order.slice(kept.length).every(id => since.includes(id));
    if (!isBelow) {
      since.forEach(id => remove(order.indexOf(id)));
    }
    snapshot.forEach((cell, at) => {
      const id = cell.json.id as string;
      if (order[at] !== id) {
        const from = order.indexOf(id, at);
        if (from >= 0) {
          remove(from);
        }
        insert(at, cell);
      }
    });
    if (!isBelow) {
      since.forEach(id => insert(order.length, now.get(id)!));
    }
  });
  // the same step of undo, but another transaction: where printed text is replaced by other text in
  // one, JupyterLab takes the new text for more of the old
  shared.transact(() => outputs.forEach(set => set()));
  separateUndo(shared);
  for (const cell of model.cells) {
    if (trusted.has(cell.id)) {
      cell.trusted = true;
    }
  }
}

/**
 * Change only what differs; returns what is left to do when that is done. The shared cell is typed
 * for what all kinds of cells have.
 */
function update(
  shared: any,
  now: nbformat.ICell,
  { json: then, isBare }: IKeptCell
): (() => void)[] {
  if (sourceOf(now) !== sourceOf(then)) {
    shared.setSource(sourceOf(then));
  }
  if (isBare && now.execution_count === then.execution_count) {
    return []; // the outputs that are there are of the same run, as far as one can tell
  }
  if (then.cell_type !== 'code') {
    return [];
  }
  if (now.execution_count !== then.execution_count) {
    shared.execution_count = then.execution_count;
  }
  if (JSONExt.deepEqual(now.outputs as any, then.outputs as any)) {
    return [];
  }
  shared.clearOutputs();
  return [() => shared.setOutputs(then.outputs)];
}

export function sourceOf(json: nbformat.ICell): string {
  return Array.isArray(json.source) ? json.source.join('') : json.source;
}

/** What differs whenever a cell's source or outputs do, found without making JSON of them. */
function stateOf(cell: ICellModel): string {
  const parts: (string | number | null)[] = [cell.type, cell.sharedModel.getSource()];
  if (isCodeCellModel(cell)) {
    parts.push(cell.executionCount);
    for (let at = 0; at < cell.outputs.length; at++) {
      const output = cell.outputs.get(at) as any;
      parts.push(versionOf(output), output.streamText?.text.length ?? 0);
    }
  }
  return parts.join('\0');
}

const versions = new WeakMap<object, number>();
let nextVersion = 0;

/** A number for an output's model as it is now: another one after each change of it. */
function versionOf(output: any): number {
  let version = versions.get(output);
  if (version === undefined) {
    version = ++nextVersion;
    versions.set(output, version);
    output.changed.connect(() => versions.set(output, ++nextVersion));
  }
  return version;
}

/** End a step of the notebook's undo: changes that follow within half a second are one else. */
function separateUndo(shared: object): void {
  const { undoManager } = shared as { undoManager?: { stopCapturing(): void } };
  undoManager?.stopCapturing();
}

function keep(cell: ICellModel): IKeptCell {
  const json = JSONExt.deepCopy(cell.toJSON() as any) as nbformat.ICell;
  json.id = cell.id;
  if (isCodeCellModel(cell)) {
    json.outputs = cell.outputs.toJSON() as any;
  }
  const weight = JSON.stringify(json).length;
  return { json, trusted: cell.trusted, weight };
}
