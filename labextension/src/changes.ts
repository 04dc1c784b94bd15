/** What each checkpoint changed: asked for when its row is in view and nothing else happens. */
import { ISignal, Signal } from '@lumino/signaling';

import { Timeline } from './model';
import { Pause } from './pause';
import { IChanges, ICheckpoint } from './tokens';

const QUIET_MS = 400;
const PATIENCE_MS = 5000;
const AT_ONCE = 50;

export class ChangesReader {
  constructor(private _timeline: Timeline) {
    this._pause = new Pause(() => void this._read(), _timeline.context, QUIET_MS, PATIENCE_MS);
  }

  /** Something more is known. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get(record: ICheckpoint): IChanges | null {
    return this._known.get(keyOf(record)) ?? null;
  }

  /** These are in view. */
  want(records: ICheckpoint[]): void {
    this._wanted = records.filter(
      record => record.parent !== null && !this._known.has(keyOf(record))
    );
    if (this._wanted.length > 0) {
      this._pause.soon();
    }
  }

  private async _read(): Promise<void> {
    const asked = this._wanted
      .filter(record => this._timeline.records.has(record.id))
      .slice(0, AT_ONCE);
    if (this._isReading || asked.length === 0 || this._timeline.state !== 'ready') {
      return;
    }
    this._isReading = true;
    try {
      const found = await this._timeline.changesOf(asked);
      asked.forEach(record => this._known.set(keyOf(record), null)); // asked once
      found.forEach(one => this._known.set(`${one.checkpoint} ${one.parent}`, one));
      this._changed.emit();
    } catch {
      // an older kernel, or one that went away: rows are shown without
      this._wanted = [];
    } finally {
      this._isReading = false;
    }
  }

  private _pause: Pause;
  private _known = new Map<string, IChanges | null>();
  private _wanted: ICheckpoint[] = [];
  private _isReading = false;
  private _changed = new Signal<this, void>(this);
}

function keyOf(record: ICheckpoint): string {
  return `${record.id} ${record.parent}`;
}
