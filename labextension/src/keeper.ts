/**
 * Gives notebooks as they were shown to the kernel, to keep with their checkpoints, and gets them
 * back: after a reload, in another browser, in a later session. In pauses only, and each cell once.
 */
import type * as nbformat from '@jupyterlab/nbformat';

import { IKeptCell, Snapshot } from './cells';
import { Timeline } from './model';
import { Pause } from './pause';
import { Unanswered } from './protocol';
import { captureOf, ICheckpoint } from './tokens';

const QUIET_MS = 300;
/** Another page may have run the cell, and shows more of it: that one comes first. */
const QUIET_OTHERS_MS = 3000;
const PATIENCE_MS = 10_000;
/** Characters of one request: a server takes messages of 10 MB. */
const REQUEST_MOST = 2e6;
const CELL_MOST = 3e6;
const BARE = 'timetravel_outputs_left_out';

export class Keeper {
  constructor(private _timeline: Timeline) {
    const { context } = _timeline;
    this._own = new Pause(() => void this._send(true), context, QUIET_MS, PATIENCE_MS);
    this._others = new Pause(() => void this._send(false), context, QUIET_OTHERS_MS, PATIENCE_MS);
  }

  /** Whether the kernel has the notebook of that time. */
  has(record: ICheckpoint): boolean {
    return captureOf(record, 'document')?.state === 'ready';
  }

  /** Have it kept, soon. isOwn: this page ran the cell. */
  offer(record: ICheckpoint, snapshot: Snapshot, isOwn: boolean): void {
    this._waiting.set(record.id, { snapshot, isOwn });
    (isOwn ? this._own : this._others).soon();
  }

  /** The page is about to go: what waits is sent, whether or not there is an answer. */
  flush(): void {
    this._own.now();
  }

  /** The notebook as it was. Throws what the kernel answers with. */
  async fetch(record: ICheckpoint): Promise<Snapshot> {
    const found = await this._timeline.document(record, [...this._cells.keys()]);
    return found.map(({ digest, trusted, cell }) => {
      const kept = cell === null ? this._cells.get(digest)! : fromStored(cell);
      this._learn(kept, digest);
      return kept.trusted === trusted ? kept : { ...kept, trusted };
    });
  }

  private async _send(isOwn: boolean): Promise<void> {
    if (this._isSending) {
      (isOwn ? this._own : this._others).soon();
      return;
    }
    this._isSending = true;
    try {
      for (const [id, waiting] of [...this._waiting]) {
        if (isOwn && !waiting.isOwn) {
          continue;
        }
        const record = this._timeline.records.get(id);
        if (record !== undefined && !this.has(record)) {
          await this._keep(id, waiting.snapshot);
        }
        this._waiting.delete(id);
      }
    } catch (error) {
      // a kernel or a store that cannot: this page's memory has them all the same. Where only the
      // connection was lost they wait for the next time
      if (!(error instanceof Unanswered)) {
        this._waiting.clear();
      }
    } finally {
      this._isSending = false;
    }
  }

  /** Send one notebook: first cells that the kernel does not know, in parts, then the list. */
  private async _keep(checkpoint: string, snapshot: Snapshot): Promise<void> {
    for (let tries = 0; tries < 2; tries++) {
      const unknown = [...new Set(snapshot)].filter(cell => !this._digests.has(cell));
      let part: IKeptCell[] = [];
      let weight = 0;
      for (const cell of unknown) {
        if (part.length > 0 && weight + cell.weight > REQUEST_MOST) {
          await this._sendCells(part);
          [part, weight] = [[], 0];
        }
        part.push(cell);
        weight += Math.min(cell.weight, CELL_MOST);
      }
      const { missing } = await this._sendCells(part, checkpoint, snapshot);
      if (missing.length === 0) {
        return;
      }
      // the store was pruned meanwhile
      snapshot.forEach(cell => this._digests.delete(cell));
    }
  }

  private async _sendCells(part: IKeptCell[], checkpoint?: string, snapshot: Snapshot = []) {
    const places = new Map(part.map((cell, at) => [cell, at]));
    const cells = snapshot.map(cell => ({
      cell: places.get(cell) ?? this._digests.get(cell)!,
      trusted: cell.trusted
    }));
    const answer = await this._timeline.keepDocuments(
      part.map(toStored),
      checkpoint === undefined ? [] : [{ checkpoint, cells }]
    );
    part.forEach((cell, at) => this._learn(cell, answer.digests[at]));
    return answer;
  }

  private _learn(cell: IKeptCell, digest: string): void {
    this._digests.set(cell, digest);
    this._cells.set(digest, cell);
    if (this._cells.size > 2000) {
      this._cells.delete(this._cells.keys().next().value!);
    }
  }

  private _own: Pause;
  private _others: Pause;
  private _waiting = new Map<string, { snapshot: Snapshot; isOwn: boolean }>();
  private _digests = new WeakMap<IKeptCell, string>();
  private _cells = new Map<string, IKeptCell>();
  private _isSending = false;
}

/** A cell that is too large for a message goes without its outputs, and says so. */
function toStored(cell: IKeptCell): nbformat.ICell {
  if (cell.weight <= CELL_MOST) {
    return cell.json;
  }
  return { ...cell.json, outputs: [], metadata: { ...cell.json.metadata, [BARE]: true } };
}

function fromStored(json: nbformat.ICell): IKeptCell {
  const { [BARE]: bare, ...metadata } = json.metadata as Record<string, any>;
  return {
    json: { ...json, metadata },
    trusted: false,
    weight: JSON.stringify(json).length,
    isBare: bare === true
  };
}
