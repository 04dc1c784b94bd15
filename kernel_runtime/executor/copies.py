"""What a copy of the session does instead of living on: pickle the namespace, or show some of it.

A copy is woken from a frozen process (TT_WAKE_COPY): it has all of the session's memory, none of
its descriptors and none of its Python threads. Nothing that it does may reach the world or the
session: it is confined (confine.py) before its first thread runs. The same few lines load a
namespace, in a session or in a scratch process.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from kernel_runtime.blob_channel import BlobClient
from kernel_runtime.executor import confine, cutting, variables
from kernel_runtime.executor.native import OpenFile

if TYPE_CHECKING:
    from kernel_runtime.executor.kernel import ExecutorKernel
    from kernel_runtime.executor.namespace.session import SessionState


def serve(kernel: ExecutorKernel, link: int, files: Sequence[OpenFile]) -> NoReturn:
    """Be a copy: answer one request over the descriptor link, then end."""
    status = 1
    try:
        gc.disable()  # a destructor that runs here would act a second time
        kernel.link.silence()
        channel = BlobClient(socket.socket(fileno=link))
        try:
            confine.confine()  # once more: where there is no filter, nothing of the user's may run
            request = channel.hear()
            _COMMANDS[request["command"]](kernel, files, channel, request)
            status = 0
        except BaseException as error:  # whatever it is, the supervisor is told
            channel.say(done=True, error=f"{type(error).__name__}: {error}")
    finally:
        os._exit(status)


def _dump(
    kernel: ExecutorKernel, files: Sequence[OpenFile], channel: BlobClient, request: dict[str, Any]
) -> None:
    from kernel_runtime.executor.namespace.dumping import dump

    state = session_state(kernel, files)
    state.frozen_at = request["frozen_at"]
    state.directory = kernel.timetravel.directory
    state.left_out = request["left_out"]
    state.older = {name: buffers for names, buffers in request["older"] for name in names}
    manifest = dump(state, channel, cut=cutting.cut, trying=lambda names: channel.say(trying=names))
    channel.say(done=True, manifest=manifest)


def _show(
    kernel: ExecutorKernel, files: Sequence[OpenFile], channel: BlobClient, request: dict[str, Any]
) -> None:
    from kernel_runtime.executor.showing import show

    for name, shown in show(kernel.shell, request["names"]):
        channel.say(name=name, shown=shown)
    channel.say(done=True)


_COMMANDS = {"dump": _dump, "show": _show}


def session_state(kernel: ExecutorKernel, files: Sequence[OpenFile]) -> SessionState:
    """The kernel's session, as dumping and loading see it."""
    from kernel_runtime.executor.namespace.session import SessionState

    shell = kernel.shell
    assert shell is not None
    return SessionState(
        namespace=shell.user_ns,
        hidden=shell.user_ns_hidden,
        outputs=shell.user_ns["Out"],
        inputs=shell.user_ns["In"],
        execution_count=shell.execution_count,
        shell=shell,
        files={
            file.fd: {"path": file.path, "flags": file.flags, "offset": file.offset}
            for file in files
        },
        hash_seed=kernel.hash_seed,
        context=kernel.cells_context,
    )


def load_into(kernel: ExecutorKernel, fd: int) -> None:
    """Load what the supervisor hands out over a channel into the session; closes fd."""
    state = session_state(kernel, ())
    with socket.socket(fileno=fd) as link:
        _load(BlobClient(link), state)
    assert kernel.shell is not None
    kernel.shell.execution_count = state.execution_count


def load_alone(link: socket.socket, namespace: dict[str, Any], seed: str | None) -> None:
    """Load into a namespace of which nothing is used."""
    from kernel_runtime.executor.namespace.session import SessionState

    state = SessionState(namespace, hash_seed=seed, is_trial=True)
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 10_000))
    _load(BlobClient(link), state)


def _load(channel: BlobClient, state: SessionState) -> None:
    from kernel_runtime.executor.namespace.loading import load

    try:
        request = channel.hear()
        # objects such as context variables are set where they are made
        loaded = state.in_cells(
            lambda: load(request["manifest"], channel, state, names=request["names"])
        )
    except Exception as error:
        channel.say(done=True, error=f"{type(error).__name__}: {error}")
        return
    words: dict[str, Any] = {
        "names": loaded.names,
        "lost": loaded.lost,
        "notices": loaded.notices,
        "untried": loaded.untried,
    }
    if request["summaries"]:
        words["summaries"] = variables.summarize(state.namespace, state.hidden)
    channel.say(done=True, **words)
