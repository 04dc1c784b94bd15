import { ISessionContext } from '@jupyterlab/apputils';
import { Kernel, KernelMessage } from '@jupyterlab/services';
import { ISignal, Signal } from '@lumino/signaling';

const LONGEST_MS = 200;

/** Work when the page has nothing else to do, such as handing on the next cell; soon, anyway. */
export function whenIdle(work: () => void): void {
  if ('requestIdleCallback' in window) {
    window.requestIdleCallback(work, { timeout: LONGEST_MS });
  } else {
    setTimeout(work, 0); // Safari
  }
}

/** Whether cells of a session run, or wait: a kernel that captures the last one is idle meanwhile. */
class Work {
  static of(context: ISessionContext): Work {
    let found = Work._all.get(context);
    if (found === undefined) {
      found = new Work(context);
      Work._all.set(context, found);
    }
    return found;
  }

  get isBusy(): boolean {
    const kernel = this._context.session?.kernel;
    return kernel?.status === 'busy' || this._sent.size > 0;
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  private constructor(private _context: ISessionContext) {
    const forget = () => {
      this._sent.clear();
      this._changed.emit();
    };
    const watch = () => {
      const kernel = _context.session?.kernel ?? null;
      if (kernel !== this._kernel) {
        this._kernel?.anyMessage.disconnect(this._onMessage, this);
        this._kernel = kernel;
        kernel?.anyMessage.connect(this._onMessage, this);
        forget();
      }
    };
    _context.kernelChanged.connect(watch);
    _context.connectionStatusChanged.connect(forget); // replies may be lost
    _context.statusChanged.connect((_, status) => {
      if (!['busy', 'idle'].includes(status)) {
        this._sent.clear(); // there is no answer from a kernel that is started anew
      }
      this._changed.emit();
    });
    _context.disposed.connect(() => Signal.clearData(this));
    watch();
  }

  private _onMessage(_: unknown, { msg, direction }: Kernel.IAnyMessageArgs): void {
    if (direction === 'send' && msg.header.msg_type === 'execute_request') {
      this._sent.add(msg.header.msg_id);
    } else if (direction === 'recv' && msg.header.msg_type === 'execute_reply') {
      this._sent.delete((msg.parent_header as KernelMessage.IHeader).msg_id);
      if (this._sent.size === 0) {
        this._changed.emit(); // it may come after the kernel has said that it is idle
      }
    }
  }

  private static _all = new WeakMap<ISessionContext, Work>();
  private _kernel: Kernel.IKernelConnection | null = null;
  private _sent = new Set<string>();
  private _changed = new Signal<this, void>(this);
}

/** Work that waits until nothing happens for a moment, so that it is on no cell's way. */
export class Pause {
  /**
   * quiet: milliseconds in which nothing happened and no cell ran. While one cell runs on and on:
   * so many, `patience`, without anything else. Whatever happens: not later than `most`.
   */
  constructor(
    private _work: () => void,
    context: ISessionContext,
    private _quiet: number,
    private _patience: number,
    private _most = Infinity
  ) {
    this._cells = Work.of(context);
    this._cells.changed.connect(this._stir, this);
    context.disposed.connect(() => {
      this.cancel();
      Signal.clearData(this);
    });
  }

  /** Something happened: work in the next pause. */
  soon(): void {
    if (!this._isWanted) {
      this._isWanted = true;
      this._since = performance.now();
    }
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
      const left = this._since + this._most - performance.now();
      const wait = this._cells.isBusy ? this._patience : this._quiet;
      this._timer = window.setTimeout(() => this.now(), Math.max(0, Math.min(wait, left)));
    }
  }

  private _cells: Work;
  private _timer = 0;
  private _since = 0;
  private _isWanted = false;
}
