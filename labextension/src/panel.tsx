/** The sidebar: the timeline of the notebook or console that is active, or was last. */
import { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import { CommandRegistry } from '@lumino/commands';
import { Message } from '@lumino/messaging';
import { ISignal, Signal } from '@lumino/signaling';
import { Menu } from '@lumino/widgets';
import React from 'react';

import { Details } from './details';
import { Follower, ISubject } from './follow';
import { layOut } from './graph';
import { timeTravelIcon } from './icons';
import { Timeline } from './model';
import { Rows } from './rows';
import { IProblem, ServerPart } from './server';
import { CommandIDs, ICheckpoint, ISettings } from './tokens';

export interface IPanelOptions {
  follower: Follower;
  commands: CommandRegistry;
  settings: () => ISettings;
  server: ServerPart;
  trans: TranslationBundle;
}

export class TimelinePanel extends ReactWidget {
  constructor(private _options: IPanelOptions) {
    super();
    this.id = 'jp-timetravel-panel';
    this.addClass('jp-TimeTravel');
    this.title.icon = timeTravelIcon;
    this.title.caption = _options.trans.__('Time travel');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', _options.trans.__('Time travel'));
    const { follower, server } = _options;
    follower.currentChanged.connect(this._onCurrent, this);
    server.changed.connect(this.update, this);
    this._onCurrent();
  }

  /** The checkpoint that commands without an argument mean. */
  get selected(): ICheckpoint | null {
    return this._shown?.timeline.records.get(this._selected ?? '') ?? null;
  }

  get selectedChanged(): ISignal<this, void> {
    return this._selectedChanged;
  }

  select(record: ICheckpoint | null): void {
    this._selected = record?.id ?? null;
    this._selectedChanged.emit();
    this.update();
  }

  /** Show the text that filters, or what else settings decide, anew. */
  setFilter(text: string): void {
    this._filter = text;
    this.update();
  }

  protected render(): JSX.Element {
    const { commands, settings, server, trans } = this._options;
    return (
      <PanelView
        subject={this._shown}
        commands={commands}
        problem={server.problem}
        dismiss={() => server.dismiss()}
        showAutomatic={settings().showAutomatic}
        filter={this._filter}
        setFilter={text => this.setFilter(text)}
        selected={this.selected}
        select={record => this.select(record)}
        menu={(x, y) => this._openMenu(x, y)}
        want={records => {
          if (this.isVisible) {
            this._shown?.changes.want(records);
          }
        }}
        trans={trans}
      />
    );
  }

  /** Draw, unless nobody sees it: it is drawn when it is shown, and asks for what is in view. */
  protected onUpdateRequest(message: Message): void {
    if (this.isVisible) {
      super.onUpdateRequest(message);
    }
  }

  protected onAfterShow(): void {
    this.update();
  }

  private _onCurrent(): void {
    this._shown?.timeline.changed.disconnect(this._onChanged, this);
    this._shown?.changes.changed.disconnect(this.update, this);
    this._shown?.groups.changed.disconnect(this.update, this);
    this._shown?.widget.title.changed.disconnect(this.update, this);
    this._shown = this._options.follower.current;
    this._shown?.timeline.changed.connect(this._onChanged, this);
    this._shown?.changes.changed.connect(this.update, this);
    this._shown?.groups.changed.connect(this.update, this);
    this._shown?.widget.title.changed.connect(this.update, this);
    this._selected = null;
    this._selectedChanged.emit();
    this._onChanged(); // at once: what is clicked must be what is meant
  }

  private _onChanged(): void {
    const { dataset } = this.node;
    dataset.state = this._shown?.timeline.state ?? 'none';
    dataset.running = String(this._shown?.timeline.running != null);
    this.update();
  }

  private _openMenu(x: number, y: number): void {
    const { commands } = this._options;
    const menu = new Menu({ commands });
    const args = { checkpoint: this._selected };
    const add = (...ids: string[]) => ids.forEach(command => menu.addItem({ command, args }));
    add(CommandIDs.restore, CommandIDs.restoreMemory, CommandIDs.restoreFiles, CommandIDs.asItWas);
    if (commands.isEnabled(CommandIDs.restoreGroup, args)) {
      add(CommandIDs.restoreGroup);
    }
    menu.addItem({ type: 'separator' });
    add(CommandIDs.changed, CommandIDs.comparePresent, CommandIDs.compare, CommandIDs.replay);
    menu.addItem({ type: 'separator' });
    add(
      CommandIDs.exportCells,
      CommandIDs.exportCheckpoint,
      CommandIDs.insertAgain,
      CommandIDs.label,
      CommandIDs.pin,
      CommandIDs.verify,
      CommandIDs.remove
    );
    menu.aboutToClose.connect(() => setTimeout(() => menu.dispose(), 0));
    menu.open(x, y);
  }

  private _shown: ISubject | null = null;
  private _selected: string | null = null;
  private _filter = '';
  private _selectedChanged = new Signal<this, void>(this);
}

interface IViewProps {
  subject: ISubject | null;
  commands: CommandRegistry;
  /** Of the server part. */
  problem: IProblem | null;
  dismiss(): void;
  showAutomatic: boolean;
  filter: string;
  setFilter(text: string): void;
  selected: ICheckpoint | null;
  select(record: ICheckpoint | null): void;
  menu(x: number, y: number): void;
  /** These rows are in view. */
  want(records: ICheckpoint[]): void;
  trans: TranslationBundle;
}

function PanelView(props: IViewProps): JSX.Element {
  const { subject, commands, trans } = props;
  if (subject === null) {
    return <p className="jp-TimeTravel-empty">{trans.__('Open a notebook or a console.')}</p>;
  }
  const { timeline } = subject;
  const isReady = timeline.state === 'ready';
  const button = (id: string, text: string) => (
    <button
      className="jp-mod-styled jp-mod-minimal"
      data-command={id}
      title={commands.caption(id) || commands.label(id)}
      disabled={!commands.isEnabled(id)}
      onClick={() => void commands.execute(id)}
    >
      {text}
    </button>
  );
  return (
    <>
      <header className="jp-TimeTravel-header">
        <h2 dir="auto" data-document={subject.widget.title.label}>
          {subject.widget.title.label}
        </h2>
        {isReady && (
          <div role="toolbar" aria-label={trans.__('Time travel')} className="jp-TimeTravel-tools">
            {button(CommandIDs.checkpoint, trans.__('Checkpoint'))}
            {button(CommandIDs.undo, trans.__('Undo restore'))}
            <input
              type="search"
              placeholder={trans.__('Filter')}
              aria-label={trans.__('Filter checkpoints by code, comment or label')}
              value={props.filter}
              onChange={event => props.setFilter(event.target.value)}
            />
          </div>
        )}
      </header>
      {props.problem && <Problem {...props.problem} dismiss={props.dismiss} trans={trans} />}
      <Progress timeline={timeline} trans={trans} />
      {isReady && timeline.notice && (
        <p className="jp-TimeTravel-warning" role="status">
          {timeline.notice}
        </p>
      )}
      {isReady && timeline.resumable && (
        <div className="jp-TimeTravel-offer">
          <p>{trans.__('The variables of the session before this kernel are on the disk.')}</p>
          <button
            className="jp-mod-styled jp-mod-accept"
            data-command={CommandIDs.resume}
            onClick={() => void commands.execute(CommandIDs.resume)}
          >
            {trans.__('Resume from #%1', timeline.resumable.number)}
          </button>
        </div>
      )}
      {isReady ? (
        <List {...props} timeline={timeline} />
      ) : (
        <Absence {...props} timeline={timeline} />
      )}
    </>
  );
}

/** What is wrong with the server part. */
function Problem(props: IProblem & { dismiss(): void; trans: TranslationBundle }): JSX.Element {
  const { text, command, dismiss, trans } = props;
  return (
    <div className="jp-TimeTravel-offer jp-TimeTravel-problem" role="status">
      <p>{text}</p>
      {command && (
        <>
          <p>
            {trans.__(
              'In a terminal of the server, in the environment of JupyterLab; then start the server anew, and load this page anew:'
            )}
          </p>
          <code dir="ltr">{command}</code>
        </>
      )}
      <button className="jp-mod-styled" onClick={dismiss}>
        {trans.__('Do not show this again')}
      </button>
    </div>
  );
}

function List(props: IViewProps & { timeline: Timeline }): JSX.Element {
  const { timeline, commands, selected, trans, showAutomatic } = props;
  const filter = props.filter.trim().toLowerCase();
  const wanted = [...timeline.records.values()].filter(
    record =>
      (showAutomatic || !record.is_auto || record.id === timeline.head) &&
      (!filter ||
        `#${record.number}\n${record.code}\n${record.comment}\n${record.label ?? ''}`
          .toLowerCase()
          .includes(filter))
  );
  const rows = layOut(wanted, timeline.parents, timeline.head);
  const run = (id: string, record: ICheckpoint) =>
    void commands.execute(id, { checkpoint: record.id });
  return (
    <>
      {rows.length === 0 && (
        <p className="jp-TimeTravel-empty">
          {timeline.records.size === 0
            ? trans.__('No checkpoint yet: each cell that runs leaves one.')
            : trans.__('Nothing like that.')}
        </p>
      )}
      <Rows
        rows={rows}
        selected={selected?.id ?? null}
        trans={trans}
        disabled={timeline.running !== null}
        select={props.select}
        restore={record => run(CommandIDs.restore, record)}
        remove={record => run(CommandIDs.remove, record)}
        menu={(_, x, y) => props.menu(x, y)}
        changes={props.subject!.changes}
        groups={props.subject!.groups}
        want={props.want}
      />
      {selected && (
        <Details
          timeline={timeline}
          record={selected}
          moment={props.subject!.groups.of(selected)}
          commands={commands}
          trans={trans}
          close={() => props.select(null)}
        />
      )}
    </>
  );
}

function Progress(props: { timeline: Timeline; trans: TranslationBundle }): JSX.Element | null {
  const { running } = props.timeline;
  if (running === null) {
    return null;
  }
  const { trans } = props;
  const steps: Record<string, string> = {
    plan: trans.__('finding what differs'),
    safety: trans.__('keeping the present'),
    stop: trans.__('stopping the process'),
    filesystem: trans.__('bringing back files'),
    process: trans.__('waking the process'),
    answer: trans.__('answering')
  };
  return (
    <p className="jp-TimeTravel-progress" role="status" data-step={running.step}>
      <progress aria-label={trans.__('Going back')} />
      {running.step === 'replay'
        ? trans.__('Replaying from #%1: %2', running.record.number, running.code ?? '')
        : trans.__('Going back to #%1: %2', running.record.number, steps[running.step] ?? '')}
    </p>
  );
}

/** Why there is no list, and what to do. */
function Absence(props: IViewProps & { timeline: Timeline }): JSX.Element {
  const { timeline, commands, trans } = props;
  switch (timeline.state) {
    case 'unmanaged': {
      const offers = timeline.alternatives;
      return (
        <div className="jp-TimeTravel-empty">
          <p>{trans.__('This kernel has no time travel.')}</p>
          {offers.length === 0 && (
            <p>
              {trans.__(
                'No kernel of this server has. In the environment of your notebooks, run: jupyter timetravel install --user'
              )}
            </p>
          )}
          {offers.map(({ name, title }) => (
            <button
              key={name}
              className="jp-mod-styled jp-mod-accept"
              data-command={CommandIDs.switchKernel}
              onClick={() => void commands.execute(CommandIDs.switchKernel, { name })}
            >
              {trans.__('Switch to %1', title)}
            </button>
          ))}
          {offers.length > 0 && <p>{trans.__('What the present kernel holds is lost by that.')}</p>}
        </div>
      );
    }
    case 'failed':
      return (
        <div className="jp-TimeTravel-empty" role="alert">
          <p>{timeline.problem}</p>
          <button
            className="jp-mod-styled"
            data-command={CommandIDs.refresh}
            onClick={() => void commands.execute(CommandIDs.refresh)}
          >
            {trans.__('Try again')}
          </button>
        </div>
      );
    case 'absent':
      return (
        <div className="jp-TimeTravel-empty">
          {timeline.hasDied && (
            <p role="alert">
              {trans.__(
                'The kernel has died, or could not start. In a terminal of the server, jupyter timetravel doctor says which package is missing, and in which Python.'
              )}
            </p>
          )}
          <p>{trans.__('There is no kernel. What is on the disk can be resumed in a new one.')}</p>
          <button
            className="jp-mod-styled jp-mod-accept"
            data-command={CommandIDs.switchKernel}
            onClick={() =>
              void commands.execute(CommandIDs.switchKernel, { name: timeline.lastKernel })
            }
          >
            {trans.__('Start the kernel')}
          </button>
        </div>
      );
    default:
      return (
        <p className="jp-TimeTravel-empty" role="status">
          {trans.__('Connecting to the kernel…')}
        </p>
      );
  }
}
