/** A notebook's cells as they were at each checkpoint, kept in this page's memory. */
import { ICellModel, isCodeCellModel } from '@jupyterlab/cells';
import * as nbformat from '@jupyterlab/nbformat';
import { INotebookModel, NotebookPanel } from '@jupyterlab/notebook';
import { JSONExt } from '@lumino/coreutils';
import { ISignal, Signal } from '@lumino/signaling';

import { Timeline } from './model';
import { ICheckpoint } from './tokens';

/** About so many characters of cells and outputs are kept for each notebook; the oldest go first. */
const BUDGET = 128e6;

interface IKeptCell {
  json: nbformat.ICell;
  trusted: boolean;
  weight: number;
}

type Snapshot = IKeptCell[];

export interface IPutBack {
  /** Cells that were made since: they are below the others. */
  since: Set<string>;
}

export class NotebookDocument {
  constructor(
    readonly panel: NotebookPanel,
    readonly timeline: Timeline
  ) {
    timeline.created.connect((_, record) => this._keep(record), this);
    timeline.leaving.connect(() => (this._leaving = this._take()), this);
    timeline.changed.connect(this._dropDeleted, this);
  }

  /** The cells were put back, or that was undone. `since` are those that were made since. */
  get putBackDone(): ISignal<this, IPutBack> {
    return this._putBackDone;
  }

  /** Which checkpoint the outputs on screen are of, where that is not the newest run's. */
  readonly shown = new Map<string, ICheckpoint>();

  has(record: ICheckpoint): boolean {
    return this._snapshots.has(record.id);
  }

  /**
   * Put the cells back as they were, as one undoable edit of the shared document. Cells that were
   * made since are kept, below the others. Returns what undoes it, with every cell as it is now, or
   * null where the cells of that time are not known.
   */
  putBack(record: ICheckpoint): (() => void) | null {
    const snapshot = this._snapshots.get(record.id);
    if (snapshot === undefined) {
      return null;
    }
    const before = this._take();
    const shownBefore = [...this.shown];
    this._apply(snapshot, false);
    const ids = new Set(snapshot.map(cell => cell.json.id as string));
    const runs = [...ids].map(id => [id, this._runUpTo(record, id)] as const);
    this._nowShown(runs.flatMap(([id, run]) => (run === null ? [] : [[id, run]])));
    this._putBackDone.emit({ since: new Set(this._cellIds().filter(id => !ids.has(id))) });
    return () => {
      this._apply(before, true);
      this._nowShown(shownBefore);
      this._putBackDone.emit({ since: new Set() });
    };
  }

  private _nowShown(runs: [string, ICheckpoint][]): void {
    this.shown.clear();
    runs.forEach(([id, run]) => this.shown.set(id, run));
  }

  private get _model(): INotebookModel | null {
    return this.panel.isDisposed ? null : this.panel.content.model;
  }

  private _cellIds(): string[] {
    return Array.from(this._model?.cells ?? [], cell => cell.id);
  }

  /** The newest run of a cell on the way to a checkpoint, which is what its output showed then. */
  private _runUpTo(record: ICheckpoint, cellId: string): ICheckpoint | null {
    let at: ICheckpoint | undefined = record;
    while (at !== undefined && at.coordinate.cell_id !== cellId) {
      const parent: string | null = this.timeline.parents.get(at.id) ?? null;
      at = parent === null ? undefined : this.timeline.records.get(parent);
    }
    return at ?? null;
  }

  private _keep(record: ICheckpoint): void {
    if (record.coordinate.cell_id !== null) {
      this.shown.delete(record.coordinate.cell_id);
    }
    // what is there before a restore is not what is there after the page heard of it
    const isSafety = record.reason === 'safety' && this._leaving !== null;
    this._snapshots.set(record.id, isSafety ? this._leaving! : this._take());
    this._leaving = null;
    this._trim();
  }

  /** All cells now. A cell that is as it was when it was last kept is not read again. */
  private _take(): Snapshot {
    return Array.from(this._model?.cells ?? [], cell => {
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

  private _trim(): void {
    const counted = new Set<IKeptCell>();
    let sum = 0;
    for (const [id, snapshot] of [...this._snapshots].reverse()) {
      for (const cell of snapshot) {
        if (!counted.has(cell)) {
          counted.add(cell);
          sum += cell.weight;
        }
      }
      if (sum > BUDGET) {
        this._snapshots.delete(id);
      }
    }
  }

  private _dropDeleted(): void {
    if (this.timeline.state === 'ready') {
      for (const id of this._snapshots.keys()) {
        if (!this.timeline.records.has(id)) {
          this._snapshots.delete(id);
        }
      }
    }
  }

  /** Make the document equal a snapshot; other cells end up below, or go if they are `excess`. */
  private _apply(snapshot: Snapshot, removeExcess: boolean): void {
    const model = this._model;
    if (model === null) {
      return;
    }
    const shared = model.sharedModel;
    const wanted = new Map(snapshot.map(cell => [cell.json.id as string, cell]));
    // the shared notebook lists its cells anew only after the transaction: what it will be is here
    const order = Array.from(model.cells, cell => cell.id);
    const now = new Map(Array.from(model.cells, cell => [cell.id, keep(cell)]));
    const owners = new Map(shared.cells.map(cell => [cell.id, cell]));
    const since = order.filter(
      id => wanted.get(id)?.json.cell_type !== now.get(id)!.json.cell_type
    );
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
    separateUndo(shared);
    shared.transact(() => {
      const kept = order.filter(id => !since.includes(id));
      kept.forEach(id => update(owners.get(id), now.get(id)!.json, wanted.get(id)!.json));
      // cells made since that are below already stay as they are: one may be in use
      const isBelow = order.slice(kept.length).every(id => since.includes(id));
      if (!isBelow || removeExcess) {
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
      if (!isBelow && !removeExcess) {
        const moved = since.filter(id => !wanted.has(id));
        moved.forEach(id => insert(order.length, now.get(id)!));
      }
    });
    separateUndo(shared);
    for (const cell of model.cells) {
      if (trusted.has(cell.id)) {
        cell.trusted = true;
      }
    }
  }

  private _snapshots = new Map<string, Snapshot>();
  private _kept = new WeakMap<ICellModel, { state: string; kept: IKeptCell }>();
  private _leaving: Snapshot | null = null;
  private _putBackDone = new Signal<this, IPutBack>(this);
}

/** Change only what differs. The shared cell is typed for what all kinds of cells have. */
function update(shared: any, now: nbformat.ICell, then: nbformat.ICell): void {
  if (sourceOf(now) !== sourceOf(then)) {
    shared.setSource(sourceOf(then));
  }
  if (then.cell_type === 'code') {
    if (!JSONExt.deepEqual(now.outputs as any, then.outputs as any)) {
      shared.setOutputs(then.outputs);
    }
    if (now.execution_count !== then.execution_count) {
      shared.execution_count = then.execution_count;
    }
  }
}

function sourceOf(json: nbformat.ICell): string {
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
