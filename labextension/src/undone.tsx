/** In a notebook's toolbar: how many of its cells show the output of a run that was undone. */
import { NotebookPanel } from '@jupyterlab/notebook';
import { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import { ISignal, Signal } from '@lumino/signaling';
import React from 'react';

/** Which cells of each notebook are marked. */
export class Undone {
  /** Those of this notebook are others now. */
  get changed(): ISignal<this, NotebookPanel> {
    return this._changed;
  }

  /** Indexes of cells, the first one first. */
  of(panel: NotebookPanel): readonly number[] {
    return this._cells.get(panel) ?? [];
  }

  set(panel: NotebookPanel, cells: readonly number[]): void {
    const before = this.of(panel);
    this._cells.set(panel, cells);
    if (before.join() !== cells.join()) {
      this._changed.emit(panel);
    }
  }

  private _cells = new WeakMap<NotebookPanel, readonly number[]>();
  private _changed = new Signal<this, NotebookPanel>(this);
}

export class UndoneBadge extends ReactWidget {
  constructor(
    private _panel: NotebookPanel,
    private _undone: Undone,
    private _trans: TranslationBundle
  ) {
    super();
    this.addClass('jp-TimeTravel-undoneBadge');
    this.node.setAttribute('role', 'status'); // a change of the number is read out
    _undone.changed.connect(this._onChanged, this);
    this._onChanged(_undone, _panel);
  }

  protected render(): JSX.Element | null {
    const { length } = this._undone.of(this._panel);
    const hint = this._trans._n(
      '%1 cell shows the output of a run that was undone. Go to it',
      '%1 cells show the output of a run that was undone. Go to the next of them',
      length
    );
    return length === 0 ? null : (
      <button title={hint} data-count={length} onClick={() => this._goToNext()}>
        {this._trans.__('%1 undone', length)}
        <span className="jp-TimeTravel-hidden">{hint}</span>
      </button>
    );
  }

  private _onChanged(_: Undone, panel: NotebookPanel): void {
    if (panel === this._panel) {
      this.setHidden(this._undone.of(panel).length === 0);
      this.update();
    }
  }

  private _goToNext(): void {
    const { content } = this._panel;
    const cells = this._undone.of(this._panel);
    const next = cells.find(index => index > content.activeCellIndex) ?? cells[0];
    if (next !== undefined) {
      content.deselectAll();
      content.activeCellIndex = next;
      void content.scrollToItem(next);
    }
  }
}
