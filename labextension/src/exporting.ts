/** Checkpoints as files: the cells that led to one as a notebook, and what it holds as an archive. */
import { Dialog, InputDialog, Notification, showDialog } from '@jupyterlab/apputils';
import { Contents } from '@jupyterlab/services';
import { TranslationBundle } from '@jupyterlab/translation';

import { ISubject } from './follow';
import { ServerPart } from './server';
import { size } from './times';
import { ICheckpoint } from './tokens';

/** How long the page has to begin with a download before its content is given up, in ms. */
const DOWNLOAD_MS = 60_000;

interface IMeans {
  contents: Contents.IManager;
  server: ServerPart;
  trans: TranslationBundle;
}

/**
 * Write the cells that led to a checkpoint as a notebook. Returns its path, or null where the person
 * did not want it. Throws where nothing was written.
 */
export async function exportCells(
  subject: ISubject,
  record: ICheckpoint,
  { contents, trans }: IMeans
): Promise<string | null> {
  const own = subject.widget.sessionContext.path;
  const answer = await InputDialog.getText({
    title: trans.__('Export the Cells That Lead to #%1', record.number),
    label: trans.__('A new notebook, without what was taken back'),
    text: own.replace(/(\.ipynb)?$/, ` #${record.number}.ipynb`),
    okLabel: trans.__('Export')
  });
  const path = (answer.value ?? '').trim();
  if (!answer.button.accept || path === '') {
    return null;
  }
  if (!path.endsWith('.ipynb')) {
    throw new Error(trans.__('%1 does not end with .ipynb. Nothing was written.', path));
  }
  const isThere = await contents.get(path, { content: false }).then(
    () => true,
    () => false
  );
  if (isThere) {
    throw new Error(trans.__('%1 exists. Nothing was written; choose another name.', path));
  }
  const content = await subject.timeline.plainNotebook(record);
  await contents.save(path, { type: 'notebook', format: 'json', content });
  return path;
}

/** Download a checkpoint as one file, which `jupyter timetravel import` reads. It tells how it went. */
export async function exportCheckpoint(
  subject: ISubject,
  record: ICheckpoint,
  { server, trans }: IMeans
): Promise<void> {
  const { kernel } = subject.timeline;
  const answer = await showDialog({
    title: trans.__('Export checkpoint #%1?', record.number),
    body: trans.__(
      'One file is downloaded, which jupyter timetravel import reads on another machine. It holds files, values of variables, and whatever secrets are among them.'
    ),
    checkbox: {
      label: trans.__('With packages, and files outside of the folder of the notebook'),
      checked: true
    },
    buttons: [
      Dialog.cancelButton({ label: trans.__('Cancel') }),
      Dialog.okButton({ label: trans.__('Download') })
    ]
  });
  if (!answer.button.accept || kernel === null) {
    return;
  }
  const own = subject.widget.title.label.replace(/\.ipynb$/, '');
  const name = `${own} #${record.number}.ttl`;
  const done = server
    .download(`sessions/${encodeURIComponent(kernel.id)}/export`, {
      checkpoint: record.id,
      environment: answer.isChecked ?? true
    })
    .then(file => {
      hand(file, name);
      return trans.__('Downloaded: %1 (%2)', name, size(file.size));
    });
  Notification.promise(done, {
    pending: { message: trans.__('Writing %1', name) },
    success: { message: text => String(text), options: { autoClose: 8000 } },
    error: { message: error => (error as Error).message, options: { autoClose: false } }
  });
  await done.catch(() => undefined); // it was told
}

/** Give a file to the browser, which puts it where downloads go. */
function hand(file: Blob, name: string): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(file);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), DOWNLOAD_MS);
}
