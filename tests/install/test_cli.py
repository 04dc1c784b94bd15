"""The command line: installing kernelspecs for real, and what it says when it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from jupyter_timetravel import cli, install


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "import sys; from jupyter_timetravel.cli import main; "
               "sys.exit(main())", *words]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout.strip()) == (0, version("jupyter_timetravel"))


def test_help_tells_of_every_command() -> None:
    text = run("--help").stdout
    for name, command in cli.COMMANDS.items():
        assert name in text
        assert " ".join(command.SUMMARY.split())[:40] in " ".join(text.split())


def test_without_a_command_it_says_what_there_is() -> None:
    done = run()
    assert done.returncode == 2
    assert "install" in done.stderr + done.stdout


def test_jupyter_finds_the_command(ability: Callable[[str, bool], None]) -> None:
    script = Path(sys.executable).with_name("jupyter")
    ability("jupyter beside the interpreter", script.exists())
    done = subprocess.run(
        [str(script), "timetravel", "--version"], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.stdout.strip() == version("jupyter_timetravel")


def test_install_writes_an_absolute_interpreter_and_no_provisioner(tmp_path: Path) -> None:
    done = run("install", "--prefix", str(tmp_path), "--name", "mine", "--display-name", "My way")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "share" / "jupyter" / "kernels" / "mine"
    spec = json.loads((folder / "kernel.json").read_text())
    assert spec["argv"] == [sys.executable, "-m", "kernel_runtime", "-f", "{connection_file}"]
    assert spec["display_name"] == "My way"
    assert spec["interrupt_mode"] == "message"
    assert "kernel_provisioner" not in spec["metadata"]
    assert {path.name for path in folder.iterdir()} == {
        *("kernel.json", "logo-32x32.png", "logo-64x64.png", "logo-svg.svg"),
    }
    assert str(folder) in done.stdout
    assert "JUPYTER_PATH" in done.stdout  # no server looks there by itself


def test_install_again_replaces(tmp_path: Path) -> None:
    run("install", "--prefix", str(tmp_path), "--provisioner")
    done = run("install", "--prefix", str(tmp_path), "--display-name", "Second")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "share" / "jupyter" / "kernels" / install.KERNEL_NAME
    spec = json.loads((folder / "kernel.json").read_text())
    assert spec["display_name"] == "Second"
    assert "kernel_provisioner" not in spec["metadata"]


def test_install_with_provisioner_and_another_interpreter(tmp_path: Path) -> None:
    link = tmp_path / "venv" / "bin" / "python"
    link.parent.mkdir(parents=True)
    link.symlink_to(sys.executable)
    done = run(
        *("install", "--prefix", str(tmp_path), "--name", "other", "--provisioner"),
        *("--python", str(link)),
    )
    assert done.returncode == 0, done.stderr
    path = tmp_path / "share" / "jupyter" / "kernels" / "other" / "kernel.json"
    spec = json.loads(path.read_text())
    # the link itself: following it would leave the virtual environment
    assert spec["argv"][-2:] == ["--python", str(link)]
    assert spec["metadata"]["kernel_provisioner"] == {"provisioner_name": install.PROVISIONER}


def test_user_install_goes_to_the_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    done = run("install", "--user")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "kernels" / install.KERNEL_NAME / "kernel.json").is_file()
    assert "JUPYTER_PATH" not in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--prefix", "/dev/null/nowhere"), "--prefix DIR"),
        (("--user", "--name", "no spaces please"), "another --name"),
        (("--user", "--python", "/nonexistent/python"), "no interpreter '/nonexistent/python'"),
    ],
)
def test_refusals_say_what_to_do(words: tuple[str, ...], says: str) -> None:
    done = run("install", *words)
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_place_must_be_named() -> None:
    done = run("install")
    assert done.returncode == 2
    assert "--sys-prefix" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("restore", "--group", "g", "1", "--member", "a", "--member", "b"), "--member: is given"),
        (("restore", "n.ipynb", "1", "--vars", "a", "--vars", "b"), "--vars: is given twice"),
        (("remote", "prune", "file:///x", "--older-than", "3d", "--older-than", "2d"), "twice"),
        (("prune", "", "--all"), "NOTEBOOK: is empty"),
        (("prune", "--budget", ""), "--budget: is empty"),
        (("list", ""), "NOTEBOOK: is empty"),
        (("remote", "list", ""), "URL: is empty"),
    ],
)
def test_what_is_given_twice_or_not_at_all_is_refused(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(words)
    assert left.value.code == 2
    assert says in capsys.readouterr().err


def test_words_of_a_repeated_option_are_added() -> None:
    words = ["replay", "n.ipynb", "1", "--skip", "2", "3", "--skip", "5"]
    assert cli.build_parser("replay").parse_args(words).skip == ["2", "3", "5"]
