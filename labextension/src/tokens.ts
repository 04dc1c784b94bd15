/** What travels over the wire (docs/protocol.md), and the names of our own commands. */
import type * as nbformat from '@jupyterlab/nbformat';

export const PLUGIN = 'jupyter-timetravel:plugin';
export const KERNEL = 'python3-timetravel';
export const PROVISIONER = 'timetravel-provisioner';

export interface INote {
  kind: string;
  subject: string;
  detail: string;
}

export interface ICapture {
  kind: 'process' | 'filesystem' | 'namespace' | 'document';
  engine: string;
  state: 'pending' | 'ready' | 'failed' | 'evicted';
  bytes: number;
  error: string | null;
  verified_at?: string | null;
  pause_ms?: number | null;
  children?: number | null;
  not_captured: INote[];
}

export interface ICheckpoint {
  id: string;
  number: number;
  parent: string | null;
  created_at: string;
  comment: string;
  label: string | null;
  pinned: boolean;
  is_auto: boolean;
  reason: 'cell' | 'manual' | 'safety' | 'part' | 'restart' | 'start';
  code: string;
  is_head: boolean;
  /** How much its cells did that no restore takes back. */
  effects?: number;
  coordinate: {
    epoch: string;
    incarnation: number;
    execution_count: number;
    cell_id: string | null;
    msg_id: string | null;
  };
  captures: ICapture[];
}

export interface ISummary {
  type: string;
  size: number | null;
  shape: string | null;
  value: string | null;
}

export interface IDifferences {
  added: (ISummary & { name: string })[];
  removed: (ISummary & { name: string })[];
  changed: { name: string; before: ISummary; after: ISummary }[];
}

export interface IChange {
  path: string;
  root: string;
  kind: 'created' | 'changed' | 'deleted' | 'metadata';
  size_before: number | null;
  size_after: number | null;
}

export interface IPackage {
  manager: string;
  name: string;
  before: string | null;
  after: string | null;
}

export interface IVariable {
  name: string;
  before: string | null;
  after: string | null;
}

/** What `diff` answers, and what a restore did or would do. */
export interface IDiff {
  variables: IDifferences;
  files: IChange[];
  packages: IPackage[];
  environment: IChange[];
  environment_complete: boolean;
  environ: IVariable[];
}

/** Something that no restore takes back. */
export interface IEffect {
  kind: string;
  cell: string;
  text: string;
}

/** An undo of an effect that a cell has registered. */
export interface ICompensation {
  id: string;
  cell: string;
  text: string;
}

export interface IReplayed {
  checkpoint: ICheckpoint;
  cells: { cell: string; code: string }[];
  not_run: { cell: string; code: string }[];
  effects: IEffect[];
  text: string;
}

export interface IRestored extends IDiff {
  effects?: IEffect[];
  compensations?: ICompensation[];
  checkpoint: ICheckpoint;
  safety: ICheckpoint | null;
  dry_run: boolean;
  warnings: string[];
  took_ms: number;
  /** The engine whose capture of the memory was brought back. */
  process?: string | null;
  text: string;
  environment_differs?: boolean;
  environment_paths?: number;
}

/** How many names differ, and the first of them with their signs. */
export interface ICounted {
  count: number;
  names: ['+' | '-' | '~', string][];
}

/** What a checkpoint changed since its parent; null where that is not known. */
export interface IChanges {
  checkpoint: string;
  parent: string;
  variables: ICounted;
  files: ICounted | null;
  packages: ICounted | null;
}

/** A file as it was: text, an image in base64, or neither. */
export interface IShownFile {
  path: string;
  root: string;
  exists: boolean;
  size: number | null;
  mime: string | null;
  text: string | null;
  data: string | null;
  truncated: boolean;
}

/** A variable as a notebook would show it. */
export interface IShownVariable {
  data?: Record<string, string>;
  error?: string;
}

/** A cell of a notebook as it was; `cell` is null where the asker knows it by its digest. */
export interface IStoredCell {
  digest: string;
  trusted: boolean;
  cell: nbformat.ICell | null;
}

/** A cell that ran, as far as it is used here. */
export interface IRan {
  cell_id: string | null;
  source: string;
}

export interface IListing {
  checkpoints: ICheckpoint[];
  parents: Record<string, string | null>;
  head: string | null;
}

/** Of a `timetravel_event`: `event` says which of the optional fields are there. */
export interface IEvent {
  version: number;
  event: string;
  sequence: number;
  checkpoint?: ICheckpoint | null;
  id?: string;
  /** A name, or the number of the cell that is replayed. */
  step?: string | number;
  text?: string;
  evalue?: string;
  of?: number;
  code?: string;
}

export type Only = 'process' | 'files' | null;

export interface ISettings {
  preview: boolean;
  showAutomatic: boolean;
  marks: boolean;
  notify: boolean;
  restoreNotebook: boolean;
}

export const DEFAULTS: ISettings = {
  preview: true,
  showAutomatic: true,
  marks: true,
  notify: true,
  restoreNotebook: false
};

export namespace CommandIDs {
  export const open = 'timetravel:open';
  export const checkpoint = 'timetravel:checkpoint';
  export const restore = 'timetravel:restore';
  export const restoreMemory = 'timetravel:restore-memory';
  export const restoreFiles = 'timetravel:restore-files';
  export const undo = 'timetravel:undo';
  export const beforeCell = 'timetravel:before-cell';
  export const asItWas = 'timetravel:notebook-as-it-was';
  export const label = 'timetravel:label';
  export const pin = 'timetravel:pin';
  export const remove = 'timetravel:delete';
  export const compare = 'timetravel:compare';
  export const comparePresent = 'timetravel:compare-present';
  export const replay = 'timetravel:replay';
  export const bring = 'timetravel:bring';
  export const changed = 'timetravel:what-it-changed';
  export const exportCells = 'timetravel:export';
  export const exportCheckpoint = 'timetravel:export-checkpoint';
  export const insertAgain = 'timetravel:insert-again';
  export const verify = 'timetravel:verify';
  export const resume = 'timetravel:resume';
  export const checkpointGroup = 'timetravel:checkpoint-group';
  export const restoreGroup = 'timetravel:restore-group';
  export const refresh = 'timetravel:refresh';
  export const switchKernel = 'timetravel:switch-kernel';
}

/** The engine whose captures of a process are files: exact as a frozen one, and they stay. */
export const IMAGE = 'image';

/** The newest capture of a kind that can be used, or the one that says why there is none. */
export function captureOf(record: ICheckpoint, kind: ICapture['kind']): ICapture | undefined {
  const found = record.captures.filter(capture => capture.kind === kind);
  return found.find(capture => capture.state === 'ready') ?? found[0];
}

function isReady(record: ICheckpoint, kind: ICapture['kind']): boolean {
  return captureOf(record, kind)?.state === 'ready';
}

/** What a restore of this checkpoint can bring back. */
export function holds(record: ICheckpoint): { memory: boolean; files: boolean } {
  return {
    memory: isReady(record, 'process') || isReady(record, 'namespace'),
    files: isReady(record, 'filesystem')
  };
}
