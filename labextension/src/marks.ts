/**
 * What the notebook shows of the timeline: cells whose output is of an undone run are dimmed, and
 * each cell has a button back to before it. Nothing of that is in the document.
 */
import { Cell, ICodeCellModel, isCodeCellModel } from '@jupyterlab/cells';
import { NotebookActions } from '@jupyterlab/notebook';
import { TranslationBundle } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';

import { ISubject } from './follow';
import { beforeIcon } from './icons';
import { CommandIDs, ICheckpoint, ISettings } from './tokens';
import { Undone } from './undone';

const UNDONE = 'jp-TimeTravel-undone';
const SINCE = 'jp-TimeTravel-since';
const BEFORE = 'jp-TimeTravel-before';
const HAS_BEFORE = 'jp-TimeTravel-hasBefore';
/** Characters of a cell's first line in a record. */
const CODE_LENGTH = 200;

export class Marks {
  constructor(
    private _subject: ISubject,
    private _commands: CommandRegistry,
    private _settings: () => ISettings,
    private _marked: Undone,
    private _trans: TranslationBundle
  ) {
    const { timeline, document } = _subject;
    timeline.changed.connect(this.update, this);
    document!.putBackDone.connect((_, { since }) => {
      this._since = since;
      this.update();
    }, this);
    document!.panel.content.modelContentChanged.connect(this._onContent, this);
    NotebookActions.executionScheduled.connect(this._onRun, this);
    document!.panel.disposed.connect(() =>
      NotebookActions.executionScheduled.disconnect(this._onRun, this)
    );
    this.update();
  }

  update(): void {
    this._undone = this._settings().marks ? this._find() : new Set();
    this._show();
  }

  private _find(): Set<string> {
    const { timeline, document } = this._subject;
    const newest = new Map<string, ICheckpoint>();
    for (const record of timeline.records.values()) {
      const id = record.coordinate.cell_id;
      if (id !== null && record.reason === 'cell') {
        const other = newest.get(id);
        if (other === undefined || other.number < record.number) {
          newest.set(id, record);
        }
      }
    }
    document!.shown.forEach((record, id) =>
      record === null ? newest.delete(id) : newest.set(id, record)
    );
    const undone = new Set<string>();
    newest.forEach((record, id) => {
      if (!timeline.path.has(record.id) && !this._running.has(id)) {
        undone.add(id);
      }
    });
    this._copies(newest).forEach(id => undone.add(id));
    // what was scheduled has its own checkpoint now, or never ran
    for (const id of this._running) {
      const record = newest.get(id);
      if (record === undefined || timeline.path.has(record.id)) {
        this._running.delete(id);
      }
    }
    return undone;
  }

  /**
   * Cells that never ran themselves, and show the number and the first line of an undone run and of
   * no other: copies of its cell, which have an id of their own.
   */
  private _copies(known: Map<string, unknown>): string[] {
    const { timeline, document } = this._subject;
    const cells = Array.from(document!.panel.content.model?.cells ?? []).filter(
      cell =>
        isCodeCellModel(cell) &&
        cell.executionCount !== null &&
        !known.has(cell.id) &&
        !document!.shown.has(cell.id) &&
        !this._running.has(cell.id)
    ) as ICodeCellModel[];
    if (cells.length === 0) {
      return [];
    }
    const isUndone = new Map<string, boolean>();
    for (const { id, reason, code, coordinate } of timeline.records.values()) {
      if (reason === 'cell') {
        const run = `${coordinate.execution_count} ${code}`;
        isUndone.set(run, !timeline.path.has(id) && isUndone.get(run) !== false);
      }
    }
    return cells
      .filter(cell =>
        isUndone.get(`${cell.executionCount} ${firstLine(cell.sharedModel.getSource())}`)
      )
      .map(cell => cell.id);
  }

  private _onContent(): void {
    // a cell's widget is made after its model has told of the cell
    queueMicrotask(() => {
      const { panel } = this._subject.document!;
      if (panel.isDisposed) {
        return;
      }
      const { widgets } = panel.content;
      const isOther = (cell: Cell) =>
        !this._seen.has(cell) || cell.hasClass(UNDONE) !== this._isUndone(cell);
      if (widgets.length !== this._cells) {
        this.update(); // a new one may be a copy, and one that is gone is not counted
      } else if (widgets.some(isOther)) {
        this._show(); // a new widget has no mark yet
      }
    });
  }

  private _onRun(_: unknown, args: { notebook: unknown; cell: Cell }): void {
    if (args.notebook === this._subject.document!.panel.content) {
      this._running.add(args.cell.model.id);
      this._since.delete(args.cell.model.id);
      this._undone.delete(args.cell.model.id);
      this._showCell(args.cell); // only that: the cell is about to be sent
      this._count();
    }
  }

  private _show(): void {
    const { panel } = this._subject.document!;
    if (panel.isDisposed) {
      return;
    }
    const { widgets } = panel.content;
    this._cells = widgets.length;
    for (const cell of widgets) {
      this._seen.add(cell);
      this._showCell(cell);
      this._button(cell, this._subject.timeline.beforeCell(cell.model.id));
    }
    this._count();
  }

  private _showCell(cell: Cell): void {
    this._mark(cell, UNDONE, this._isUndone(cell), this._trans.__('undone'));
    this._mark(cell, SINCE, this._since.has(cell.model.id), this._trans.__('made since'));
  }

  private _count(): void {
    const { panel } = this._subject.document!;
    const marked = panel.content.widgets.flatMap((cell, at) => (this._isUndone(cell) ? [at] : []));
    this._marked.set(panel, marked);
    panel.node.dataset.timetravelUndone = String(marked.length);
  }

  /** Whether a cell shows something of an undone run: not if it was cleared, or made into text. */
  private _isUndone({ model }: Cell): boolean {
    return (
      this._undone.has(model.id) &&
      isCodeCellModel(model) &&
      (model.executionCount !== null || model.outputs.length > 0)
    );
  }

  private _mark(cell: Cell, name: string, wanted: boolean, text: string): void {
    if (cell.hasClass(name) === wanted) {
      return;
    }
    cell.toggleClass(name, wanted);
    if (wanted) {
      const badge = window.document.createElement('div');
      badge.className = `jp-TimeTravel-mark ${name}-mark`;
      badge.setAttribute('role', 'note');
      badge.textContent = text;
      cell.node.append(badge);
    } else {
      cell.node.querySelector(`:scope > .${name}-mark`)?.remove();
    }
  }

  /** The button in the cell's margin; hidden where there is nothing to go back to. */
  private _button(cell: Cell, before: ICheckpoint | null): void {
    let button = this._buttons.get(cell);
    if (button === undefined) {
      if (before === null) {
        return;
      }
      button = window.document.createElement('button');
      button.className = BEFORE;
      button.dataset.command = CommandIDs.beforeCell;
      beforeIcon.element({ container: button, tag: 'span', width: '14px' });
      button.addEventListener('click', event => {
        event.stopPropagation();
        void this._commands.execute(CommandIDs.beforeCell, { cell: cell.model.id });
      });
      cell.addClass(HAS_BEFORE);
      cell.node.append(button);
      this._buttons.set(cell, button);
    }
    // what is written anew is laid out anew, also where it is the same
    if (button.hidden !== (before === null)) {
      button.hidden = before === null;
    }
    const text = before && this._trans.__('Go back to before this cell (#%1)', before.number);
    if (text !== null && button.title !== text) {
      button.title = text;
      button.setAttribute('aria-label', text);
    }
  }

  private _undone = new Set<string>();
  private _cells = 0;
  private _seen = new WeakSet<Cell>();
  private _buttons = new WeakMap<Cell, HTMLButtonElement>();
  private _since = new Set<string>();
  private _running = new Set<string>();
}

/** As a checkpoint's record has it. */
function firstLine(source: string): string {
  const line = source.trim().split(/\r?\n/)[0].trimEnd();
  return line.length > CODE_LENGTH ? `${line.slice(0, CODE_LENGTH - 1)}…` : line;
}
