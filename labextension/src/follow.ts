/** Which notebook or console is meant: the active one, or the one that was active last. */
import { IConsoleTracker, ConsolePanel } from '@jupyterlab/console';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { TranslationBundle } from '@jupyterlab/translation';
import { ISignal, Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { ChangesReader } from './changes';
import { NotebookDocument } from './document';
import { Groups } from './groups';
import { Timeline } from './model';
import { ServerPart } from './server';

/** A notebook or console with its timeline. They stay together: a row acts on its own kernel. */
export interface ISubject {
  widget: NotebookPanel | ConsolePanel;
  timeline: Timeline;
  /** What each checkpoint changed. */
  changes: ChangesReader;
  /** What this session is captured and taken back with. */
  groups: Groups;
  /** The cells as they were; null for a console. */
  document: NotebookDocument | null;
}

export class Follower {
  constructor(
    notebooks: INotebookTracker | null,
    consoles: IConsoleTracker | null,
    private _server: ServerPart,
    private _trans: TranslationBundle
  ) {
    notebooks?.forEach(panel => this._add(panel));
    consoles?.forEach(panel => this._add(panel));
    notebooks?.widgetAdded.connect((_, panel) => this._add(panel));
    consoles?.widgetAdded.connect((_, panel) => this._add(panel));
    notebooks?.currentChanged.connect((_, panel) => this.follow(panel));
    consoles?.currentChanged.connect((_, panel) => this.follow(panel));
    this.follow(notebooks?.currentWidget ?? consoles?.currentWidget ?? null);
  }

  get current(): ISubject | null {
    return this._current;
  }

  get currentChanged(): ISignal<this, void> {
    return this._currentChanged;
  }

  /** A notebook or console was opened. */
  get added(): ISignal<this, ISubject> {
    return this._added;
  }

  get subjects(): Iterable<ISubject> {
    return this._subjects.values();
  }

  /** Those with the kernel of this one, which may be a notebook's and a console's: the first first. */
  withKernelOf({ timeline }: ISubject): ISubject[] {
    const id = timeline.kernel?.id;
    return [...this._subjects.values()].filter(other => other.timeline.kernel?.id === id);
  }

  /** Show this widget's timeline from now on; another widget than ours changes nothing. */
  follow(widget: Widget | null): void {
    if (widget instanceof NotebookPanel || widget instanceof ConsolePanel) {
      this._add(widget); // it may be told to be current before it is told to be there
    }
    const subject = widget === null ? undefined : this._subjects.get(widget);
    if (subject !== undefined && subject !== this._current) {
      this._current = subject;
      this._currentChanged.emit();
    }
  }

  private _add(widget: NotebookPanel | ConsolePanel): void {
    if (this._subjects.has(widget) || widget.isDisposed) {
      return;
    }
    const timeline = new Timeline(widget.sessionContext, this._trans);
    const document =
      widget instanceof NotebookPanel ? new NotebookDocument(widget, timeline) : null;
    const changes = new ChangesReader(timeline);
    const groups = new Groups(timeline, this._server);
    const subject = { widget, timeline, changes, groups, document };
    this._subjects.set(widget, subject);
    widget.disposed.connect(() => {
      this._subjects.delete(widget);
      timeline.dispose();
      if (this._current === subject) {
        this._current = null;
        this._currentChanged.emit();
      }
    });
    this._added.emit(subject);
  }

  private _subjects = new Map<Widget, ISubject>();
  private _current: ISubject | null = null;
  private _currentChanged = new Signal<this, void>(this);
  private _added = new Signal<this, ISubject>(this);
}
