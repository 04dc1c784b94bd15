"""Machines that refuse: the kernel starts all the same, and says what is off, why, and the mend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernel_runtime.sandbox import refusals
from kernel_runtime.supervisor.last_words import explain

DENY = Path(__file__).with_name("deny.py")
UID, GID = os.geteuid(), os.getegid()
USER = f"unshare -U --map-user={UID} --map-group={GID} --keep-caps"
THEN = '; exec "$0" "$@"'


def shell(command: str) -> tuple[str, ...]:
    return ("sh", "-c", command + THEN)


NO_ROOM = (*USER.split(), *shell("echo 0 > /proc/sys/user/max_user_namespaces"))
FILTERED = (sys.executable, str(DENY), "unshare", "--")
NO_MOUNT = (sys.executable, str(DENY), "mount", "--")
MASKED = (
    *("unshare", "-Urmpf", "--mount-proc"),
    "sh",
    "-c",
    f'mount --bind /dev/null /proc/timer_list && exec {USER.replace("--keep-caps", "")} "$0" "$@"',
)
HOSTS = {
    "a limit of zero": (NO_ROOM, "user.max_user_namespaces is 0", "sysctl -w user.max_user_nam"),
    "a filter for unshare": (FILTERED, "seccomp filter", "seccomp profile that allows"),
    "a filter for mount": (NO_MOUNT, "seccomp filter", "seccomp profile that allows"),
    "a masked /proc": (MASKED, "/proc/timer_list", "systempaths=unconfined"),
}


def works(command: tuple[str, ...]) -> bool:
    done = subprocess.run([*command, "true"], capture_output=True, timeout=60, check=False)
    return done.returncode == 0


@pytest.fixture(params=HOSTS)
def host(
    request: pytest.FixtureRequest, ability: Callable[[str, bool], None]
) -> tuple[tuple[str, ...], str, str]:
    ability("an ordinary user", UID != 0)  # root is not stopped by these
    prefix, cause, mend = HOSTS[request.param]
    ability(request.param, works(prefix))
    return prefix, cause, mend


def test_the_kernel_starts_and_says_what_is_off(start_notebook: Any, host: Any) -> None:
    prefix, cause, mend = host
    notebook = start_notebook(prefix=prefix)
    first = notebook.run("y = 5")
    told = first.text("stderr")
    assert told.count("Files outside of the workspace are not rolled back") == 1
    assert cause in told
    assert mend in told
    number = notebook.head()["number"]
    notebook.run("open('w.txt', 'w').write('1'); y = 6")
    report = notebook.run(f"%restore {number}")
    assert "package" not in report.out
    cell = notebook.run("print(y, __import__('os').path.exists('w.txt'))")
    assert cell.out == "5 False"
    assert cell.text("stderr") == ""  # once is enough
    status = notebook.command("status")
    assert cause in status["environment"]["problem"]
    assert status["environment"]["covered"] == []
    assert any(cause in text for text in status["limits"])


def test_required_refuses_in_the_notebook(start_notebook: Any, host: Any) -> None:
    prefix, cause, mend = host
    notebook = start_notebook("--Supervisor.environment=required", prefix=prefix)
    error = notebook.run("print(1)", ok=False).error
    assert error.startswith("EnvironmentRefused: ")
    assert cause in error
    assert mend in error
    assert notebook.refused("status")["ename"] == "EnvironmentRefused"


def test_an_isolated_workspace_is_never_the_hosts_own(
    start_notebook: Any, ability: Callable[[str, bool], None]
) -> None:
    ability("seccomp filters", works(FILTERED))
    notebook = start_notebook('--Supervisor.workspace=["isolated"]', prefix=FILTERED)
    notebook.run("open('leaked', 'w').close()", ok=False)
    assert not (notebook.cwd / "leaked").exists()


def test_the_doctor_finds_the_same(host: Any) -> None:
    prefix, cause, mend = host
    code = "from jupyter_timetravel.cli import main; raise SystemExit(main(['doctor', '--json']))"
    done = subprocess.run(
        [*prefix, sys.executable, "-c", code], capture_output=True, text=True, timeout=100,
        check=False, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    rows = {row["name"]: row for row in json.loads(done.stdout)["checks"]}
    assert rows["overlays"]["state"] == "limited", done.stderr
    assert cause in rows["overlays"]["text"]
    assert mend in rows["overlays"]["mend"]
    assert rows["covered"]["state"] == "skipped"


@pytest.mark.root
def test_root_without_the_right_to_mount(
    start_notebook: Any, home: Path, ability: Callable[[str, bool], None]
) -> None:
    ability("root", UID == 0)
    prefix = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
    ability("setpriv", works(prefix))
    notebook = start_notebook(prefix=prefix, env={"HOME": str(home)})
    status = notebook.command("status")
    ability(f"user namespaces ({status['environment']['problem']})", bool(status["environment"]))
    assert str(home.parent) in status["environment"]["covered"]
    notebook.run("import os\nos.mkdir('/opt/tt-dir'); os.chown('/opt/tt-dir', 33, 33)")
    cell = notebook.run("st = os.stat('/opt/tt-dir'); print(os.getuid(), st.st_uid, st.st_gid)")
    assert cell.out == "0 33 33"
    notebook.run("os.rmdir('/opt/tt-dir'); os.mknod('/tt-file')")
    notebook.run("%restore 1")
    assert notebook.run("os.path.isdir('/opt/tt-dir'), os.path.exists('/tt-file')").result == (
        "(True, False)"
    )
    assert not os.path.exists("/opt/tt-dir")


def test_a_store_on_an_overlay_is_named(
    start_notebook: Any, tmp_path: Path, ability: Callable[[str, bool], None]
) -> None:
    for name in ("l", "u", "w", "m"):
        (tmp_path / name).mkdir()
    options = f"lowerdir={tmp_path}/l,upperdir={tmp_path}/u,workdir={tmp_path}/w,userxattr"
    prefix = (
        *("unshare", "-Urm"),
        *shell(f"mount -t overlay none -o {options} {tmp_path}/m || exit 9"),
    )
    ability("overlays of ordinary users", works(prefix))
    notebook = start_notebook(f"--Supervisor.store={tmp_path}/m/store", prefix=prefix)
    told = notebook.run("1").text("stderr")
    assert "is on overlayfs" in told
    assert "JUPYTER_TIMETRAVEL_STORE" in told


@pytest.mark.parametrize(
    ("files", "step", "code", "cause", "mend"),
    [
        ({"kernel/unprivileged_userns_clone": "0"}, "unshare", 1, "is 0", "sysctl -w kernel.unpri"),
        ({"kernel/apparmor_restrict_unprivileged_userns": "1"}, "uid_map", 1, "AppArmor",
         "a profile for this one program"),
        ({"kernel/apparmor_restrict_unprivileged_userns": "1"}, "mount", 13, "AppArmor",
         "a profile for this one program"),
        ({"user/max_mnt_namespaces": "0"}, "unshare", 28, "max_mnt_namespaces is 0", "max_mnt"),
        ({}, "unshare", 22, "without user namespaces", "another kernel"),
        ({"/proc/self/attr/current": "docker-default (enforce)"}, "mount", 13, "docker-default",
         "apparmor=PROFILE"),
    ],
)  # fmt: skip
def test_causes_that_cannot_be_played_here(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str], step: str, code: int, cause: str,
    mend: str,
) -> None:  # fmt: skip
    there = {p if p.startswith("/") else f"/proc/sys/{p}": text for p, text in files.items()}
    monkeypatch.setattr(refusals, "_read", lambda path: there.get(path, ""))
    monkeypatch.setattr(refusals, "_is_root", lambda: False)
    found = refusals.explain(step, code)
    assert cause in found.cause
    assert mend in found.mend
    if "AppArmor" in cause:
        assert "sysctl" not in found.mend  # never the whole machine first


def test_the_profile_names_one_program() -> None:
    profile = refusals.apparmor_profile("/usr/bin/python3.12")
    assert "profile jupyter-timetravel /usr/bin/python3.12 flags=(unconfined)" in profile
    assert "userns," in profile


def test_a_trial_tells_what_a_cell_would_find_and_leaves_nothing(
    tmp_path: Path, home: Path, ability: Callable[[str, bool], None]
) -> None:
    store = tmp_path / "store"
    done = subprocess.run(
        [sys.executable, "-m", "kernel_runtime.engines.overlay.trial", str(store)],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    found = json.loads(done.stdout)
    ability(f"overlays ({found['refused'] or found['problem']})", bool(found["covered"]))
    assert "/etc" in found["covered"]
    assert {"/proc", "/tmp"} <= set(found["passed"])
    inside = found["inside"]
    assert (inside["uid"], inside["gid"], inside["write"]) == (UID, GID, 0)
    assert inside["volatile"] is True
    assert inside["rename"] in (0, 18)
    assert not store.exists()
    assert list(home.iterdir()) == []


def test_last_words_name_the_error_and_the_place() -> None:
    words = (
        "some warning\nTraceback (most recent call last):\n"
        '  File "/v/lib/python3.11/site-packages/ipykernel/a.py", line 3, in <module>\n'
        "    import traitlets\nModuleNotFoundError: No module named 'traitlets'\n"
    )
    found = explain("/v/bin/python", words, "it ended with exit status 1")
    assert "ModuleNotFoundError: No module named 'traitlets'" in found.text
    assert "ipykernel/a.py, line 3" in found.text
    assert found.files[0] == "/v/lib/python3.11/site-packages/traitlets"
    silent = explain("/v/bin/python", "", "it ended with exit status 0")
    assert silent.text.endswith("it ended with exit status 0.")
    assert "signal 11" in explain("/v/bin/python", "odd last line\n", "signal 11").text


@pytest.mark.root
def test_root_in_another_mode_leaves_the_layers_alone(
    start_notebook: Any, home: Path, tmp_path: Path, ability: Callable[[str, bool], None]
) -> None:
    ability("root", UID == 0)
    prefix = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
    ability("setpriv", works(prefix))
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "n.ipynb").write_text("{}")
    env = {"HOME": str(home), "JPY_SESSION_NAME": str(tmp_path / "work" / "n.ipynb")}
    notebook = start_notebook(env=env)
    notebook.run("open('/opt/tt-first', 'w').close()")
    notebook.head()
    notebook.manager.shutdown_kernel()
    other = start_notebook(prefix=prefix, env=env)
    told = other.run("import os; print(os.path.exists('/opt/tt-first'))")
    assert told.out == "False"
    assert "made by root with the right to mount" in told.text("stderr")
    other.head()
    other.manager.shutdown_kernel()
    again = start_notebook(env=env)
    assert again.run("import os; print(os.path.exists('/opt/tt-first'))").out == "True"
