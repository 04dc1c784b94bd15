/** The server part of time travel (docs/server.md): how it is asked, and what is wrong with it. */
import { PageConfig } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import { TranslationBundle } from '@jupyterlab/translation';
import { JSONObject } from '@lumino/coreutils';
import { ISignal, Signal } from '@lumino/signaling';

import { Refused } from './protocol';

/** As it is installed: also the name of its folder on the server. */
const NAME = 'jupyter-timetravel';
const DISMISSED = `${NAME}:dismissed`;

/** Said once in the panel; `command` mends it. */
export interface IProblem {
  text: string;
  command: string | null;
}

export class ServerPart {
  constructor(
    private _settings: ServerConnection.ISettings,
    private _trans: TranslationBundle
  ) {}

  /** It was found, or `problem` is another one. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** It answers. What needs it is offered then only. */
  get isHere(): boolean {
    return this._isHere;
  }

  /** What keeps it from working, unless a person wants to read no more of it. */
  get problem(): IProblem | null {
    return this._problem === null || this._problem.text === remembered(this._key)
      ? null
      : this._problem;
  }

  /** Say no more of the present problem, also after a reload; another one is told. */
  dismiss(): void {
    remember(this._key, this._problem?.text ?? '');
    this._changed.emit();
  }

  /** Whether it is there: asked once for a page, and again only if the server was not reached. */
  find(): Promise<boolean> {
    this._finding ??= this._find().catch(error => {
      console.debug(`${NAME}: the server was not reached.`, error);
      this._finding = null;
      return false;
    });
    return this._finding;
  }

  /** Ask it; with a body it is a POST. Throws Refused. */
  async ask<T>(path: string, body?: JSONObject): Promise<T> {
    return (await this._answer(path, body)).json();
  }

  /** Ask it for a file. Throws Refused. */
  async download(path: string, body: JSONObject): Promise<Blob> {
    return (await this._answer(path, body)).blob();
  }

  private async _answer(path: string, body?: JSONObject): Promise<Response> {
    const answer = await this._request(this._url(path), body);
    if (!answer.ok) {
      const told = await answer.json().catch(() => ({}));
      throw new Refused(told.error ?? 'Error', told.message ?? answer.statusText);
    }
    return answer;
  }

  private async _find(): Promise<boolean> {
    const url = this._url('');
    const answer = await this._request(url);
    if (!answer.ok) {
      this._problem = {
        text: this._trans.__(
          'The server part of jupyter_timetravel is not reachable: HTTP %1 at %2. The sidebar works without it, but for groups and the export of checkpoints.',
          answer.status,
          new URL(url).pathname
        ),
        command:
          answer.status === 404
            ? 'jupyter server extension enable --sys-prefix jupyter_timetravel'
            : null
      };
      this._changed.emit();
      return false;
    }
    const { version } = await answer.json();
    const own = await this._ownVersion();
    if (own !== null && own !== version) {
      this._problem = {
        text: this._trans.__(
          'The sidebar is of version %1, the server part of jupyter_timetravel of version %2. They may not understand each other.',
          own,
          version
        ),
        command: 'pip install --force-reinstall --no-deps jupyter_timetravel'
      };
    }
    this._isHere = true;
    this._changed.emit();
    return true;
  }

  /** Of the sidebar as it is installed; null where that is not on this server, or not to be read. */
  private async _ownVersion(): Promise<string | null> {
    const folder = PageConfig.getOption('fullLabextensionsUrl');
    try {
      const { href } = new URL(`${folder}/${NAME}/package.json`, this._settings.baseUrl);
      const answer = await this._request(href);
      return answer.ok ? (await answer.json()).version : null;
    } catch (error) {
      console.debug(`${NAME}: its own version could not be read.`, error);
      return null;
    }
  }

  private _request(url: string, body?: JSONObject): Promise<Response> {
    // not the usual no-store, for which a number is put into the query
    const how = {
      cache: 'no-cache' as const,
      ...(body !== undefined && { method: 'POST', body: JSON.stringify(body) })
    };
    return ServerConnection.makeRequest(url, how, this._settings);
  }

  private _url(path: string): string {
    return `${this._settings.baseUrl}api/timetravel${path && `/${path}`}`;
  }

  private get _key(): string {
    return `${DISMISSED}:${this._settings.baseUrl}`; // a hub has many servers at one origin
  }

  private _changed = new Signal<this, void>(this);
  private _finding: Promise<boolean> | null = null;
  private _isHere = false;
  private _problem: IProblem | null = null;
}

// a browser may forbid a page to store anything: then it is forgotten with the page
const forgotten = new Map<string, string>();

function remembered(key: string): string | null {
  try {
    return window.localStorage.getItem(key);
  } catch {
    return forgotten.get(key) ?? null;
  }
}

function remember(key: string, text: string): void {
  try {
    window.localStorage.setItem(key, text);
  } catch {
    forgotten.set(key, text);
  }
}
