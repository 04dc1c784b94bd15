/** Wires the parts to the front end; what they do is in the other files. */
import {
  ILabShell,
  ILayoutRestorer,
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette, IToolbarWidgetRegistry } from '@jupyterlab/apputils';
import { IConsoleTracker } from '@jupyterlab/console';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { Actions, IActionSettings } from './actions';
import { addCommands } from './commands';
import { Follower, ISubject } from './follow';
import { Marks } from './marks';
import { TimelinePanel } from './panel';
import { ServerPart } from './server';
import { CommandIDs, DEFAULTS, ISettings, PLUGIN } from './tokens';
import { menuButton } from './toolbar';
import { Undone, UndoneBadge } from './undone';

const PALETTE = [
  CommandIDs.open,
  CommandIDs.checkpoint,
  CommandIDs.checkpointGroup,
  CommandIDs.undo,
  CommandIDs.beforeCell,
  CommandIDs.restore,
  CommandIDs.restoreMemory,
  CommandIDs.restoreFiles,
  CommandIDs.restoreGroup,
  CommandIDs.asItWas,
  CommandIDs.comparePresent,
  CommandIDs.compare,
  CommandIDs.changed,
  CommandIDs.exportCells,
  CommandIDs.exportCheckpoint,
  CommandIDs.insertAgain,
  CommandIDs.replay,
  CommandIDs.label,
  CommandIDs.pin,
  CommandIDs.remove,
  CommandIDs.verify,
  CommandIDs.resume,
  CommandIDs.refresh,
  CommandIDs.switchKernel
];

/** Of the tab of a notebook whose session goes back. */
const RUNNING = 'jp-TimeTravel-running';

const plugin: JupyterFrontEndPlugin<void> = {
  id: PLUGIN,
  description: 'The timeline of a time-travelling kernel.',
  autoStart: true,
  optional: [
    INotebookTracker,
    IConsoleTracker,
    ISettingRegistry,
    ITranslator,
    ICommandPalette,
    ILayoutRestorer,
    ILabShell,
    IToolbarWidgetRegistry,
    IRenderMimeRegistry
  ],
  activate: (
    app: JupyterFrontEnd,
    notebooks: INotebookTracker | null,
    consoles: IConsoleTracker | null,
    registry: ISettingRegistry | null,
    translator: ITranslator | null,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    labShell: ILabShell | null,
    toolbars: IToolbarWidgetRegistry | null,
    rendermime: IRenderMimeRegistry | null
  ) => {
    const trans = (translator ?? nullTranslator).load('jupyter_timetravel');
    let loaded: ISettingRegistry.ISettings | null = null;
    const settings: IActionSettings = {
      get now(): ISettings {
        return loaded === null ? DEFAULTS : { ...DEFAULTS, ...(loaded.composite as object) };
      },
      set: async (name, value) => {
        await loaded?.set(name, value);
      }
    };
    const { contents, serverSettings } = app.serviceManager;
    const server = new ServerPart(serverSettings, trans);
    const follower = new Follower(notebooks, consoles, server, trans);
    labShell?.currentChanged.connect((_, args) => follower.follow(args.newValue));
    const actions = new Actions({ settings, rendermime, contents, server, trans });
    const panel = new TimelinePanel({
      follower,
      commands: app.commands,
      settings: () => settings.now,
      server,
      trans
    });
    addCommands(app, follower, panel, actions, server, trans);
    app.shell.add(panel, 'right', { rank: 600, type: 'Time Travel' });
    restorer?.add(panel, panel.id);
    PALETTE.forEach(command => palette?.addItem({ command, category: trans.__('Time Travel') }));
    toolbars?.addFactory<NotebookPanel>('Notebook', 'timetravel', () =>
      menuButton(app.commands, trans)
    );
    const undone = new Undone();
    toolbars?.addFactory<NotebookPanel>(
      'Notebook',
      'timetravel-undone',
      notebook => new UndoneBadge(notebook, undone, trans)
    );

    const marks: Marks[] = [];
    /** What happens to a kernel is told once, also if a notebook and a console have it. */
    const isFirst = (subject: ISubject) => follower.withKernelOf(subject)[0] === subject;
    const attach = (subject: ISubject) => {
      subject.timeline.restored.connect((_, result) => {
        const isAsked = follower
          .withKernelOf(subject)
          .some(({ timeline }) => timeline.hasAskedFor(result));
        if (isFirst(subject) && !isAsked) {
          actions.tellOthers(subject, result);
        }
      });
      subject.timeline.movedMeanwhile.connect((_, record) => {
        if (isFirst(subject)) {
          actions.tellMoved(subject, record);
        }
      });
      subject.timeline.changed.connect(({ running }) => {
        // also while another notebook is in front
        const { title } = subject.widget;
        const names = title.className.split(' ').filter(name => name && name !== RUNNING);
        const className = [...names, ...(running === null ? [] : [RUNNING])].join(' ');
        if (title.className !== className) {
          title.className = className;
        }
      });
      let offered: string | null = null;
      let takeBack = () => {};
      subject.timeline.changed.connect(({ resumable, head }) => {
        if (resumable !== null && head !== offered && settings.now.notify && isFirst(subject)) {
          offered = head; // once for each kernel
          takeBack = actions.offerResume(subject, resumable);
        } else if (resumable === null) {
          takeBack(); // somebody has resumed, or has run a cell
          takeBack = () => {};
        }
      });
      if (subject.document !== null) {
        marks.push(new Marks(subject, app.commands, () => settings.now, undone, trans));
      }
    };
    for (const subject of follower.subjects) {
      attach(subject);
    }
    follower.added.connect((_, subject) => attach(subject));

    void registry?.load(PLUGIN).then(
      found => {
        loaded = found;
        const refresh = () => {
          panel.update();
          marks.forEach(mark => mark.update());
        };
        found.changed.connect(refresh);
        refresh();
      },
      error => console.error('jupyter-timetravel: its settings could not be read.', error)
    );
  }
};

export default plugin;
