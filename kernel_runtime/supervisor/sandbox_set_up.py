"""Setting up the sandbox and what covers the environment; saying what is not covered, and why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kernel_runtime import plugins
from kernel_runtime.engines.loaded import clock_ahead_ns
from kernel_runtime.errors import EnvironmentRefused, SandboxError
from kernel_runtime.sandbox import refusals
from kernel_runtime.sandbox.base import InitClient
from kernel_runtime.sandbox.none import NoSandbox
from kernel_runtime.store.paths import key_directory

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session

_REFUSED = (
    "This kernel runs no cell, since Supervisor.environment is required (or the workspace "
    "isolated) and files outside of the workspace cannot be rolled back"
)
_NOT_HIDDEN = (
    "Supervisor.sockets=none has no effect: files outside of the workspace are not covered, so "
    "cells reach sockets of agents and of the desktop."
)


class SandboxSetUp:
    """Makes one session's sandbox, as its configuration wants it."""

    def __init__(self, session: Session, hidden: list[Path]) -> None:
        """hidden: what nothing inside may see, beside the store and the keys."""
        self._session = session
        self._hidden = hidden

    async def start(self) -> None:
        """Start it. Raises SandboxError, EnvironmentRefused where it must be covered and is not."""
        await self._start()
        session = self._session
        if session.config.sockets == "none" and not session.environment.enabled:
            session.limits.append(_NOT_HIDDEN)
            session.router.say_next(_NOT_HIDDEN)

    async def _start(self) -> None:
        session = self._session
        wanted = session.config.sandbox
        if wanted != "none":
            try:
                await self._start_with_namespaces("namespaces" if wanted == "auto" else wanted)
                return
            except (SandboxError, asyncio.TimeoutError) as error:
                if wanted != "auto":
                    raise
                reason = str(error) or "no answer"
            if session.config.environment == "off":
                session.limits.append(f"Processes come back under new ids: {reason}")
            self._not_covered(
                reason,
                "memory and the workspace are held all the same, processes come back under new ids",
            )
        elif self._must_be_covered:
            raise EnvironmentRefused(f"{_REFUSED}: Supervisor.sandbox is none.")
        elif not session.layer.enabled:
            session.environment.problem = (
                "The environment is not covered: Supervisor.sandbox is none."
            )
            session.limits += self._instead()
        session.sandbox = NoSandbox(*session.sandbox_events)
        await session.sandbox.start()

    async def _start_with_namespaces(self, name: str) -> None:
        session = self._session
        kind = plugins.load(plugins.SANDBOXES, name)
        await self._make(kind)
        if session.config.environment == "off":
            session.environment.problem = "The environment is not covered: it is switched off."
            return
        if not session.persistence.directory:
            self._not_covered(session.persistence.problem, "memory is held all the same")
            return
        workspace = [] if session.config.is_isolated else session.files.roots
        try:
            await session.environment.start(
                session.sandbox,
                directory=session.persistence.directory / "environments" / session.timeline.id,
                workspace=workspace,
                passed=session.under_dmtcp.shared,
                has_followed=session.files.was_committed,
                hidden=[
                    session.persistence.directory,
                    key_directory(),
                    *session.persistence.secrets(),
                    *self._hidden,
                ],
            )
        except SandboxError as error:
            self._not_covered(str(error), "memory and the workspace are held all the same")
            # what was mounted half way goes with its namespaces
            await session.sandbox.close()
            await self._make(kind)

    async def _make(self, kind: Callable[..., InitClient]) -> None:
        session = self._session
        session.sandbox = kind(*session.sandbox_events)
        session.sandbox.capabilities = session.config.root_capabilities
        session.sandbox.clock_ahead_ns = clock_ahead_ns(session.timeline)
        await session.sandbox.start()

    @property
    def _must_be_covered(self) -> bool:
        session = self._session
        # an isolated workspace is a layer like the rest: without layers it would be the host's own
        return session.config.environment == "required" or session.config.is_isolated

    def _not_covered(self, why: str, held: str) -> None:
        """Say it once, in the first cell. Raises EnvironmentRefused where that must not be."""
        session = self._session
        if self._must_be_covered:
            raise EnvironmentRefused(f"{_REFUSED}: {why}")
        if session.config.environment == "off":
            return
        session.environment.problem = (
            f"Files outside of the workspace are not rolled back ({held}): {why}"
        )
        told = [session.environment.problem, *self._instead()]
        session.limits += told
        session.router.say_next(" ".join(told))

    def _instead(self) -> list[str]:
        """What the user can have captured without layers."""
        session = self._session
        if not session.files.enabled:
            return []
        offer = refusals.instead(session.environment.prefix, session.files.roots)
        return [offer] if offer else []
