"""Events of running kernels, emitted to the server's event bus (jupyter_events).

Off, this costs nothing. On, the server has one more subscription to each time-travel kernel, for
its events only: the kernel's socket filters, so the output of cells is not sent twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

from jupyter_timetravel.server.kernels import Kernels
from jupyter_timetravel.wire import event_of
from kernel_runtime.errors import TimeTravelError

SCHEMA: Final = "urn:jupyter-timetravel:timeline:v1"
KERNEL_ACTIONS: Final = "https://events.jupyter.org/jupyter_server/kernel_actions/v1"

_ACTIONS: Final = frozenset(
    {
        "checkpoint_created",
        "checkpoint_changed",
        "checkpoint_deleted",
        "restore_started",
        "restore_finished",
        "restore_failed",
        "replay_finished",
        "executor_died",
    }
)


class Publishing:
    """Follows the kernels of a server from their start to their end."""

    def __init__(self, kernels: Kernels, event_logger: Any, log: Any, *, is_on: bool) -> None:
        """is_on: emit events; else only the links of kernels that end are let go."""
        self._kernels = kernels
        self._logger = event_logger
        self._log = log
        self._is_on = is_on
        self._tasks: dict[str, asyncio.Task[None]] = {}
        event_logger.register_event_schema(
            files(__package__).joinpath("timeline_v1.yaml").read_text()
        )
        event_logger.add_listener(schema_id=KERNEL_ACTIONS, listener=self._on_kernel_action)

    async def _on_kernel_action(self, logger: Any, schema_id: str, data: dict[str, Any]) -> None:
        kernel_id, action = data.get("kernel_id"), data.get("action")
        if kernel_id is None or data.get("status") == "error":
            return
        if action in ("shutdown", "restart"):
            self._stop(kernel_id)
            self._kernels.drop(kernel_id)
        if action in ("start", "restart") and self._is_on:
            self._stop(kernel_id)
            self._tasks[kernel_id] = asyncio.get_running_loop().create_task(self._follow(kernel_id))

    def _stop(self, kernel_id: str) -> None:
        task = self._tasks.pop(kernel_id, None)
        if task is not None:
            task.cancel()

    async def _follow(self, kernel_id: str) -> None:
        try:
            async with self._kernels.link(kernel_id).messages(only_events=True) as messages:
                async for message in messages:
                    content = event_of(message)
                    if content is not None:
                        self._emit(kernel_id, content)
        except TimeTravelError as error:  # an ordinary kernel, or one that has ended already
            self._log.debug("no events of kernel %s: %s", kernel_id, error)
        except asyncio.CancelledError:
            raise
        except Exception:
            self._log.exception("events of kernel %s", kernel_id)

    def _emit(self, kernel_id: str, content: Mapping[str, Any]) -> None:
        if content["event"] not in _ACTIONS:
            return
        data: dict[str, Any] = {"action": content["event"], "kernel_id": kernel_id}
        record = content.get("checkpoint") or content
        for name in ("id", "number"):
            if record.get(name) is not None:
                data[f"checkpoint_{name}"] = record[name]
        for name in ("label", "comment", "reason"):
            if record.get(name):
                data[name] = record[name]
        if content.get("safety"):
            data["safety_number"] = content["safety"]["number"]
        for name in ("ename", "took_ms"):
            if content.get(name) is not None:
                data[name] = content[name]
        with contextlib.suppress(RuntimeError):  # the server is closing
            self._logger.emit(schema_id=SCHEMA, data=data)
