/** The groups that a session is a member of, as the server has them (docs/groups.md). */
import { ISignal, Signal } from '@lumino/signaling';

import { Timeline } from './model';
import { ServerPart } from './server';
import { ICheckpoint, IRestored } from './tokens';

export interface IGroupRecord {
  id: string;
  /** `G3`. */
  title: string;
  kind: 'checkpoint' | 'safety';
  comment: string;
  complete: boolean;
  members: Record<string, { timeline: string; checkpoint: string; number: number }>;
}

export interface IGroup {
  group: string;
  members: { name: string }[];
  records: IGroupRecord[];
}

/** One moment of a group: what a checkpoint of one member belongs to. */
export interface IMoment {
  group: string;
  record: IGroupRecord;
}

export interface IGroupRestored {
  group: string;
  record: IGroupRecord;
  members: Record<string, IRestored>;
  text: string;
}

export class Groups {
  constructor(
    private _timeline: Timeline,
    private _server: ServerPart
  ) {
    _timeline.regrouped.connect(() => void this.refresh());
    void this.refresh();
  }

  /** They are others now, or have other records. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Of the groups, by name. */
  get names(): string[] {
    return this._groups.map(one => one.group);
  }

  /** What a checkpoint belongs to; of several moments the newest. */
  of(record: ICheckpoint): IMoment | null {
    return this._moments.get(record.id) ?? null;
  }

  async refresh(): Promise<void> {
    const round = ++this._round;
    const kernel = this._timeline.kernel;
    let groups: IGroup[] = [];
    const isReady = kernel !== null && this._timeline.state === 'ready';
    if (isReady && (await this._server.find())) {
      try {
        const path = `groups?session=${encodeURIComponent(kernel.id)}`;
        groups = (await this._server.ask<{ groups: IGroup[] }>(path)).groups;
      } catch (error) {
        // a session that this server does not know is in no group
        console.debug('jupyter-timetravel: the groups could not be read.', error);
      }
    }
    if (round === this._round) {
      this._groups = groups;
      this._moments = new Map(
        groups.flatMap(({ group, records }) =>
          records.flatMap(record =>
            Object.values(record.members).map(held => [held.checkpoint, { group, record }])
          )
        )
      );
      this._changed.emit();
    }
  }

  /** Capture all members once all are at rest. Throws Refused. */
  async checkpoint(group: string, comment: string): Promise<IGroupRecord> {
    const path = `groups/${encodeURIComponent(group)}/checkpoints`;
    return (await this._server.ask<{ record: IGroupRecord }>(path, { comment })).record;
  }

  /** Take all members back to a moment; `dry`: only tell what that would change. Throws Refused. */
  async restore({ group, record }: IMoment, dry: boolean): Promise<IGroupRestored> {
    const path = `groups/${encodeURIComponent(group)}/restore`;
    const asked = () => this._server.ask<IGroupRestored>(path, { record: record.id, dry_run: dry });
    return dry ? asked() : this._timeline.takenBack(asked);
  }

  /** Take all members back to before the last restore of the group. Throws Refused. */
  async undo(group: string): Promise<IGroupRestored> {
    const path = `groups/${encodeURIComponent(group)}/restore`;
    return this._timeline.takenBack(() => this._server.ask<IGroupRestored>(path, { undo: true }));
  }

  private _changed = new Signal<this, void>(this);
  private _groups: IGroup[] = [];
  private _moments = new Map<string, IMoment>();
  private _round = 0;
}

/** Who is in a moment of a group, each with the number of its checkpoint. */
export function membersOf({ record }: IMoment): string {
  return Object.entries(record.members)
    .map(([name, held]) => `${name} #${held.number}`)
    .join(', ');
}
