"""The wheel: built for real from a copy of the checkout, here and as another system would."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COPIED = ("kernel_runtime", "jupyter_timetravel", "hatch_build.py", "pyproject.toml", "README.md",
          "LICENSE", ".gitignore")  # fmt: skip
LIBRARY = "kernel_runtime/native/libtimetravel.so"
SPEC = "share/jupyter/kernels/python3-timetravel"
linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a source distribution holds: building writes the library into it."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("*.so", "__pycache__")
            shutil.copytree(source, folder / name, ignore=ignored)
        else:
            shutil.copy(source, folder / name)
    return folder


def build(
    tree: Path, prelude: str = "", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Build a wheel in a process of its own, after some lines of Python."""
    code = (
        f"{prelude}\nfrom hatchling import build\nimport json\n"
        "print(json.dumps([build.get_requires_for_build_wheel(), build.build_wheel('dist')]))"
    )
    shutil.rmtree(tree / "dist", ignore_errors=True)
    (tree / LIBRARY).unlink(missing_ok=True)
    return subprocess.run(
        [sys.executable, "-c", code], cwd=tree, env={**os.environ, **(env or {})}, check=False,
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def wheel_of(tree: Path, done: subprocess.CompletedProcess[str]) -> zipfile.ZipFile:
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(tree / "dist" / json.loads(done.stdout.splitlines()[-1])[1])


@linux_only
def test_wheel_brings_the_library_the_kernelspec_and_no_sources(tree: Path, tmp_path: Path) -> None:
    with wheel_of(tree, build(tree)) as wheel:
        names = wheel.namelist()
        assert LIBRARY in names
        assert not [name for name in names if name.endswith((".c", ".h", ".pyc"))]
        spec = {Path(name).name: name for name in names if SPEC in name}
        assert set(spec) == {"kernel.json", "logo-32x32.png", "logo-64x64.png", "logo-svg.svg"}
        assert json.loads(wheel.read(spec["kernel.json"]))["argv"][0] == "python"
        for size in (32, 64):
            png = wheel.read(spec[f"logo-{size}x{size}.png"])
            assert struct.unpack(">II", png[16:24]) == (size, size)
        [about] = [name for name in names if name.endswith(".dist-info/WHEEL")]
        headers = Parser().parsestr(wheel.read(about).decode())
        assert headers["Root-Is-Purelib"] == "false"
        assert headers["Tag"].startswith("py3-none-linux_")
        place = ".data/data/etc/jupyter/jupyter_server_config.d/jupyter_timetravel.json"
        [enabled] = [name for name in names if name.endswith(place)]
        config = json.loads(wheel.read(enabled))
        assert config == {"ServerApp": {"jpserver_extensions": {"jupyter_timetravel": True}}}
        assert "jupyter_timetravel/server/timeline_v1.yaml" in names
        library = wheel.extract(LIBRARY, tmp_path)
    assert ctypes.CDLL(library).tt_freeze


def test_elsewhere_the_wheel_is_pure_and_holds_no_library(tree: Path) -> None:
    done = build(tree, "import sys; sys.platform = 'darwin'")
    with wheel_of(tree, done) as wheel:
        assert wheel.filename is not None
        assert wheel.filename.endswith("-py3-none-any.whl")
        assert LIBRARY not in wheel.namelist()


@linux_only
def test_without_a_compiler_zig_is_asked_for(tree: Path) -> None:
    done = build(tree, env={"PATH": "/nonexistent", "CC": ""})
    if done.returncode == 0:  # the ziglang package is there: the wheel was built with it
        assert json.loads(done.stdout.splitlines()[-1])[0] == ["ziglang"]
    else:
        assert "apt install gcc" in done.stderr
        assert "pip install ziglang" in done.stderr


@linux_only
def test_a_compiler_that_fails_is_quoted(tree: Path, tmp_path: Path) -> None:
    compiler = tmp_path / "broken-cc"
    compiler.write_text("#!/bin/sh\necho no such header >&2\nexit 1\n")
    compiler.chmod(0o755)
    done = build(tree, env={"CC": str(compiler)})
    assert done.returncode != 0
    assert "no such header" in done.stderr
    assert "libc6-dev" in done.stderr
    assert not list((tree / LIBRARY).parent.glob("*.so*"))


@linux_only
def test_an_incomplete_tree_is_refused(tree: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(tree, bare, ignore=shutil.ignore_patterns("*.c", "dist"))
    done = build(bare)
    assert done.returncode != 0
    assert "incomplete" in done.stderr
