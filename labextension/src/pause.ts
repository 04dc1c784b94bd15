import { ISessionContext } from '@jupyterlab/apputils';
import { Signal } from '@lumino/signaling';

const LONGEST_MS = 200;

/** Work when the page has nothing else to do, such as handing on the next cell; soon, anyway. */
export function whenIdle(work: () => void): void {
  if ('requestIdleCallback' in window) {
    window.requestIdleCallback(work, { timeout: LONGEST_MS });
  } else {
    setTimeout(work, 0); // Safari
  }
}

/** Work that waits until nothing happens for a moment, so that it is on no cell's way. */
export class Pause {
  /**
   * quiet: milliseconds in which nothing happened and no cell ran. While one cell runs on and on:
   * so many, `patience`, without anything else.
   */
  constructor(
    private _work: () => void,
    private _context: ISessionContext,
    private _quiet: number,
    private _patience: number
  ) {
    _context.statusChanged.connect(this._stir, this);
    _context.disposed.connect(() => {
      this.cancel();
      Signal.clearData(this);
    });
  }

  /** Something happened: work in the next pause. */
  soon(): void {
    this._isWanted = true;
    this._stir();
  }

  /** Work now, if there is something to do. */
  now(): void {
    if (this._isWanted) {
      this.cancel();
      this._work();
    }
  }

  cancel(): void {
    clearTimeout(this._timer);
    this._isWanted = false;
  }

  private _stir(): void {
    clearTimeout(this._timer);
    if (this._isWanted) {
      const isBusy = this._context.session?.kernel?.status === 'busy';
      const wait = isBusy ? this._patience : this._quiet;
      this._timer = window.setTimeout(() => this.now(), wait);
    }
  }

  private _timer = 0;
  private _isWanted = false;
}
