/** What the user's commands do, with the questions before and the notifications after. */
import { Dialog, InputDialog, Notification, showDialog } from '@jupyterlab/apputils';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { Contents } from '@jupyterlab/services';
import { TranslationBundle } from '@jupyterlab/translation';

import { DiffBody, GroupBody, IChoice, ILook, PreviewBody, ReplayBody } from './dialogs';
import { IChosen } from './diff';
import { exportCells, exportCheckpoint } from './exporting';
import { ISubject } from './follow';
import { membersOf } from './groups';
import { ServerPart } from './server';
import { holds, ICheckpoint, IRestored, ISettings, Only } from './tokens';

export interface IActionSettings {
  readonly now: ISettings;
  set(name: keyof ISettings, value: boolean): Promise<void>;
}

/** What of the front end actions use beside the kernel. */
export interface IMeans {
  settings: IActionSettings;
  rendermime: IRenderMimeRegistry | null;
  contents: Contents.IManager;
  server: ServerPart;
  trans: TranslationBundle;
}

export class Actions {
  constructor(private _means: IMeans) {
    this._settings = _means.settings;
    this._trans = _means.trans;
  }

  /** Go back, after a preview unless that is turned off. */
  async restore(subject: ISubject, record: ICheckpoint, only: Only = null): Promise<void> {
    const { timeline, document } = subject;
    const can = holds(record);
    if (only === null && !can.memory) {
      only = 'files';
    }
    if (only === 'files' ? !can.files : !can.memory) {
      this._tell('warning', this._trans.__('#%1 does not hold that any more.', record.number));
      return;
    }
    await this._attempt(async () => {
      const knowsCells = only === null && (document?.has(record) ?? false);
      let compensate = false;
      let notebook = knowsCells && this._settings.now.restoreNotebook;
      if (this._settings.now.preview) {
        const choice = await this._ask(subject, record, only, knowsCells ? notebook : null);
        if (choice === 'group') {
          await this.restoreGroup(subject, record);
          return;
        }
        if (choice === null) {
          return;
        }
        ({ notebook, compensate } = choice);
      }
      // first: if the cells cannot be read, nothing is done
      const cells = notebook ? await document!.at(record) : null;
      const result = await timeline.restore(record, only, compensate);
      const takeBack = cells && document!.putBack(record, cells);
      this._tellRestored(subject, result, takeBack);
    });
  }

  async undo(subject: ISubject): Promise<void> {
    await this._attempt(async () => {
      this._tellRestored(subject, await subject.timeline.undo());
    });
  }

  async resume(subject: ISubject): Promise<void> {
    await this._attempt(async () => {
      this._tellRestored(subject, await subject.timeline.resume());
    });
  }

  /** Put the cells back as they were; the kernel stays where it is. */
  async asItWas(subject: ISubject, record: ICheckpoint): Promise<void> {
    const { document } = subject;
    if (document === null) {
      return;
    }
    await this._attempt(async () => {
      const takeBack = document.putBack(record, await document.at(record));
      const text = this._trans.__('The cells are as they were at #%1.', record.number);
      this._tell('success', text, takeBack);
    });
  }

  async insertAgain(subject: ISubject, record: ICheckpoint): Promise<void> {
    await this._attempt(async () => subject.document?.insertAgain(record));
  }

  async exportCells(subject: ISubject, record: ICheckpoint): Promise<void> {
    await this._attempt(async () => {
      const path = await exportCells(subject, record, this._means);
      if (path !== null) {
        this._tell('success', this._trans.__('Written: %1', path));
      }
    });
  }

  async exportCheckpoint(subject: ISubject, record: ICheckpoint): Promise<void> {
    await exportCheckpoint(subject, record, this._means);
  }

  async checkpoint(subject: ISubject): Promise<void> {
    const answer = await InputDialog.getText({
      title: this._trans.__('Checkpoint now'),
      label: this._trans.__('Comment'),
      placeholder: this._trans.__('before the join'),
      okLabel: this._trans.__('Checkpoint')
    });
    if (answer.button.accept) {
      await this._attempt(() => subject.timeline.checkpoint(answer.value ?? ''));
    }
  }

  /** Capture all members of a group, once all are at rest. */
  async checkpointGroup(subject: ISubject): Promise<void> {
    const { names } = subject.groups;
    let group = names[0];
    if (names.length > 1) {
      const chosen = await InputDialog.getItem({
        title: this._trans.__('Checkpoint which group?'),
        items: names,
        okLabel: this._trans.__('Choose')
      });
      if (!chosen.button.accept || chosen.value === null) {
        return;
      }
      group = chosen.value;
    }
    const answer = await InputDialog.getText({
      title: this._trans.__('Checkpoint the group %1', group),
      label: this._trans.__('Comment'),
      placeholder: this._trans.__('before the join'),
      okLabel: this._trans.__('Checkpoint')
    });
    if (answer.button.accept) {
      const made = subject.groups
        .checkpoint(group, answer.value ?? '')
        .then(record =>
          this._trans.__('Group %1: %2 holds %3', group, record.title, membersOf({ group, record }))
        );
      Notification.promise(made, {
        pending: {
          message: this._trans.__('Group %1: waiting until all members are at rest', group)
        },
        success: { message: text => String(text), options: { autoClose: 8000 } },
        error: { message: error => (error as Error).message, options: { autoClose: false } }
      });
      await made.catch(() => undefined); // it was told
    }
  }

  /** Take all members of a checkpoint's group back, after a preview of each. */
  async restoreGroup(subject: ISubject, record: ICheckpoint): Promise<void> {
    const moment = subject.groups.of(record);
    if (moment === null) {
      return;
    }
    const { group } = moment;
    await this._attempt(async () => {
      const plan = await subject.groups.restore(moment, true);
      const answer = await showDialog({
        title: this._trans.__('Take the group %1 back to %2?', group, moment.record.title),
        body: new GroupBody(plan, this._trans),
        buttons: [
          Dialog.cancelButton({ label: this._trans.__('Cancel') }),
          Dialog.okButton({ label: this._trans.__('Take All Back') })
        ]
      });
      if (answer.button.accept) {
        const { text } = await subject.groups.restore(moment, false);
        this._tell('success', text, () => this._attempt(() => subject.groups.undo(group)));
      }
    });
  }

  async label(subject: ISubject, record: ICheckpoint): Promise<void> {
    const answer = await InputDialog.getText({
      title: this._trans.__('Label of #%1', record.number),
      label: this._trans.__('Leave it empty to remove the label.'),
      text: record.label ?? '',
      okLabel: this._trans.__('Set')
    });
    if (answer.button.accept) {
      const label = (answer.value ?? '').trim();
      await this._attempt(() => subject.timeline.label(record, label || null));
    }
  }

  async pin(subject: ISubject, record: ICheckpoint): Promise<void> {
    await this._attempt(() => subject.timeline.pin(record, !record.pinned));
  }

  async remove(subject: ISubject, record: ICheckpoint): Promise<void> {
    const answer = await showDialog({
      title: this._trans.__('Delete #%1?', record.number),
      body: this._trans.__('It cannot be gone back to afterwards. The session stays as it is.'),
      buttons: [
        Dialog.cancelButton({ label: this._trans.__('Cancel') }),
        Dialog.warnButton({ label: this._trans.__('Delete') })
      ]
    });
    if (answer.button.accept) {
      await this._attempt(() => subject.timeline.remove(record));
    }
  }

  /** Show what is different in `other` (null: the present) from a checkpoint. */
  async compare(subject: ISubject, record: ICheckpoint, other: ICheckpoint | null): Promise<void> {
    await this._attempt(async () => {
      const diff = await subject.timeline.diff(record, other);
      const canBring = other === null && holds(record).memory;
      const buttons = [Dialog.cancelButton({ label: this._trans.__('Close') })];
      if (canBring) {
        buttons.unshift(
          Dialog.createButton({ label: this._trans.__('Bring the Chosen'), actions: ['bring'] })
        );
      }
      const answer = await showDialog({
        title: other
          ? this._trans.__('From #%1 to #%2', record.number, other.number)
          : this._trans.__('From #%1 to the present', record.number),
        body: new DiffBody(diff, this._look(subject, record, other), canBring, this._trans),
        buttons,
        defaultButton: buttons.length - 1
      });
      if (answer.button.actions.includes('bring')) {
        const { names, paths } = answer.value as IChosen;
        if (names.size + paths.size === 0) {
          this._tell('warning', this._trans.__('Nothing was chosen, and nothing was done.'));
        }
        if (names.size > 0) {
          await this.bring(subject, record, { names: [...names] });
        }
        if (paths.size > 0) {
          await this.bring(subject, record, { paths: [...paths] });
        }
      }
    });
  }

  /** What a checkpoint changed. */
  async whatItChanged(subject: ISubject, record: ICheckpoint): Promise<void> {
    const parent = subject.timeline.records.get(record.parent ?? '');
    if (parent !== undefined) {
      await this.compare(subject, parent, record);
    }
  }

  /** What is needed to look into the differences of two states; null: the present. */
  private _look(subject: ISubject, before: ICheckpoint | null, after: ICheckpoint | null): ILook {
    const { document, timeline } = subject;
    const isKnown = [before, after].every(at => at === null || (document?.has(at) ?? false));
    return {
      sides: { timeline, before, after, rendermime: this._means.rendermime },
      cells:
        document !== null && isKnown
          ? async () => [await document.at(before), await document.at(after)]
          : null
    };
  }

  /** Ask with which other one to compare. */
  async compareWith(subject: ISubject, record: ICheckpoint): Promise<void> {
    const others = [...subject.timeline.records.values()]
      .filter(other => other !== record)
      .sort((a, b) => b.number - a.number);
    const items = others.map(o => `#${o.number} ${o.label ?? (o.comment || o.code)}`);
    const answer = await InputDialog.getItem({
      title: this._trans.__('Compare #%1 with', record.number),
      items,
      okLabel: this._trans.__('Compare')
    });
    const other = others[items.indexOf(answer.value ?? '')];
    if (answer.button.accept && other !== undefined) {
      const [first, second] = [record, other].sort((a, b) => a.number - b.number);
      await this.compare(subject, first, second);
    }
  }

  async bring(
    subject: ISubject,
    record: ICheckpoint,
    what: { names: string[] } | { paths: string[] }
  ): Promise<void> {
    await this._attempt(async () => {
      const { text, safety } = await subject.timeline.bring(record, what);
      this._tell('success', text, () =>
        this._attempt(async () => {
          this._tellRestored(subject, await subject.timeline.restore(safety));
        })
      );
    });
  }

  async replay(subject: ISubject, record: ICheckpoint): Promise<void> {
    await this._attempt(async () => {
      const plan = await subject.timeline.replay(record, true);
      const answer = await showDialog({
        title: this._trans.__('Replay from #%1?', record.number),
        body: new ReplayBody(plan, this._trans),
        buttons: [
          Dialog.cancelButton({ label: this._trans.__('Cancel') }),
          Dialog.okButton({ label: this._trans.__('Replay') })
        ]
      });
      if (answer.button.accept) {
        const { text } = await subject.timeline.replay(record, false);
        this._tell('success', text, () => this.undo(subject));
      }
    });
  }

  async verify(subject: ISubject, record: ICheckpoint): Promise<void> {
    await this._attempt(async () => {
      this._tell('info', await subject.timeline.verify(record));
    });
  }

  /** Somebody else, or a cell, went back: it is said once, with its undo. */
  tellOthers(subject: ISubject, result: IRestored): void {
    if (this._settings.now.notify) {
      this._tellRestored(subject, result);
    }
  }

  /** The session went back while this page was not connected. */
  tellMoved(subject: ISubject, record: ICheckpoint): void {
    if (this._settings.now.notify) {
      const name = subject.widget.title.label;
      this._tell(
        'info',
        this._trans.__(
          '%1: the session went back while this page was not connected. It is at #%2 now.',
          name,
          record.number
        ),
        () => this.undo(subject)
      );
    }
  }

  private async _ask(
    subject: ISubject,
    record: ICheckpoint,
    only: Only,
    notebook: boolean | null
  ): Promise<IChoice | 'group' | null> {
    const plan = await subject.timeline.preview(record, only);
    const isBusy = await subject.timeline.isRunning();
    const what = {
      process: this._trans.__('Bring back the memory of #%1?', record.number),
      files: this._trans.__('Bring back the files of #%1?', record.number)
    };
    const buttons = [
      Dialog.cancelButton({ label: this._trans.__('Cancel') }),
      Dialog.okButton({ label: this._trans.__('Go back') })
    ];
    if (subject.groups.of(record) !== null) {
      buttons.unshift(
        Dialog.createButton({
          label: this._trans.__('Take the Whole Group Back…'),
          accept: false, // it asks once more
          actions: ['group']
        })
      );
    }
    const answer = await showDialog({
      title: only === null ? this._trans.__('Go back to #%1?', record.number) : what[only],
      body: new PreviewBody(plan, this._look(subject, null, record), notebook, isBusy, this._trans),
      buttons,
      defaultButton: buttons.length - 1
    });
    if (answer.button.actions.includes('group')) {
      return 'group';
    }
    if (!answer.button.accept) {
      return null;
    }
    const choice = answer.value as IChoice;
    if (!choice.preview) {
      await this._settings.set('preview', false);
    }
    return choice;
  }

  /** takeBack: undoes what was done to the notebook's cells with it. */
  private _tellRestored(
    subject: ISubject,
    result: IRestored,
    takeBack: (() => void) | null = null
  ): void {
    const name = subject.widget.title.label;
    const text = `${name}: ${result.text}`;
    // of this restore: there may have been another one meanwhile
    const { safety } = result;
    this._tell('success', text, () =>
      this._attempt(async () => {
        const { timeline } = subject;
        const undone = await (safety ? timeline.restore(safety) : timeline.undo());
        takeBack?.();
        this._tellRestored(subject, undone);
      })
    );
  }

  /**
   * A new kernel, and the variables of the one before it are on the disk: say so once. Returns what
   * takes the offer back.
   */
  offerResume(subject: ISubject, record: ICheckpoint): () => void {
    const text = this._trans.__(
      '%1: its last session can go on from #%2.',
      subject.widget.title.label,
      record.number
    );
    const id = Notification.emit(text, 'info', {
      autoClose: 15_000,
      actions: [{ label: this._trans.__('Resume'), callback: () => void this.resume(subject) }]
    });
    return () => Notification.dismiss(id);
  }

  private async _attempt(work: () => Promise<unknown>): Promise<void> {
    try {
      await work();
    } catch (error) {
      this._tell('error', (error as Error).message);
    }
  }

  private _tell(
    type: 'info' | 'success' | 'warning' | 'error',
    text: string,
    undo?: () => unknown
  ): void {
    const actions = undo
      ? [{ label: this._trans.__('Undo'), callback: () => void undo() }]
      : undefined;
    Notification.emit(shorten(text), type, {
      autoClose: type === 'error' ? false : 8000,
      actions
    });
  }

  private _settings: IActionSettings;
  private _trans: TranslationBundle;
}

/** A notification is cut after 140 characters by JupyterLab: it is cut where a line ends, here. */
function shorten(text: string): string {
  const [first] = text.trim().split('\n');
  return first.length > 500 ? `${first.slice(0, 499)}…` : first;
}
