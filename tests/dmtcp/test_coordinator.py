"""The coordinator itself: life and death, what it refuses, who may speak to it."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kernel_runtime.dmtcp import (
    Client,
    CommandFailed,
    CommandTimeout,
    Coordinator,
    CoordinatorFailed,
    CoordinatorGone,
    DmtcpMissing,
    DmtcpTooOld,
    ImageUnreadable,
    Status,
    Tools,
    find,
    inspect,
    restart,
)
from tests.dmtcp.conftest import Program
from tests.waiting import until


def test_asked_with_and_without_json(coordinator: Coordinator, tmp_path: Path) -> None:
    """Versions before 5 speak plain text only; the same programs can be asked for that."""
    program = Program(coordinator, "threads_and_child.py", tmp_path)
    plain = replace(coordinator.tools, abilities=coordinator.tools.abilities - {"json"})

    def asked(tools: Tools) -> tuple[Status, list[Client]]:
        coordinator.tools = tools
        return coordinator.status(), coordinator.clients()

    with_json = coordinator.tools
    # what a process is called changes until it has forked and executed another program
    until(lambda: asked(with_json) == asked(plain))
    as_json = asked(with_json)
    coordinator.tools = plain
    assert as_json[0].peers == len(as_json[1]) == 2 and as_json[0].running
    assert len(coordinator.checkpoint()) == 2
    coordinator.set_interval(3600)
    assert coordinator.status().interval == 3600
    coordinator.kill()
    assert coordinator.status().peers == 0 and coordinator.clients() == []
    program.process.wait(60)
    with pytest.raises(CommandFailed, match="no program runs"):
        coordinator.checkpoint()


def test_what_does_not_finish_in_time_is_said(coordinator: Coordinator, tmp_path: Path) -> None:
    program = Program(coordinator, "threads_and_child.py", tmp_path)
    images = coordinator.checkpoint()
    held = [client.real_pid for client in coordinator.clients()]
    for pid in held:
        os.kill(pid, signal.SIGSTOP)  # so that no checkpoint can be finished
    with pytest.raises(CommandTimeout, match="bcheckpoint"):
        coordinator.checkpoint(timeout=0.5)
    for pid in held:
        os.kill(pid, signal.SIGKILL)
    program.process.wait()
    coordinator.restart()  # it waits for them for ever
    program.restarted(images)
    assert program.answers().startswith("1 True None")


def test_killed_in_the_middle_of_a_checkpoint(coordinator: Coordinator, tmp_path: Path) -> None:
    program = Program(coordinator, "pool.py", tmp_path)
    images = coordinator.checkpoint()
    kept = [path.rename(tmp_path / path.name) for path in images]
    pids = [client.real_pid for client in coordinator.clients()]
    os.kill(pids[0], signal.SIGSTOP)
    coordinator.request_checkpoint()  # it is under way, and cannot end
    os.kill(coordinator.pid, signal.SIGKILL)
    os.kill(pids[0], signal.SIGCONT)
    until(lambda: not coordinator.is_alive)
    with pytest.raises(CoordinatorGone, match="restart"):
        coordinator.status()
    program.process.wait(60)  # DMTCP ends what runs under it
    port = coordinator.port
    coordinator.restart()
    assert coordinator.is_alive and coordinator.port == port
    program.restarted(kept)
    assert program.answers().endswith("True")


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        one = Coordinator(tmp_path / "one", port=taken.getsockname()[1])
        with pytest.raises(CoordinatorFailed, match="Give another port"):
            one.start()
    with Coordinator(tmp_path / "one", port=0) as first, Coordinator(tmp_path / "two") as second:
        assert first.port != second.port


def test_directories_are_private(coordinator: Coordinator) -> None:
    for path in (coordinator.directory, coordinator.images, coordinator.scratch):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(coordinator.log.stat().st_mode) == 0o600


def test_it_listens_on_loopback_only(coordinator: Coordinator) -> None:
    """Its own port, which every interface would reach, is in a namespace where nobody is."""
    listening = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                host, _, port = fields[1].rpartition(":")
                listening.add((host, int(port, 16)))
    ours = {host for host, port in listening if port == coordinator.port}
    assert ours == {"0100007F"}
    owner = Path(f"/proc/{coordinator.pid}/ns/net").readlink()
    assert owner != Path("/proc/self/ns/net").readlink()


def test_it_ends_with_whoever_started_it(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from kernel_runtime.dmtcp import Coordinator\n"
        f"c = Coordinator(Path({str(tmp_path / 'd')!r})); c.start(); print(c.pid, flush=True)\n"
        "time.sleep(1000)"
    )
    starter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    starter.kill()
    starter.wait()
    starter.stdout.close()
    until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in _state(pid))


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


@pytest.mark.root
def test_another_user_cannot_speak_to_it(coordinator: Coordinator, tmp_path: Path) -> None:
    program = Program(coordinator, "threads_and_child.py", tmp_path)
    pid = coordinator.pid
    argv = [coordinator.tools.command, "--coord-host", "127.0.0.1"]
    argv += ["--coord-port", str(coordinator.port)]
    for command in ("--status", "--list", "--checkpoint", "--kill", "--quit"):
        done = subprocess.run(
            [*argv, command],
            user=65534,
            group=65534,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if command != "--quit":  # it is content with an end of the connection
            assert done.returncode != 0, done
        assert "NUM_PEERS" not in done.stdout
    assert coordinator.is_alive and coordinator.pid == pid
    assert not list(coordinator.images.iterdir())
    assert len(coordinator.clients()) == 2
    assert program.answers().startswith("1 True None")


def test_wrong_and_missing_versions(tmp_path: Path) -> None:
    with pytest.raises(DmtcpMissing, match=r"dmtcp_coordinator.*Install DMTCP 3"):
        find(str(tmp_path))
    for name in ("coordinator", "launch", "restart", "command"):
        old = tmp_path / f"dmtcp_{name}"
        old.write_text(f"#!/bin/sh\necho 'dmtcp_{name} (DMTCP) 2.6.0'\n")
        old.chmod(0o755)
    with pytest.raises(DmtcpTooOld, match=r"2\.6\.0; 3 or newer"):
        find(str(tmp_path))
    for path in tmp_path.iterdir():
        path.write_text("#!/bin/sh\necho 'x (DMTCP) 3.0.0'\n")
    with pytest.raises(DmtcpMissing, match="it has no --"):
        find(str(tmp_path))


def test_what_is_no_image(coordinator: Coordinator, tmp_path: Path) -> None:
    Program(coordinator, "threads_and_child.py", tmp_path)
    image = coordinator.checkpoint()[0]
    cut = tmp_path / image.name
    cut.write_bytes(image.read_bytes()[:100])
    with pytest.raises(ImageUnreadable, match="ends after 100 bytes"):
        inspect(cut)
    cut.write_bytes(b"something else" * 1000)
    with pytest.raises(ImageUnreadable, match="Nothing was restarted"):
        restart(coordinator, [cut])
    assert len(coordinator.clients()) == 2
