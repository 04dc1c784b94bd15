/** The timeline of one notebook's or console's kernel: what is known of it, and what can be asked. */
import { ISessionContext } from '@jupyterlab/apputils';
import { Kernel, KernelMessage, Session } from '@jupyterlab/services';
import type * as nbformat from '@jupyterlab/nbformat';
import { TranslationBundle } from '@jupyterlab/translation';
import { JSONObject } from '@lumino/coreutils';
import { ISignal, Signal } from '@lumino/signaling';

import { Pause, whenIdle } from './pause';
import { eventOf, request, speaks } from './protocol';
import {
  IChanges,
  ICheckpoint,
  IDiff,
  IEvent,
  IListing,
  IRan,
  IReplayed,
  IRestored,
  IShownFile,
  IShownVariable,
  IStoredCell,
  ISummary,
  KERNEL,
  Only,
  PROVISIONER
} from './tokens';
import { Tree } from './tree';

/** What a cell leaves is told when no cell has run for so many milliseconds. */
const QUIET_MS = 100;
/** While cells run without a pause: every so many milliseconds. */
const LATEST_MS = 1000;
/** Events that come with each cell, and that nobody waits for. */
const OF_CELLS = ['checkpoint_created', 'checkpoint_changed', 'checkpoint_deleted'];

/**
 * absent: there is no kernel. connecting: it has not answered yet. unmanaged: it has no time travel.
 * ready: the list is complete and live. failed: `problem` says why there is no list.
 */
export type State = 'absent' | 'connecting' | 'unmanaged' | 'ready' | 'failed';

export interface IRunning {
  record: ICheckpoint;
  /** As the kernel names it: plan, safety, stop, filesystem, process, answer; or replay. */
  step: string;
  /** Of a replay: the cell that runs. */
  code?: string;
}

export class Timeline extends Tree {
  constructor(
    readonly context: ISessionContext,
    private _trans: TranslationBundle
  ) {
    super();
    this._news = new Pause(() => this._emitIdle(), context, QUIET_MS, LATEST_MS, LATEST_MS);
    context.kernelChanged.connect(this._onKernel, this);
    context.statusChanged.connect(this._onStatus, this);
    context.iopubMessage.connect(this._onMessage, this);
    context.connectionStatusChanged.connect(this._onConnection, this);
    context.disposed.connect(this.dispose, this);
    void this.refresh();
  }

  /**
   * Anything that is shown may be different now. What cells leave is told in a pause, as what is
   * done then would be on the way of the next cell.
   */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** A checkpoint was made. The page has shown what the cell before it wrote. */
  get created(): ISignal<this, ICheckpoint> {
    return this._created;
  }

  /** The session is at another checkpoint now. */
  get restored(): ISignal<this, IRestored> {
    return this._restored;
  }

  /** The session has gone back while this page was not connected: where it is now. */
  get movedMeanwhile(): ISignal<this, ICheckpoint> {
    return this._movedMeanwhile;
  }

  /** The groups of this session may be others now, or may have other records. */
  get regrouped(): ISignal<this, void> {
    return this._regrouped;
  }

  /** A restore was asked for: the last moment at which the page shows the state before it. */
  get leaving(): ISignal<this, void> {
    return this._leaving;
  }

  state: State = 'connecting';
  problem = '';
  running: IRunning | null = null;
  /** What the kernel said of itself that is worth a line. */
  notice = '';
  /** There is no kernel since it has ended by itself, or did not even start. */
  hasDied = false;
  isDisposed = false;

  /** Go back. Throws Refused or Unanswered; `restored` is emitted when the kernel says so. */
  async restore(record: ICheckpoint, only: Only = null, compensate = false): Promise<IRestored> {
    const args: JSONObject = { checkpoint: record.id, only };
    return this._goBack('restore', compensate ? { ...args, compensate } : args);
  }

  /** Go back and run the cells again that ran since; `dry`: only tell which. */
  async replay(record: ICheckpoint, dry: boolean): Promise<IReplayed> {
    this._ours += 1; // the restore that it begins with is not told apart
    try {
      return await this._request('replay', { checkpoint: record.id, dry_run: dry });
    } finally {
      this._ours -= 1;
    }
  }

  /** Take back the last restore. */
  async undo(): Promise<IRestored> {
    return this._goBack('restore', { undo: true });
  }

  /** Bring back the memory of the session before this kernel. */
  async resume(): Promise<IRestored> {
    return this._goBack('resume', {});
  }

  async preview(record: ICheckpoint, only: Only = null): Promise<IRestored> {
    return this._request('restore', { checkpoint: record.id, only, dry_run: true });
  }

  /** Whether a cell runs, as the kernel says: a page that was loaded meanwhile may not know. */
  async isRunning(): Promise<boolean> {
    return (await this._request<{ busy: boolean }>('status', {})).busy;
  }

  async checkpoint(comment: string): Promise<ICheckpoint> {
    return (await this._request<{ checkpoint: ICheckpoint }>('checkpoint', { comment })).checkpoint;
  }

  async label(record: ICheckpoint, label: string | null): Promise<void> {
    await this._request('label', { checkpoint: record.id, label });
  }

  async pin(record: ICheckpoint, pinned: boolean): Promise<void> {
    await this._request('pin', { checkpoint: record.id, pinned });
  }

  async remove(record: ICheckpoint): Promise<void> {
    await this._request('delete', { checkpoint: record.id });
  }

  /** What is different in `b`, or in the present, from `a`. */
  async diff(a: ICheckpoint, b: ICheckpoint | null): Promise<IDiff> {
    return this._request('diff', { a: a.id, b: b?.id ?? null });
  }

  /** What is known of a checkpoint beside its record: its variables, and the cells that ran. */
  async about(
    record: ICheckpoint
  ): Promise<{ variables: Record<string, ISummary>; cells: IRan[] }> {
    return this._request('get', { checkpoint: record.id });
  }

  /** Bring these variables, or these files, into the present as they were. */
  async bring(record: ICheckpoint, what: { names: string[] } | { paths: string[] }) {
    return this._request<{ text: string; safety: ICheckpoint }>('bring', {
      checkpoint: record.id,
      ...what
    });
  }

  /** What each of these changed since its parent. */
  async changesOf(records: ICheckpoint[]): Promise<IChanges[]> {
    const checkpoints = records.map(record => record.id);
    return (await this._request<{ changes: IChanges[] }>('changes', { checkpoints })).changes;
  }

  /** A file at a checkpoint; null: now. */
  async file(at: ICheckpoint | null, path: string, root: string): Promise<IShownFile> {
    return this._request('file', { path, root, ...(at && { checkpoint: at.id }) });
  }

  /** A variable as a notebook would show it. */
  async show(record: ICheckpoint, name: string): Promise<IShownVariable> {
    const found = await this._request<{ shown: Record<string, IShownVariable> }>('show', {
      checkpoint: record.id,
      names: [name]
    });
    return found.shown[name];
  }

  /** Keep notebooks as they were shown; see the protocol. */
  async keepDocuments(
    cells: nbformat.ICell[],
    documents: { checkpoint: string; cells: { cell: number | string; trusted: boolean }[] }[]
  ): Promise<{ kept: string[]; digests: string[]; missing: string[] }> {
    return this._request('keep_document', { cells, documents } as any);
  }

  /** The notebook as it was, without the cells of these digests. */
  async document(record: ICheckpoint, known: string[]): Promise<IStoredCell[]> {
    const args = { checkpoint: record.id, known };
    return (await this._request<{ cells: IStoredCell[] }>('document', args)).cells;
  }

  /** The cells that led to a checkpoint, as a notebook. */
  async plainNotebook(record: ICheckpoint): Promise<nbformat.INotebookContent> {
    const args = { until: record.id };
    return (await this._request<{ notebook: nbformat.INotebookContent }>('notebook', args))
      .notebook;
  }

  async verify(record: ICheckpoint): Promise<string> {
    return (await this._request<{ text: string }>('verify', { checkpoint: record.id })).text;
  }

  /** This session goes back meanwhile, since this page has asked for it. */
  async takenBack<T>(work: () => Promise<T>): Promise<T> {
    this._leaving.emit();
    this._ours += 1;
    try {
      return await work();
    } finally {
      this._ours -= 1;
    }
  }

  /** Whether this restore was asked for here. */
  hasAskedFor(result: IRestored): boolean {
    return this._ours > 0 || this._lastAsked === keyOf(result);
  }

  get kernel(): Kernel.IKernelConnection | null {
    return this.context.session?.kernel ?? null;
  }

  /** Whether a cell runs, or the kernel answers something else at this moment. */
  get isBusy(): boolean {
    return this.context.session?.kernel?.status === 'busy';
  }

  /** Read the whole list anew, and ask for events. */
  async refresh(): Promise<void> {
    const kernel = this.context.session?.kernel ?? null;
    const round = ++this._round; // a later call makes this one's answers worthless
    const isLate = () => round !== this._round || this.isDisposed;
    if (kernel === null || kernel.isDisposed) {
      this._reset('absent');
      return;
    }
    if (this.state !== 'ready' || kernel.id !== this._kernelId) {
      this._reset('connecting');
      this._kernelId = kernel.id;
    }
    this._waiting = [];
    const isOther = this._isOther; // the kernel was started anew, under the same id
    this._isOther = false;
    try {
      const can = await this._speaks(kernel);
      if (isLate()) {
        return;
      }
      if (!can) {
        this._reset('unmanaged');
        return;
      }
      await request(kernel, this._trans, 'subscribe');
      const listing = await request<IListing>(kernel, this._trans, 'list');
      if (isLate()) {
        return;
      }
      const before = this.head;
      this.fill(listing);
      this.notice = isOther ? '' : this.notice;
      this.state = 'ready';
      const waiting = this._waiting;
      this._waiting = null;
      const now = this.records.get(this.head ?? '');
      const isTold = this._ours > 0 || waiting.some(event => event.event === 'restore_finished');
      if (before !== null && now !== undefined && !this.path.has(before) && !isTold) {
        this._movedMeanwhile.emit(now);
      }
      waiting.forEach(event => this._apply(event));
      this._emit();
      this._regrouped.emit();
    } catch (error) {
      if (!isLate()) {
        this._reset('failed');
        this.problem = (error as Error).message;
        this._emit();
      }
    }
  }

  /**
   * Whether the kernel has time travel. What a kernel tells about itself waits for the cell that
   * runs; one that should have it answers us meanwhile, too.
   */
  private async _speaks(kernel: Kernel.IKernelConnection): Promise<boolean> {
    const told = speaks(kernel, this._trans);
    if (!this.alternatives.some(({ name }) => name === kernel.name)) {
      return told; // another kernel would complain of a message that it does not know
    }
    const asked = request(kernel, this._trans, 'status').then(
      () => true,
      () => told
    );
    return Promise.race([told, asked]);
  }

  /** The kernels with time travel that the server offers, the usual one first. */
  get alternatives(): { name: string; title: string }[] {
    const specs = this.context.specsManager.specs?.kernelspecs ?? {};
    return Object.values(specs)
      .flatMap(spec => (spec ? [spec] : []))
      .filter(
        spec =>
          spec.argv?.includes('kernel_runtime') ||
          (spec.metadata?.kernel_provisioner as JSONObject | undefined)?.provisioner_name ===
            PROVISIONER
      )
      .map(spec => ({ name: spec.name, title: spec.display_name }))
      .sort((a, b) => Number(b.name === KERNEL) - Number(a.name === KERNEL));
  }

  /** The name of the kernel that was there, or that the document asks for. */
  get lastKernel(): string {
    return this.context.kernelPreference.name ?? KERNEL;
  }

  async switchKernel(name: string): Promise<void> {
    await this.context.changeKernel({ name });
  }

  dispose(): void {
    if (!this.isDisposed) {
      this.isDisposed = true;
      this._news.cancel();
      Signal.clearData(this);
    }
  }

  private async _goBack(command: string, args: JSONObject): Promise<IRestored> {
    return this.takenBack(async () => {
      const result = await this._request<IRestored>(command, args);
      this._finish(result); // unless the event of it was faster, as it should be
      return result;
    });
  }

  private async _request<T>(command: string, args: JSONObject): Promise<T> {
    const kernel = this.context.session?.kernel;
    if (!kernel) {
      throw new Error(
        this._trans.__('There is no kernel. Nothing was done; start one and try again.')
      );
    }
    return request<T>(kernel, this._trans, command, args);
  }

  private _onKernel(
    _: unknown,
    { oldValue, newValue }: Session.ISessionConnection.IKernelChangedArgs
  ): void {
    this.running = null;
    if (oldValue !== null && newValue !== null && oldValue.id !== newValue.id) {
      void this._lookAgain();
    }
    // one that cannot start is not told to be dead: it is gone before it has said a word
    this.hasDied = newValue === null && (this.hasDied || this.state === 'connecting');
    void this.refresh();
  }

  private _onStatus(_: unknown, status: Kernel.Status): void {
    if (['restarting', 'autorestarting', 'dead', 'terminating'].includes(status)) {
      // the next kernel knows of no subscription
      this.running = null;
      this._stale = true;
      if (status === 'dead') {
        this.hasDied = true;
        this._round += 1; // what is asked of it now is not answered: no list is no failure
        this._reset('absent'); // one that is ended by hand is gone when kernelChanged says so
        void this._lookAgain();
        return;
      }
      this._emit();
    } else if (this._stale && (status === 'idle' || status === 'busy')) {
      this._stale = false;
      this._isOther = true;
      void this.refresh();
    }
  }

  /**
   * Make sure that this is the kernel of the session. Of two changes of the kernel at once, the
   * answer to the first may come last: the page then holds a kernel that the server has ended for
   * the other one, and its list of sessions, which has not changed since, does not tell it.
   */
  private async _lookAgain(): Promise<void> {
    const session = this.context.session;
    try {
      await session?.setType(session.type); // changes nothing; the answer is how the session is
    } catch {
      // there is no such session any more, or no server: then no kernel, either
    }
  }

  private _onConnection(_: unknown, status: Kernel.ConnectionStatus): void {
    if (status === 'connected' && this.state !== 'connecting') {
      void this.refresh(); // what happened meanwhile was not heard
    }
  }

  private _onMessage(_: unknown, message: KernelMessage.IMessage): void {
    const event = eventOf(message);
    if (event === null) {
      return;
    }
    const isGap = this._sequence !== 0 && event.sequence !== this._sequence + 1;
    this._sequence = event.sequence;
    if (this._waiting !== null) {
      this._waiting.push(event);
      return;
    }
    this._apply(event);
    if (OF_CELLS.includes(event.event)) {
      this._news.soon();
    } else {
      this._emit();
    }
    if (isGap) {
      void this.refresh();
    }
  }

  private _apply(event: IEvent): void {
    const record = event.checkpoint ?? null;
    switch (event.event) {
      case 'checkpoint_created':
        this.put(record!);
        if (record!.is_head) {
          this.setHead(record!.id);
        }
        if (record!.reason === 'cell') {
          this.notice = ''; // it was about the cell before
        }
        this._created.emit(record!);
        break;
      case 'checkpoint_changed':
        this.put(record!);
        break;
      case 'checkpoint_deleted':
        this.delete(event.id!);
        break;
      case 'restore_started':
        this.running = { record: record!, step: 'plan' };
        break;
      case 'restore_progress':
        if (this.running !== null) {
          this.running = { ...this.running, step: String(event.step ?? '') };
        }
        break;
      case 'replay_progress':
        this.running = {
          record: this.records.get(record!.id) ?? record!,
          step: 'replay',
          code: `${event.step} / ${event.of} ${event.code ?? ''}`
        };
        break;
      case 'replay_finished':
        this.running = null;
        break;
      case 'restore_failed':
        this.running = null;
        break;
      case 'restore_finished':
        this._finish(event as unknown as IRestored);
        break;
      case 'group_changed':
        this.notice = event.text || this.notice; // a new record is told without a word
        this._regrouped.emit();
        break;
      case 'executor_died':
        this.running = null;
        this.notice = event.text ?? '';
        if (record !== null) {
          this.put(record);
          this.setHead(record.id);
        }
        break;
    }
  }

  private _finish(result: IRestored): void {
    // the reply may overtake the events of its restore, the safety checkpoint among them, which was
    // the head then: the last of them says again where the session is
    this.running = null;
    this.put(result.checkpoint);
    if (result.checkpoint.is_head) {
      this.setHead(result.checkpoint.id);
    }
    const key = keyOf(result);
    if (this._ours > 0) {
      this._lastAsked = key;
    }
    if (key !== this._lastRestore) {
      this._lastRestore = key;
      this._restored.emit(result);
    }
    this._emit();
  }

  private _reset(state: State): void {
    this.state = state;
    this.problem = this.notice = '';
    this.running = null;
    this.fill({ checkpoints: [], parents: {}, head: null });
    this._sequence = 0;
    this._waiting = null;
    this._emit();
  }

  private _emitIdle(): void {
    this._isTold = false;
    whenIdle(() => {
      if (!this._isTold) {
        this._emit();
      }
    });
  }

  private _emit(): void {
    this._isTold = true;
    this._news.cancel();
    if (!this.isDisposed) {
      this._changed.emit();
    }
  }

  private _changed = new Signal<this, void>(this);
  private _created = new Signal<this, ICheckpoint>(this);
  private _restored = new Signal<this, IRestored>(this);
  private _regrouped = new Signal<this, void>(this);
  private _leaving = new Signal<this, void>(this);
  private _movedMeanwhile = new Signal<this, ICheckpoint>(this);
  private _news: Pause;
  /** Since the last pause. */
  private _isTold = false;
  private _waiting: IEvent[] | null = null;
  private _sequence = 0;
  private _round = 0;
  private _ours = 0;
  private _stale = false;
  private _isOther = false;
  private _kernelId = '';
  private _lastRestore = '';
  private _lastAsked = '';
}

function keyOf(result: IRestored): string {
  return [result.checkpoint.id, result.safety?.id, result.took_ms].join();
}
