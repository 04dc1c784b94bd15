/** Work that waits until nothing happens for a moment, so that it is on no cell's way. */
export class Pause {
  /** quiet, latest: milliseconds without a call of `soon`; after the first call at the latest. */
  constructor(
    private _work: () => void,
    private _quiet: number,
    private _latest: number
  ) {}

  /** Something happened: work a moment from now. */
  soon(): void {
    const now = Date.now();
    this._first ??= now;
    clearTimeout(this._timer);
    const wait = Math.min(this._quiet, Math.max(0, this._first + this._latest - now));
    this._timer = window.setTimeout(() => this.now(), wait);
  }

  /** Work now, if there is something to do. */
  now(): void {
    if (this._first !== null) {
      this.cancel();
      this._work();
    }
  }

  cancel(): void {
    clearTimeout(this._timer);
    this._first = null;
  }

  private _timer = 0;
  private _first: number | null = null;
}
