"""The parts of a session that its first process does not need to start.

Importing them takes a third of the supervisor's imports; they are imported while that process
starts, which takes longer.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kernel_runtime.supervisor.captures import Captures
from kernel_runtime.supervisor.carrying import Carrying
from kernel_runtime.supervisor.cells import Cells
from kernel_runtime.supervisor.checkpoints import Checkpointer
from kernel_runtime.supervisor.commands import Commands
from kernel_runtime.supervisor.compensations import Compensations
from kernel_runtime.supervisor.deletion import Deletion
from kernel_runtime.supervisor.durable import Durability
from kernel_runtime.supervisor.environment_changes import EnvironmentChanges
from kernel_runtime.supervisor.events import Events
from kernel_runtime.supervisor.history import History
from kernel_runtime.supervisor.holding import Holding
from kernel_runtime.supervisor.images import Images
from kernel_runtime.supervisor.inner import InnerCells
from kernel_runtime.supervisor.kept_documents import KeptDocuments
from kernel_runtime.supervisor.memory import MemoryKeeper
from kernel_runtime.supervisor.next_container import NextContainer
from kernel_runtime.supervisor.package_steps import PackageSteps
from kernel_runtime.supervisor.portable import Portable
from kernel_runtime.supervisor.recovery import Recovery
from kernel_runtime.supervisor.replays import Replayer
from kernel_runtime.supervisor.rescue import Rescue
from kernel_runtime.supervisor.restores import Restorer
from kernel_runtime.supervisor.showing import Showing
from kernel_runtime.supervisor.trees import Trees

if TYPE_CHECKING:
    from kernel_runtime.supervisor.session import Session


def complete(session: Session, runtime_dir: Path) -> None:
    """Make them, in an order in which each finds those that it asks for."""
    session.files.open()
    session.environment_changes = EnvironmentChanges(
        session.environment, session.config, session.log
    )
    session.captures = Captures(session)
    session.events = Events(
        session.channels, lambda one: session.timeline.record(one, history=False)
    )
    session.history = History(session.log)
    session.package_steps = PackageSteps(session)
    session.memory = MemoryKeeper(session)
    session.durability = Durability(session)
    session.carrying = Carrying(session)
    session.images = Images(session, runtime_dir)
    session.trees = Trees(session)
    session.documents = KeptDocuments(session)
    session.showing = Showing(session)
    session.cells = Cells(session)
    session.inner = InnerCells(session)
    session.compensations = Compensations(session)
    session.replays = Replayer(session)
    session.checkpoints = Checkpointer(session)
    session.restores = Restorer(session)
    session.recovery = Recovery(session)
    session.deletion = Deletion(session)
    session.holding = Holding(session)
    session.commands = Commands(session)
    session.portable = Portable(session)
    session.rescue = Rescue(session)
    session.next_container = NextContainer(session, runtime_dir)
    session.next_container.read()
