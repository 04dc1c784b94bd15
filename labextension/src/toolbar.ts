/** The button in a notebook's toolbar: a menu of what is wanted most. */
import { ToolbarButton } from '@jupyterlab/ui-components';
import { TranslationBundle } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import { Menu } from '@lumino/widgets';

import { timeTravelIcon } from './icons';
import { CommandIDs } from './tokens';

export function menuButton(commands: CommandRegistry, trans: TranslationBundle): ToolbarButton {
  const button: ToolbarButton = new ToolbarButton({
    icon: timeTravelIcon,
    tooltip: trans.__('Time travel'),
    onClick: () => {
      const menu = new Menu({ commands });
      menu.addItem({ command: CommandIDs.open });
      menu.addItem({ type: 'separator' });
      for (const command of [
        CommandIDs.checkpoint,
        CommandIDs.checkpointGroup,
        CommandIDs.beforeCell,
        CommandIDs.undo
      ]) {
        menu.addItem({ command });
      }
      menu.addItem({ type: 'separator' });
      menu.addItem({ command: CommandIDs.switchKernel });
      menu.aboutToClose.connect(() => setTimeout(() => menu.dispose(), 0));
      const { left, bottom } = button.node.getBoundingClientRect();
      menu.open(left, bottom);
    }
  });
  button.addClass('jp-TimeTravel-toolbarButton');
  return button;
}
