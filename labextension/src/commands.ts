/** The commands by name: palette, menus, shortcuts and the panel's buttons all come here. */
import { JupyterFrontEnd } from '@jupyterlab/application';
import { TranslationBundle } from '@jupyterlab/translation';
import { ReadonlyPartialJSONObject } from '@lumino/coreutils';

import { Actions } from './actions';
import { Follower, ISubject } from './follow';
import { beforeIcon, timeTravelIcon } from './icons';
import { TimelinePanel } from './panel';
import { ServerPart } from './server';
import { CommandIDs, holds, ICheckpoint } from './tokens';

type Args = ReadonlyPartialJSONObject;

export function addCommands(
  app: JupyterFrontEnd,
  follower: Follower,
  panel: TimelinePanel,
  actions: Actions,
  server: ServerPart,
  trans: TranslationBundle
): void {
  const { commands, shell } = app;

  const subject = (): ISubject | null =>
    follower.current?.timeline.state === 'ready' ? follower.current : null;
  /** By id in the arguments, else the row that is selected. Ids of another kernel name nothing. */
  const target = (args: Args): ICheckpoint | null =>
    typeof args.checkpoint === 'string'
      ? (subject()?.timeline.records.get(args.checkpoint) ?? null)
      : panel.selected;
  const isFree = () => subject() !== null && subject()!.timeline.running === null;

  /** A command about one checkpoint. */
  const addAbout = (
    id: string,
    label: string | ((record: ICheckpoint | null) => string),
    work: (subject: ISubject, record: ICheckpoint, args: Args) => unknown,
    can: (record: ICheckpoint) => boolean = () => true,
    isOffered: () => boolean = () => true
  ) =>
    commands.addCommand(id, {
      label: args => (typeof label === 'string' ? label : label(target(args))),
      isEnabled: args => {
        const record = target(args);
        return record !== null && isFree() && isOffered() && can(record);
      },
      isVisible: isOffered,
      execute: args => {
        const [on, record] = [subject(), target(args)];
        return on !== null && record !== null ? work(on, record, args) : undefined;
      }
    });

  commands.addCommand(CommandIDs.open, {
    label: trans.__('Show the Timeline'),
    caption: trans.__('Show the checkpoints of this notebook'),
    icon: timeTravelIcon,
    execute: () => shell.activateById(panel.id)
  });
  commands.addCommand(CommandIDs.checkpoint, {
    label: trans.__('Checkpoint Now…'),
    isEnabled: isFree,
    execute: () => subject() && actions.checkpoint(subject()!)
  });
  const groups = () => subject()?.groups.names ?? [];
  commands.addCommand(CommandIDs.checkpointGroup, {
    label: () =>
      groups().length === 1
        ? trans.__('Checkpoint the Group %1…', groups()[0])
        : trans.__('Checkpoint a Group…'),
    caption: trans.__('Keep all notebooks of the group, at one moment'),
    isEnabled: () => isFree() && groups().length > 0,
    isVisible: () => groups().length > 0,
    execute: () => subject() && actions.checkpointGroup(subject()!)
  });
  commands.addCommand(CommandIDs.undo, {
    label: trans.__('Undo the Last Restore'),
    isEnabled: () => isFree() && subject()!.timeline.canUndo,
    execute: () => subject() && actions.undo(subject()!)
  });
  commands.addCommand(CommandIDs.resume, {
    label: trans.__('Resume the Session before This Kernel'),
    isEnabled: () => isFree() && subject()!.timeline.resumable !== null,
    execute: () => subject() && actions.resume(subject()!)
  });
  commands.addCommand(CommandIDs.refresh, {
    label: trans.__('Read the Timeline Anew'),
    isEnabled: () => follower.current !== null,
    execute: () => follower.current?.timeline.refresh()
  });
  commands.addCommand(CommandIDs.switchKernel, {
    label: trans.__('Switch to a Kernel with Time Travel'),
    isEnabled: args => {
      const timeline = follower.current?.timeline;
      return timeline?.state === 'absent'
        ? typeof args.name === 'string'
        : timeline?.state === 'unmanaged' && timeline.alternatives.length > 0;
    },
    execute: args => {
      const timeline = follower.current?.timeline;
      const name = (args.name as string | undefined) ?? timeline?.alternatives[0]?.name;
      return name === undefined ? undefined : timeline?.switchKernel(name);
    }
  });

  addAbout(
    CommandIDs.restore,
    trans.__('Go Back to It'),
    (on, record) => actions.restore(on, record),
    record => holds(record).memory || holds(record).files
  );
  addAbout(
    CommandIDs.restoreMemory,
    trans.__('Only the Memory'),
    (on, record) => actions.restore(on, record, 'process'),
    record => holds(record).memory
  );
  addAbout(
    CommandIDs.restoreFiles,
    trans.__('Only the Files'),
    (on, record) => actions.restore(on, record, 'files'),
    record => holds(record).files
  );
  addAbout(
    CommandIDs.asItWas,
    trans.__('The Notebook as It Was'),
    (on, record) => actions.asItWas(on, record),
    record => subject()?.document?.has(record) ?? false
  );
  addAbout(
    CommandIDs.restoreGroup,
    trans.__('Take the Whole Group Back…'),
    (on, record) => actions.restoreGroup(on, record),
    record => (subject()?.groups.of(record) ?? null) !== null
  );
  addAbout(CommandIDs.label, trans.__('Label…'), (on, record) => actions.label(on, record));
  addAbout(
    CommandIDs.pin,
    record => (record?.pinned ? trans.__('Unpin') : trans.__('Pin')),
    (on, record) => actions.pin(on, record)
  );
  addAbout(
    CommandIDs.remove,
    trans.__('Delete…'),
    (on, record) => actions.remove(on, record),
    record => !record.pinned && record.id !== subject()?.timeline.head
  );
  addAbout(CommandIDs.comparePresent, trans.__('Compare with the Present'), (on, record) =>
    actions.compare(on, record, null)
  );
  addAbout(CommandIDs.compare, trans.__('Compare with Another…'), (on, record) =>
    actions.compareWith(on, record)
  );
  addAbout(
    CommandIDs.insertAgain,
    trans.__('Insert Its Cell'),
    (on, record) => actions.insertAgain(on, record),
    record => subject()?.document?.isWithout(record) ?? false
  );
  addAbout(
    CommandIDs.changed,
    trans.__('What It Changed'),
    (on, record) => actions.whatItChanged(on, record),
    record => subject()?.timeline.records.has(record.parent ?? '') ?? false
  );
  addAbout(CommandIDs.exportCells, trans.__('Export Its Cells…'), (on, record) =>
    actions.exportCells(on, record)
  );
  addAbout(
    CommandIDs.exportCheckpoint,
    trans.__('Export the Checkpoint…'),
    (on, record) => actions.exportCheckpoint(on, record),
    record => holds(record).memory || holds(record).files,
    () => server.isHere
  );
  addAbout(
    CommandIDs.replay,
    trans.__('Replay from Here…'),
    (on, record) => actions.replay(on, record),
    record => holds(record).memory
  );
  addAbout(
    CommandIDs.bring,
    trans.__('Bring Variables into the Present'),
    (on, record, args) =>
      actions.bring(on, record, { names: (args.names as string[] | undefined) ?? [] }),
    record => holds(record).memory
  );
  addAbout(
    CommandIDs.verify,
    trans.__('Verify'),
    (on, record) => actions.verify(on, record),
    record => record.captures.some(c => c.kind === 'namespace' && c.state === 'ready')
  );

  /** Of the cell with the id in the arguments, else of the active one. */
  const beforeCell = (args: Args): ICheckpoint | null => {
    const on = subject();
    const id = args.cell ?? on?.document?.panel.content.activeCell?.model.id;
    return on && typeof id === 'string' ? on.timeline.beforeCell(id) : null;
  };
  commands.addCommand(CommandIDs.beforeCell, {
    label: trans.__('Go Back to before This Cell'),
    icon: beforeIcon,
    isEnabled: args => isFree() && beforeCell(args) !== null,
    execute: args => {
      const [on, record] = [subject(), beforeCell(args)];
      return on && record ? actions.restore(on, record) : undefined;
    }
  });

  // one by one: what has none of them, such as each button of each toolbar, need not draw itself
  const changed = () => Object.values(CommandIDs).forEach(id => commands.notifyCommandChanged(id));
  panel.selectedChanged.connect(changed);
  follower.currentChanged.connect(changed);
  server.changed.connect(changed);
  const watch = (on: ISubject) => {
    on.timeline.changed.connect(changed);
    on.groups.changed.connect(changed);
  };
  follower.added.connect((_, on) => watch(on));
  for (const on of follower.subjects) {
    watch(on);
  }
}
