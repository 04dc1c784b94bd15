/** Looking into one difference: a text file's diff, images and frames before and after, a cell. */
import * as nbformat from '@jupyterlab/nbformat';
import { IRenderMimeRegistry, MimeModel } from '@jupyterlab/rendermime';
import { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';
import { structuredPatch } from 'diff';
import React, { useEffect, useRef, useState } from 'react';

import { IKeptCell, sourceOf } from './cells';
import { Timeline } from './model';
import { IChange, ICheckpoint, IShownFile } from './tokens';
import { size } from './times';

/** The two states that are compared; null: the present. */
export interface ISides {
  timeline: Timeline;
  before: ICheckpoint | null;
  after: ICheckpoint | null;
  rendermime: IRenderMimeRegistry | null;
}

interface IInspectProps {
  sides: ISides;
  trans: TranslationBundle;
}

/** What is asked of the kernel when it is shown, and shown when it is there. */
export function Loaded<T>(props: {
  load(): Promise<T>;
  trans: TranslationBundle;
  children(value: T): React.ReactNode;
}): JSX.Element {
  const [value, setValue] = useState<{ value: T } | { error: string } | null>(null);
  useEffect(() => {
    let isLate = false;
    props.load().then(
      found => isLate || setValue({ value: found }),
      error => isLate || setValue({ error: (error as Error).message })
    );
    return () => {
      isLate = true;
    };
  }, []);
  if (value === null) {
    return <p role="status">{props.trans.__('Reading…')}</p>;
  }
  return 'error' in value ? (
    <p className="jp-TimeTravel-warning" role="alert">
      {value.error}
    </p>
  ) : (
    <>{props.children(value.value)}</>
  );
}

/** Before and after, side by side; below each other where it is narrow. */
function BothSides(props: {
  trans: TranslationBundle;
  before: React.ReactNode;
  after: React.ReactNode;
}): JSX.Element {
  const { trans } = props;
  return (
    <div className="jp-TimeTravel-sides">
      <figure data-side="before">
        <figcaption>{trans.__('before')}</figcaption>
        {props.before}
      </figure>
      <figure data-side="after">
        <figcaption>{trans.__('after')}</figcaption>
        {props.after}
      </figure>
    </div>
  );
}

/** Lines that differ, with three around them. */
export function TextPatch(props: {
  before: string;
  after: string;
  trans: TranslationBundle;
}): JSX.Element {
  const { before, after, trans } = props;
  if (before === after) {
    return <p>{trans.__('The text is the same.')}</p>;
  }
  const patch = structuredPatch('', '', before, after, '', '', {
    context: 3,
    maxEditLength: 4000,
    timeout: 1000
  });
  if (patch === undefined) {
    return <p>{trans.__('There is too much that differs to be shown line by line.')}</p>;
  }
  return (
    <pre className="jp-TimeTravel-patch" dir="ltr" tabIndex={0}>
      {patch.hunks.map((hunk, at) => (
        <React.Fragment key={at}>
          <span className="jp-mod-hunk">
            {`@@ -${hunk.oldStart},${hunk.oldLines} +${hunk.newStart},${hunk.newLines} @@\n`}
          </span>
          {hunk.lines.map((line, place) => (
            <span key={place} data-sign={line[0]}>
              {`${line}\n`}
            </span>
          ))}
        </React.Fragment>
      ))}
    </pre>
  );
}

export function FileView(props: IInspectProps & { change: IChange }): JSX.Element {
  const { sides, change, trans } = props;
  const load = () =>
    Promise.all(
      [sides.before, sides.after].map(at => sides.timeline.file(at, change.path, change.root))
    );
  return (
    <Loaded load={load} trans={trans}>
      {([before, after]) => {
        const isText = [before, after].every(file => !file.exists || file.text !== null);
        if (!isText) {
          return (
            <BothSides
              trans={trans}
              before={<Content file={before} trans={trans} />}
              after={<Content file={after} trans={trans} />}
            />
          );
        }
        return (
          <>
            <TextPatch before={before.text ?? ''} after={after.text ?? ''} trans={trans} />
            {(before.truncated || after.truncated) && (
              <p>{trans.__('The file is long: only its beginning was compared.')}</p>
            )}
          </>
        );
      }}
    </Loaded>
  );
}

function Content(props: { file: IShownFile; trans: TranslationBundle }): JSX.Element {
  const { file, trans } = props;
  if (!file.exists) {
    return <p>{trans.__('It is not there.')}</p>;
  }
  if (file.data !== null) {
    return <img src={`data:${file.mime};base64,${file.data}`} alt={file.path} />;
  }
  return file.text !== null ? (
    <pre dir="ltr" tabIndex={0}>
      {file.text}
    </pre>
  ) : (
    <p>{trans.__('%1 of another kind than text or an image.', size(file.size))}</p>
  );
}

/** A variable as the notebook would show it. */
export function VariableView(
  props: IInspectProps & { name: string; sign: '+' | '−' | '~' }
): JSX.Element {
  const { sides, name, sign, trans } = props;
  const { timeline } = sides;
  const one = (at: ICheckpoint | null, isThere: boolean) => {
    // the present is what its last checkpoint holds
    const record = at ?? timeline.records.get(timeline.head ?? '');
    return !isThere || record === undefined ? (
      <p>{trans.__('It is not there.')}</p>
    ) : (
      <Loaded load={() => timeline.show(record, name)} trans={trans}>
        {shown =>
          shown.data === undefined ? (
            <p className="jp-TimeTravel-warning">{shown.error}</p>
          ) : (
            <Mime data={shown.data} rendermime={sides.rendermime} label={name} />
          )
        }
      </Loaded>
    );
  };
  return (
    <BothSides
      trans={trans}
      before={one(sides.before, sign !== '+')}
      after={one(sides.after, sign !== '−')}
    />
  );
}

export function CellView(
  props: IInspectProps & { before: IKeptCell | null; after: IKeptCell | null }
): JSX.Element {
  const { sides, before, after, trans } = props;
  const sources = [before, after].map(cell => (cell === null ? '' : sourceOf(cell.json)));
  const outputs = [before, after].map(
    cell => (cell?.json.outputs ?? []) as unknown as nbformat.IOutput[]
  );
  const hasOutputs = outputs.some(list => list.length > 0);
  const side = (list: nbformat.IOutput[]) =>
    list.map((output, at) => (
      <Mime
        key={at}
        data={bundleOf(output)}
        rendermime={sides.rendermime}
        label={trans.__('output')}
      />
    ));
  return (
    <>
      <TextPatch before={sources[0]} after={sources[1]} trans={trans} />
      {hasOutputs && <BothSides trans={trans} before={side(outputs[0])} after={side(outputs[1])} />}
    </>
  );
}

/** The MIME types of an output, for a renderer. */
function bundleOf(output: nbformat.IOutput): Record<string, any> {
  const text = (value: unknown) => (Array.isArray(value) ? value.join('') : String(value ?? ''));
  switch (output.output_type) {
    case 'stream':
      return { [`application/vnd.jupyter.${output.name}`]: text(output.text) };
    case 'error': {
      const told = text((output.traceback as string[] | undefined)?.map(line => `${line}\n`));
      return { 'application/vnd.jupyter.stderr': told || `${output.ename}: ${output.evalue}` };
    }
    default:
      return Object.fromEntries(
        Object.entries((output.data ?? {}) as Record<string, unknown>).map(([mime, value]) => [
          mime,
          Array.isArray(value) ? value.join('') : value
        ])
      );
  }
}

/** Shown by the front end's renderers, not trusted: no script of it runs. */
function Mime(props: {
  data: Record<string, any>;
  rendermime: IRenderMimeRegistry | null;
  label: string;
}): JSX.Element {
  const host = useRef<HTMLDivElement>(null);
  const { data, rendermime } = props;
  const image = ['image/png', 'image/jpeg'].find(mime => typeof data[mime] === 'string');
  const mime = image ? undefined : rendermime?.preferredMimeType(data, 'ensure');
  useEffect(() => {
    if (mime === undefined || rendermime === null) {
      return;
    }
    const renderer = rendermime.createRenderer(mime);
    const model = new MimeModel({ data, trusted: false });
    Widget.attach(renderer, host.current!);
    void renderer.renderModel(model).then(
      () => host.current?.setAttribute('data-rendered', mime),
      error => (renderer.node.textContent = (error as Error).message)
    );
    return () => renderer.dispose();
  }, []);
  if (image !== undefined) {
    return <img src={`data:${image};base64,${data[image]}`} alt={props.label} />;
  }
  return mime !== undefined ? (
    <div
      ref={host}
      className="jp-TimeTravel-mime"
      tabIndex={0}
      role="group"
      aria-label={props.label}
    />
  ) : (
    <pre dir="auto" tabIndex={0}>
      {String(data['text/plain'] ?? '')}
    </pre>
  );
}
