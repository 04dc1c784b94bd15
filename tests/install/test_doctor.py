"""The doctor: a table of checks that are tried for real; refused abilities are refused for real."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from jupyter_timetravel import checks, doctor, probes
from jupyter_timetravel.checks import FAULTY, FINE, LIMITED, MISSING, SKIPPED, Check, Finding
from jupyter_timetravel.checks_server import check_server_extension, check_sidebar
from kernel_runtime.engines.criu_program import CriuUnusable, find

linux_only = pytest.mark.skipif(not checks.is_linux(), reason="needs Linux")


def row(state: str, mend: str = "") -> doctor.Row:
    return doctor.Row(Check(f"a {state} thing", "nothing", lambda: Finding(state, "")),
                      Finding(state, f"it is {state}", mend))  # fmt: skip


def test_every_check_answers_and_each_limit_comes_with_a_mend() -> None:
    rows = doctor.examine()
    assert len({row.check.name for row in rows}) == len(rows) == len(checks.CHECKS)
    for check, finding in rows:
        assert finding.state in doctor.MARKS
        assert finding.text
        assert "itself failed" not in finding.text, check.name
        assert bool(finding.mend) == (finding.state in (LIMITED, FAULTY, MISSING)), check.name


def test_json_has_a_row_for_each_check() -> None:
    command = [sys.executable, "-c", "from jupyter_timetravel.cli import main; "
               "raise SystemExit(main(['doctor', '--json']))"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    table = json.loads(done.stdout)["checks"]
    assert [row["name"] for row in table] == [check.name for check in checks.CHECKS]
    assert set(table[0]) == {"name", "purpose", "state", "text", "mend"}
    assert done.returncode == any(row["state"] in (MISSING, FAULTY) for row in table)


@pytest.mark.parametrize(
    ("states", "summary"),
    [
        ((FINE, SKIPPED), "works here in full"),
        ((FINE, LIMITED), "with the limits above"),
        ((FAULTY, LIMITED), "not all of it is set up"),
        ((MISSING, LIMITED), "does not work here"),
    ],
)
def test_summary(states: tuple[str, ...], summary: str) -> None:
    assert summary in doctor.as_text([row(state) for state in states]).splitlines()[-1]


def test_mends_are_listed_in_order() -> None:
    text = doctor.as_text([row(LIMITED, "first this"), row(FINE), row(MISSING, "then that")])
    assert 0 < text.index("To mend:") < text.index("first this") < text.index("then that")


def test_a_broken_check_stops_nothing() -> None:
    def broken() -> Finding:
        raise ZeroDivisionError("oops")

    rows = doctor.examine([Check("bad", "", broken), Check("good", "", lambda: Finding(FINE, "x"))])
    assert [row.finding.state for row in rows] == [SKIPPED, FINE]
    assert "ZeroDivisionError: oops" in rows[0].finding.text


@pytest.mark.parametrize(
    ("release", "expected"),
    [("6.1.0-18-amd64", (6, 1)), ("5.15.153.1-microsoft-standard-WSL2", (5, 15)), ("odd", (0, 0))],
)
def test_linux_version(release: str, expected: tuple[int, int]) -> None:
    assert checks.linux_version(release) == expected


def test_platform_names_what_is_missing_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.sys, "platform", "darwin")
    for check in checks.CHECKS:
        if check.name in ("kernelspec", "provisioner", "server extension", "sidebar"):
            continue
        finding = check.run()
        assert finding.state in (MISSING, SKIPPED) or not finding.mend, check.name
    assert "Linux" in checks.check_platform().mend


@linux_only
def test_an_old_kernel_is_missing_and_musl_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.platform, "libc_ver", lambda: ("", ""))
    assert checks.check_platform().state == LIMITED
    monkeypatch.setattr(checks.platform, "release", lambda: "4.19.0")
    assert checks.check_platform().state == MISSING


@linux_only
def test_few_processes_are_a_limit() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NPROC, (500, 500)); "
        "from jupyter_timetravel import checks; print(checks.check_processes().state)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == LIMITED, done.stderr


@linux_only
@pytest.mark.parametrize("name", probes.PROBES)
def test_probe_reports(name: str) -> None:
    outcome = probes.run(name)
    assert outcome.ok or (outcome.step and outcome.text)


def test_unknown_probe_is_an_outcome_too() -> None:
    outcome = probes.run("nonsense")
    assert not outcome.ok
    assert "the probe itself failed" in outcome.text


@linux_only
@pytest.mark.parametrize("name", ["user_namespace", "sandbox", "set_tid"])
def test_probe_names_the_step_that_is_refused(
    name: str, ability: Callable[[str, bool], None]
) -> None:
    """In a user namespace that may hold no further ones, as a hardened machine would refuse."""
    ability("unshare(1)", shutil.which("unshare") is not None)
    ability("user namespaces", probes.run("user_namespace").ok)
    # as root of the namespace no user namespace is needed: become an ordinary uid in it
    script = (
        "echo 0 > /proc/sys/user/max_user_namespaces && "
        f'exec {sys.executable} -c "import os; os.geteuid = lambda: 1000; '
        f"from jupyter_timetravel import probes; probes._report(probes.PROBES['{name}'], 1)\""
    )
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", script],
        capture_output=True, text=True, timeout=60, check=False, cwd="/",
    )  # fmt: skip
    outcome = probes.Outcome(**json.loads(done.stdout))
    assert outcome.step == "unshare(CLONE_NEWUSER)", done
    assert os.strerror(outcome.error) == outcome.text


def test_the_server_extension_is_found_as_it_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    folder = tmp_path / "jupyter_server_config.d"
    folder.mkdir()
    for state, wanted in ((True, FINE), (False, FAULTY)):
        config = {"ServerApp": {"jpserver_extensions": {"jupyter_timetravel": state}}}
        (folder / "jupyter_timetravel.json").write_text(json.dumps(config))
        found = check_server_extension()
        assert found.state == wanted
        assert bool(found.mend) == (not state)


def test_a_sidebar_of_another_version_or_turned_off_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jupyterlab_server", reason="needs JupyterLab")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    folder = tmp_path / "labextensions" / "jupyter-timetravel"
    folder.mkdir(parents=True)

    def found(sidebar: str, disabled: dict[str, bool]) -> Finding:
        package = {
            "name": "jupyter-timetravel",
            "version": sidebar,
            "jupyterlab": {"_build": {"load": "x.js"}},
        }
        (folder / "package.json").write_text(json.dumps(package))
        config = tmp_path / "config" / "labconfig"
        config.mkdir(parents=True, exist_ok=True)
        (config / "page_config.json").write_text(json.dumps({"disabledExtensions": disabled}))
        monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(tmp_path / "config"))
        return check_sidebar()

    own = version("jupyter_timetravel")
    assert found(own, {}).state == FINE
    older = found("0.0.1", {})
    assert older.state == FAULTY and "0.0.1" in older.text and own in older.text
    off = found(own, {"jupyter-timetravel": True})
    assert off.state == FAULTY and off.mend == "jupyter labextension enable jupyter-timetravel"


def test_an_interpreter_without_dill_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's environment is another than that of Jupyter."""
    other = tmp_path / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", other], check=True, timeout=120)
    (packages,) = other.glob("lib/python*/site-packages")
    folder = tmp_path / "kernels" / "python3-timetravel"
    folder.mkdir(parents=True)
    argv = [str(other / "bin" / "python"), "-m", "kernel_runtime", "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "x", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    none = checks.check_kernelspec()
    assert none.state == MISSING and "kernel_runtime, ipykernel, dill" in none.text
    for name in ("kernel_runtime", "ipykernel"):
        (packages / name).mkdir()
        (packages / name / "__init__.py").touch()
    found = checks.check_kernelspec()
    assert found.state == FAULTY and f"{argv[0]}, which cannot import dill" in found.text
    assert found.mend.startswith(argv[0])


def test_images_are_said_to_hold_secrets() -> None:
    text = doctor.as_text(doctor.examine())
    assert "passwords and keys too" in text


@pytest.mark.root
def test_criu_is_tried_for_real(
    ability: Callable[[str, bool], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It dumps and restores a process; a CRIU that is too old or broken is said to be so."""
    [check] = [check for check in checks.CHECKS if check.name == "criu"]
    found = check.run()
    ability(found.text, found.state != SKIPPED)
    assert found.state == FINE and "restored in another sandbox" in found.text, found.text
    old = tmp_path / "criu"
    old.write_text("#!/bin/sh\necho Version: 3.17.1\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert check.run().state == FINE  # the newer one is found behind it
    for text, said in (("echo Version: 3.17.1", "3.17; CRIU 4 or later"), ("", "does not work")):
        old.write_text(f"#!/bin/sh\n{text}\n")
        with pytest.raises(CriuUnusable, match=said):
            find(str(old))
