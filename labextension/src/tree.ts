/** The checkpoints that are known, and how they descend from each other. */
import { pathOf } from './graph';
import { ICheckpoint, IListing } from './tokens';

export class Tree {
  head: string | null = null;
  readonly records = new Map<string, ICheckpoint>();
  readonly parents = new Map<string, string | null>();

  /** The ids of the present and of all that it descends from. */
  get path(): Set<string> {
    if (this._path === null) {
      this._path = pathOf(this.head, this.parents);
    }
    return this._path;
  }

  /** By cell: the checkpoint made last of it, on the present branch or, failing that, at all. */
  get runs(): Map<string, ICheckpoint> {
    if (this._runs !== null) {
      return this._runs;
    }
    const runs = new Map<string, ICheckpoint>();
    for (const record of this.records.values()) {
      const id = record.coordinate.cell_id;
      if (id === null || record.reason !== 'cell') {
        continue;
      }
      const other = runs.get(id);
      const isPresent = this.path.has(record.id);
      const isBetter =
        other === undefined ||
        (isPresent === this.path.has(other.id) ? record.number > other.number : isPresent);
      if (isBetter) {
        runs.set(id, record);
      }
    }
    this._runs = runs;
    return runs;
  }

  /** The checkpoint from which the newest run of a cell started, or null. */
  beforeCell(cellId: string): ICheckpoint | null {
    const own = this.runs.get(cellId);
    const parent = own === undefined ? null : (this.parents.get(own.id) ?? null);
    return parent === null ? null : (this.records.get(parent) ?? null);
  }

  /** Whether there was a restore. */
  get canUndo(): boolean {
    return [...this.records.values()].some(record => record.reason === 'safety');
  }

  /** What `resume` would bring back, while nothing has been done in the new kernel yet. */
  get resumable(): ICheckpoint | null {
    const head = this.head === null ? undefined : this.records.get(this.head);
    if (head === undefined || (head.reason !== 'start' && head.reason !== 'restart')) {
      return null;
    }
    for (const id of this.path) {
      const record = this.records.get(id);
      const isEarlier = record && record.coordinate.epoch !== head.coordinate.epoch;
      if (isEarlier && record.captures.some(c => c.kind === 'namespace' && c.state === 'ready')) {
        return record;
      }
    }
    return null;
  }

  protected fill(listing: IListing): void {
    this.records.clear();
    this.parents.clear();
    listing.checkpoints.forEach(record => this.records.set(record.id, record));
    Object.entries(listing.parents).forEach(([id, parent]) => this.parents.set(id, parent));
    this.setHead(listing.head);
  }

  protected put(record: ICheckpoint): void {
    this.records.set(record.id, record);
    this.parents.set(record.id, record.parent);
    this._path = this._runs = null;
  }

  protected setHead(id: string | null): void {
    this.head = id;
    this._path = this._runs = null;
  }

  protected delete(id: string): void {
    const parent = this.parents.get(id) ?? null;
    this.records.delete(id);
    this.parents.delete(id);
    this.parents.forEach((value, child) => {
      if (value === id) {
        this.parents.set(child, parent);
        const record = this.records.get(child);
        if (record) {
          this.records.set(child, { ...record, parent });
        }
      }
    });
    this._path = this._runs = null;
  }

  private _path: Set<string> | null = null;
  private _runs: Map<string, ICheckpoint> | null = null;
}
