/** What a row and the details say of a checkpoint: size, changes, how it was made, badges. */
import { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import { IMoment, membersOf } from './groups';
import { captureOf, ICapture, IChanges, ICheckpoint, ICounted, IMAGE } from './tokens';
import { size } from './times';

/** How much it holds, with what that is made of to point at. */
export function Size(props: { record: ICheckpoint; trans: TranslationBundle }): JSX.Element | null {
  const held = props.record.captures.filter(one => one.state === 'ready' && one.bytes > 0);
  if (held.length === 0) {
    return null; // not known yet, or nothing
  }
  const kinds = kindsOf(props.trans);
  const lines = held.map(one => `${kinds[one.engine] ?? kinds[one.kind]}: ${size(one.bytes)}`);
  return (
    <span className="jp-TimeTravel-size" title={lines.join('\n')}>
      <bdi>{size(held.reduce((sum, one) => sum + one.bytes, 0))}</bdi>
    </span>
  );
}

/** What captures are of, by engine or kind. */
export function kindsOf(trans: TranslationBundle): Record<string, string> {
  return {
    fork: trans.__('Memory, at hand'),
    process: trans.__('Memory, on the disk'),
    overlay: trans.__('Packages, and files elsewhere'),
    filesystem: trans.__("Files of the notebook's folder"),
    namespace: trans.__('Variables, on the disk'),
    document: trans.__('Cells of the notebook')
  };
}

/** How much a checkpoint changed, with the names to point at. */
export function Changed(props: {
  changes: IChanges | null;
  trans: TranslationBundle;
}): JSX.Element | null {
  const { changes, trans } = props;
  if (changes === null) {
    return null;
  }
  const { variables, files, packages } = changes;
  const parts: [string, ICounted | null][] = [
    [trans._n('%1 variable', '%1 variables', variables.count), variables],
    [trans._n('%1 file', '%1 files', files?.count ?? 0), files],
    [trans._n('%1 package', '%1 packages', packages?.count ?? 0), packages]
  ];
  const told = parts.filter(([, counted]) => (counted?.count ?? 0) > 0);
  return (
    <span className="jp-TimeTravel-changed" data-known="true">
      {told.length === 0 && (
        <span>
          <bdi>{trans.__('no change')}</bdi>
        </span>
      )}
      {told.map(([text, counted]) => (
        <span key={text} title={namesOf(counted!, trans)}>
          <bdi>{text}</bdi>
        </span>
      ))}
    </span>
  );
}

function namesOf(counted: ICounted, trans: TranslationBundle): string {
  const lines = counted.names.map(([sign, name]) => `${sign === '-' ? '−' : sign} ${name}`);
  const more = counted.count - lines.length;
  return [...lines, ...(more > 0 ? [trans.__('and %1 more', more)] : [])].join('\n');
}

export function reasonOf(record: ICheckpoint, trans: TranslationBundle): string {
  switch (record.reason) {
    case 'cell':
      return trans.__('auto');
    case 'safety':
      return trans.__('before a restore');
    case 'part':
      return trans.__('after a restore of a part');
    case 'restart':
      return trans.__('before a restart');
    case 'start':
      return trans.__('start');
    default:
      return trans.__('by hand');
  }
}

export function Badge(props: { name: string; text: string; hint?: string }): JSX.Element {
  return (
    <span className={`jp-TimeTravel-badge jp-mod-${props.name}`} title={props.hint}>
      {props.text}
    </span>
  );
}

/** The group that a checkpoint belongs to, and who else is in it. */
export function GroupBadge(props: { moment: IMoment; trans: TranslationBundle }): JSX.Element {
  const { moment, trans } = props;
  const hint = trans.__('Group %1, %2: %3', moment.group, moment.record.title, membersOf(moment));
  return <Badge name="group" text={moment.group} hint={hint} />;
}

/** How fast and for how long a checkpoint can be gone back to. */
export function Badges(props: { record: ICheckpoint; trans: TranslationBundle }): JSX.Element {
  const { record, trans } = props;
  const memory = record.captures.filter(c => c.kind === 'process' && c.state === 'ready');
  const namespace = captureOf(record, 'namespace');
  return (
    <>
      {memory.some(capture => capture.engine !== IMAGE) && (
        <Badge
          name="instant"
          text={trans.__('instant')}
          hint={trans.__('The frozen process is there: all of the memory comes back at once.')}
        />
      )}
      {memory.some(capture => capture.engine === IMAGE) && (
        <Badge
          name="exact"
          text={trans.__('exact')}
          hint={trans.__('An image of the whole process is on the disk.')}
        />
      )}
      {namespace !== undefined && <OnDisk capture={namespace} trans={trans} />}
      {namespace?.verified_at && (
        <Badge
          name="verified"
          text={trans.__('verified')}
          hint={trans.__('Loaded for real and compared: %1', namespace.verified_at)}
        />
      )}
    </>
  );
}

function OnDisk(props: { capture: ICapture; trans: TranslationBundle }): JSX.Element {
  const { capture, trans } = props;
  const lost = capture.not_captured.map(note => `${note.subject}: ${note.detail}`);
  switch (capture.state) {
    case 'pending':
      return <Badge name="pending" text={trans.__('being written')} />;
    case 'failed':
    case 'evicted':
      return (
        <Badge name="failed" text={trans.__('not on disk')} hint={capture.error ?? undefined} />
      );
    default:
      return lost.length > 0 ? (
        <Badge
          name="partial"
          text={trans.__('on disk, but %1', lost.length)}
          hint={`${trans.__('These variables could not be kept:')}\n${lost.join('\n')}`}
        />
      ) : (
        <Badge
          name="durable"
          text={trans.__('on disk')}
          hint={trans.__('The variables outlive the kernel: %1', size(capture.bytes))}
        />
      );
  }
}
