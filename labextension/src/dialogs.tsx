/** What the dialogs show: before a restore or a replay, and when states are compared. */
import { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import React from 'react';

import { Snapshot } from './cells';
import { Differences, IChosen, MOST } from './diff';
import { IGroupRestored } from './groups';
import { ISides } from './inspect';
import { IDiff, IEffect, IReplayed, IRestored } from './tokens';

/** What no restore takes back. */
function Effects(props: { effects: IEffect[]; trans: TranslationBundle }): JSX.Element | null {
  const { effects, trans } = props;
  if (effects.length === 0) {
    return null;
  }
  return (
    <section className="jp-TimeTravel-section" data-effects={effects.length}>
      <h3>
        {trans.__('No restore takes this back')} ({effects.length})
      </h3>
      <ul>
        {effects.slice(0, MOST).map((effect, at) => (
          <li key={at} dir="auto">
            {effect.cell}: {effect.text}
          </li>
        ))}
      </ul>
    </section>
  );
}

/** The body of the dialog before a replay. */
export class ReplayBody extends ReactWidget {
  constructor(
    private _plan: IReplayed,
    private _trans: TranslationBundle
  ) {
    super();
    this.addClass('jp-TimeTravel-dialog');
  }

  protected render(): JSX.Element {
    const trans = this._trans;
    return (
      <div>
        <p>{trans.__('The session goes back, and these cells run again, in this order:')}</p>
        <ol>
          {this._plan.not_run.map(cell => (
            <li key={cell.cell}>
              {cell.cell} <code>{cell.code}</code>
            </li>
          ))}
        </ol>
        <Effects effects={this._plan.effects} trans={trans} />
      </div>
    );
  }
}

/** What a dialog needs to look into differences. */
export interface ILook {
  sides: ISides;
  cells: (() => Promise<[Snapshot, Snapshot]>) | null;
}

/** The body of a dialog that compares; canChoose: variables and files can be brought from it. */
export class DiffBody extends ReactWidget {
  constructor(
    private _diff: IDiff,
    private _look: ILook,
    private _canChoose: boolean,
    private _trans: TranslationBundle
  ) {
    super();
    this.addClass('jp-TimeTravel-dialog');
  }

  getValue(): IChosen {
    return this._chosen;
  }

  protected render(): JSX.Element {
    return (
      <Differences
        diff={this._diff}
        {...this._look}
        chosen={this._canChoose ? this._chosen : null}
        trans={this._trans}
      />
    );
  }

  private _chosen: IChosen = { names: new Set(), paths: new Set() };
}

/** The body of the dialog before a group is taken back: what that does to each member. */
export class GroupBody extends ReactWidget {
  constructor(
    private _plan: IGroupRestored,
    private _trans: TranslationBundle
  ) {
    super();
    this.addClass('jp-TimeTravel-dialog');
  }

  protected render(): JSX.Element {
    const trans = this._trans;
    const { members, record } = this._plan;
    return (
      <div>
        <p>
          {trans.__(
            'All of them go back, or none. Everything stays undoable: the present is kept as a record of the group first.'
          )}
        </p>
        {Object.entries(members).map(([name, plan]) => (
          <section key={name} className="jp-TimeTravel-member" data-member={name}>
            <h2 dir="auto">{trans.__('%1, to #%2', name, record.members[name].number)}</h2>
            {plan.warnings.map(text => (
              <p key={text} className="jp-TimeTravel-warning">
                {text}
              </p>
            ))}
            <Differences diff={plan} sides={null} cells={null} chosen={null} trans={trans} />
            <Effects effects={plan.effects ?? []} trans={trans} />
          </section>
        ))}
      </div>
    );
  }
}

export interface IChoice {
  /** Run the registered undos of effects first. */
  compensate: boolean;
  /** Put the notebook's cells back, too. */
  notebook: boolean;
  /** Go on showing this preview. */
  preview: boolean;
}

/** The body of the dialog before a restore. */
export class PreviewBody extends ReactWidget {
  constructor(
    private _plan: IRestored,
    private _look: ILook,
    /** null where the cells of that time are not known. */
    private _notebook: boolean | null,
    /** A cell runs, which a restore ends. */
    private _isBusy: boolean,
    private _trans: TranslationBundle
  ) {
    super();
    this.addClass('jp-TimeTravel-dialog');
    this._choice = { compensate: false, notebook: _notebook === true, preview: true };
  }

  getValue(): IChoice {
    return this._choice;
  }

  protected render(): JSX.Element {
    const trans = this._trans;
    const plan = this._plan;
    const box = (name: keyof IChoice, text: string, isOn: (checked: boolean) => boolean) => (
      <label className="jp-TimeTravel-choice">
        <input
          type="checkbox"
          name={name}
          defaultChecked={isOn(this._choice[name])}
          onChange={event => {
            this._choice[name] = isOn(event.target.checked);
            this.update();
          }}
        />
        {text}
      </label>
    );
    return (
      <div>
        <p>{trans.__('Everything stays undoable: the present is kept as a checkpoint first.')}</p>
        {this._isBusy && (
          <p className="jp-TimeTravel-warning" data-busy="true">
            {trans.__(
              'A cell runs: it is interrupted first, and what waits behind it does not run.'
            )}
          </p>
        )}
        {plan.warnings.map(text => (
          <p key={text} className="jp-TimeTravel-warning">
            {text}
          </p>
        ))}
        <Differences
          diff={plan}
          sides={this._look.sides}
          cells={this._choice.notebook ? this._look.cells : null}
          chosen={null}
          trans={trans}
        />
        {plan.environment_paths !== undefined && (
          <p>{trans.__('%1 paths outside of the workspace differ.', plan.environment_paths)}</p>
        )}
        <Effects effects={plan.effects ?? []} trans={trans} />
        {(plan.compensations?.length ?? 0) > 0 &&
          box(
            'compensate',
            trans.__(
              'First run what the cells registered to undo that: %1',
              plan.compensations!.map(item => item.text).join(', ')
            ),
            on => on
          )}
        {this._notebook !== null &&
          box('notebook', trans.__("Put the notebook's cells and outputs back, too"), on => on)}
        {box('preview', trans.__('Do not show this again'), on => !on)}
      </div>
    );
  }

  private _choice: IChoice;
}
