"""Real programs under the real DMTCP: checkpointed, killed with all their children, restarted."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_runtime.dmtcp import Coordinator, inspect
from tests.dmtcp.conftest import Program


@pytest.mark.parametrize("name", ["threads_and_child", "pool", "server", "pipeline"])
def test_a_program_goes_on_where_it_stood(
    coordinator: Coordinator, tmp_path: Path, name: str
) -> None:
    program = Program(coordinator, f"{name}.py", tmp_path)
    images = coordinator.checkpoint()
    assert len(images) == len(coordinator.clients())
    first = program.answers()  # it goes on after a checkpoint, too
    for _ in range(2):
        program.killed()
        program.restarted(images)
        assert program.answers() == first  # the same next step, from the same state


def test_ten_cycles_each_from_the_one_before(coordinator: Coordinator, tmp_path: Path) -> None:
    program = Program(coordinator, "threads_and_child.py", tmp_path)
    counts = [int(program.answers().split()[0])]
    for _ in range(10):
        images = coordinator.checkpoint()
        program.killed()
        program.restarted(images)
        counts.append(int(program.answers().split()[0]))
    assert counts == list(range(1, 12))


def test_what_an_image_says_of_itself(coordinator: Coordinator, tmp_path: Path) -> None:
    Program(coordinator, "threads_and_child.py", tmp_path)
    found = [inspect(path) for path in coordinator.checkpoint()]
    clients = {client.unique_id: client for client in coordinator.clients()}
    assert {one.unique_id for one in found} == set(clients)
    for one in found:
        assert one.pid == clients[one.unique_id].pid
        assert one.program.startswith("python") and not one.compressed
        assert one.size == one.path.stat().st_size > 1 << 20
