/** The one way to a kernel's timeline: a request on its control channel (docs/protocol.md). */
import { Kernel, KernelMessage } from '@jupyterlab/services';
import { TranslationBundle } from '@jupyterlab/translation';
import { JSONObject } from '@lumino/coreutils';

import { IEvent } from './tokens';

export const VERSION = 1;

/** The kernel's refusal. `name` is the class, `message` says what failed and what to do. */
export class Refused extends Error {
  constructor(name: string, message: string) {
    super(message);
    this.name = name;
  }
}

/** The connection went away before the reply came: whether it was done is not known. */
export class Unanswered extends Error {
  constructor(trans: TranslationBundle) {
    super(
      trans.__(
        'The connection to the kernel was lost before it answered. What it did is shown as soon as it is connected again.'
      )
    );
    this.name = 'Unanswered';
  }
}

/**
 * Whether the kernel has time travel. Waits until it has told about itself. Throws where it speaks
 * another version of the protocol.
 */
export async function speaks(
  kernel: Kernel.IKernelConnection,
  trans: TranslationBundle
): Promise<boolean> {
  const info = (await kernel.info) as unknown as { timetravel?: { version: number } };
  const version = info.timetravel?.version;
  if (version !== undefined && version !== VERSION) {
    throw new Error(
      trans.__(
        'This page speaks version %1 of the time-travel protocol, the kernel version %2. The notebook works; to see the timeline, install one version of jupyter_timetravel beside JupyterLab and in the environment of the kernel (pip install --upgrade jupyter_timetravel), and load the page anew.',
        VERSION,
        version
      )
    );
  }
  return version !== undefined;
}

/** Send one command and return its result. Throws Refused or Unanswered. */
export async function request<T>(
  kernel: Kernel.IKernelConnection,
  trans: TranslationBundle,
  command: string,
  args: JSONObject = {}
): Promise<T> {
  // The types of the protocol know the messages of Jupyter only.
  const message = KernelMessage.createMessage({
    msgType: 'timetravel_request',
    channel: 'control',
    session: kernel.clientId,
    username: kernel.username,
    content: { version: VERSION, command, args }
  } as any) as any;
  const future = kernel.sendControlMessage(message, true, false);
  const reply: any = await new Promise((resolve, reject) => {
    // a request made while the connection is being set up waits in its queue: that is no loss
    let wasConnected = kernel.connectionStatus === 'connected';
    const lost = () => {
      if (kernel.isDisposed || ['dead', 'restarting', 'autorestarting'].includes(kernel.status)) {
        finish(() => reject(new Unanswered(trans)));
      }
    };
    const connection = (_: unknown, status: Kernel.ConnectionStatus) => {
      if (status === 'connected') {
        wasConnected = true;
      } else if (wasConnected) {
        finish(() => reject(new Unanswered(trans)));
      }
    };
    const finish = (end: () => void) => {
      kernel.disposed.disconnect(lost);
      kernel.statusChanged.disconnect(lost);
      kernel.connectionStatusChanged.disconnect(connection);
      end();
      future.dispose();
    };
    kernel.disposed.connect(lost);
    kernel.statusChanged.connect(lost);
    kernel.connectionStatusChanged.connect(connection);
    // not `done`: the kernel does not say that it is busy with these requests, nor that it is idle
    future.onReply = answer => finish(() => resolve(answer));
    future.done.catch(() => undefined);
  });
  const content = reply.content;
  if (content.status !== 'ok') {
    throw new Refused(content.ename ?? 'Error', content.evalue ?? '');
  }
  return content.result as T;
}

/** The event in an IOPub message, or null if it is another message. */
export function eventOf(message: KernelMessage.IMessage): IEvent | null {
  const type: string = message.header.msg_type;
  const content = message.content as unknown as IEvent;
  return type === 'timetravel_event' && content.version === VERSION ? content : null;
}
