/** A notebook's cells as they were at each checkpoint: of this page's memory, or of the kernel. */
import { INotebookModel, NotebookActions, NotebookPanel } from '@jupyterlab/notebook';
import { ISignal, Signal } from '@lumino/signaling';

import { apply, CellReader, IKeptCell, Snapshot } from './cells';
import { Keeper } from './keeper';
import { Timeline } from './model';
import { ICheckpoint } from './tokens';

/** About so many characters of cells and outputs are in memory for each notebook. */
const BUDGET = 128e6;

export interface IPutBack {
  /** Cells that were made since: they are below the others. */
  since: Set<string>;
}

export class NotebookDocument {
  constructor(
    readonly panel: NotebookPanel,
    readonly timeline: Timeline
  ) {
    this._keeper = new Keeper(timeline);
    timeline.created.connect((_, record) => this._keep(record), this);
    timeline.leaving.connect(() => (this._leaving = this._take()), this);
    timeline.changed.connect(this._dropDeleted, this);
    NotebookActions.executionScheduled.connect(this._onRun, this);
    const flush = () => this._keeper.flush();
    window.addEventListener('pagehide', flush);
    panel.disposed.connect(() => {
      window.removeEventListener('pagehide', flush);
      NotebookActions.executionScheduled.disconnect(this._onRun, this);
    });
  }

  /** The cells were put back, or that was undone. `since` are those that were made since. */
  get putBackDone(): ISignal<this, IPutBack> {
    return this._putBackDone;
  }

  /**
   * Which checkpoint the outputs on screen are of, where that is not the newest run's; null: the
   * cell is as it was before its first run.
   */
  readonly shown = new Map<string, ICheckpoint | null>();

  has(record: ICheckpoint): boolean {
    return this._snapshots.has(record.id) || this._keeper.has(record);
  }

  /** Whether a checkpoint is of a cell that was deleted since. */
  isWithout(record: ICheckpoint): boolean {
    const id = record.coordinate.cell_id;
    return id !== null && this._model !== null && !this._cellIds().includes(id);
  }

  /** Insert the cell of a checkpoint again, below the others, with its output where it is known. */
  async insertAgain(record: ICheckpoint): Promise<void> {
    const id = record.coordinate.cell_id;
    const known = this.has(record) ? await this.at(record) : [];
    const kept = known.find(cell => cell.json.id === id)?.json;
    const { cells } = await this.timeline.about(record);
    const source = cells.find(cell => cell.cell_id === id)?.source ?? record.code;
    const shared = this._model?.sharedModel;
    if (shared !== undefined && this.isWithout(record)) {
      const cell = { cell_type: 'code', source, metadata: {}, id, ...kept };
      shared.insertCell(shared.cells.length, cell as any);
    }
  }

  /** The cells at a checkpoint, null: now. Throws where they are not known. */
  async at(record: ICheckpoint | null): Promise<Snapshot> {
    if (record === null) {
      return this._take();
    }
    return this._snapshots.get(record.id) ?? (await this._keeper.fetch(record));
  }

  /**
   * Put the cells back as they were, as one undoable edit of the shared document. Cells that were
   * made since are kept, below the others. Returns what undoes it, with every cell as it is now;
   * those that are made until then are kept, too.
   */
  putBack(record: ICheckpoint, snapshot: Snapshot): () => void {
    const before = this._take();
    const shownBefore = [...this.shown];
    this._apply(snapshot, new Set());
    const ids = new Set(snapshot.map(cell => cell.json.id as string));
    this._nowShown([...ids].map(id => [id, this._runUpTo(record, id)]));
    this._putBackDone.emit({ since: new Set(this._cellIds().filter(id => !ids.has(id))) });
    return () => {
      const had = new Set(before.map(cell => cell.json.id as string));
      this._apply(before, new Set([...ids].filter(id => !had.has(id))));
      this._nowShown(shownBefore);
      this._putBackDone.emit({ since: new Set() });
    };
  }

  private _apply(snapshot: Snapshot, excess: Set<string>): void {
    if (this._model !== null) {
      apply(this._model, snapshot, excess);
    }
  }

  private _nowShown(runs: [string, ICheckpoint | null][]): void {
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

  private _onRun(_: unknown, args: { notebook: unknown; cell: { model: { id: string } } }): void {
    if (args.notebook === this.panel.content) {
      this._run.add(args.cell.model.id);
    }
  }

  private _keep(record: ICheckpoint): void {
    const cellId = record.coordinate.cell_id;
    if (cellId !== null) {
      this.shown.delete(cellId);
    }
    // what is there before a restore is not what is there after the page heard of it
    const isSafety = record.reason === 'safety' && this._leaving !== null;
    const isOwn = isSafety || (cellId !== null && this._run.delete(cellId));
    const snapshot = isSafety ? this._leaving! : this._take();
    this._leaving = null;
    this._snapshots.set(record.id, snapshot);
    this._keeper.offer(record, snapshot, isOwn);
    this._trim();
  }

  private _take(): Snapshot {
    return this._reader.take(this._model);
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

  private _reader = new CellReader();
  private _keeper: Keeper;
  private _snapshots = new Map<string, Snapshot>();
  private _run = new Set<string>();
  private _leaving: Snapshot | null = null;
  private _putBackDone = new Signal<this, IPutBack>(this);
}
