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
/** Notebooks of one request. */
const DOCUMENTS_MOST = 50;
const BARE = 'timetravel_outputs_left_out';

interface IWaiting {
  snapshot: Snapshot;
  isOwn: boolean;
  /** It was sent already, and the store had lost some of its cells. */
  isAgain?: boolean;
}

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
      while (await this._sendSome(isOwn)) {
        if (this._timeline.isBusy) {
          (isOwn ? this._own : this._others).soon(); // the pause is over: the rest in the next one
          break;
        }
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

  /** One request, with the cells that the kernel does not know yet; whether there is more to do. */
  private async _sendSome(isOwn: boolean): Promise<boolean> {
    const part = new Set<IKeptCell>();
    const documents: [string, Snapshot][] = [];
    let weight = 0;
    for (const [id, waiting] of this._waiting) {
      if (isOwn && !waiting.isOwn) {
        continue;
      }
      if (documents.length === DOCUMENTS_MOST) {
        break;
      }
      const record = this._timeline.records.get(id);
      if (record === undefined || this.has(record)) {
        this._waiting.delete(id);
        continue;
      }
      const unknown = new Set(
        waiting.snapshot.filter(cell => !this._digests.has(cell) && !part.has(cell))
      );
      let isWhole = true;
      for (const cell of unknown) {
        const more = Math.min(cell.weight, CELL_MOST);
        if (part.size > 0 && weight + more > REQUEST_MOST) {
          isWhole = false;
          break;
        }
        part.add(cell);
        weight += more;
      }
      if (!isWhole) {
        break; // its other cells go with the next request
      }
      documents.push([id, waiting.snapshot]);
    }
    if (documents.length === 0 && part.size === 0) {
      return false;
    }
    await this._ask([...part], documents);
    return this._waiting.size > 0;
  }

  private async _ask(part: IKeptCell[], documents: [string, Snapshot][]): Promise<void> {
    const places = new Map(part.map((cell, at) => [cell, at]));
    const answer = await this._timeline.keepDocuments(
      part.map(toStored),
      documents.map(([checkpoint, snapshot]) => ({
        checkpoint,
        cells: snapshot.map(cell => ({
          cell: places.get(cell) ?? this._digests.get(cell)!,
          trusted: cell.trusted
        }))
      }))
    );
    part.forEach((cell, at) => this._learn(cell, answer.digests[at]));
    const missing = new Set(answer.missing);
    for (const [id, snapshot] of documents) {
      const lost = snapshot.filter(cell => missing.has(this._digests.get(cell)!));
      const waiting = this._waiting.get(id);
      if (lost.length > 0 && waiting !== undefined && !waiting.isAgain) {
        waiting.isAgain = true; // the store was pruned meanwhile: once more, with its cells
      } else {
        this._waiting.delete(id);
      }
      lost.forEach(cell => this._digests.delete(cell));
    }
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
  private _waiting = new Map<string, IWaiting>();
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
