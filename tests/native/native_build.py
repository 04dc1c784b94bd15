"""Builds the library and what tests need beside it, once; says what this host can do.

TT_MUST_WORK=1 turns a skip for a missing ability into a failure.
"""

from __future__ import annotations

import functools
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest
from native_harness import World

HERE = pathlib.Path(__file__).parent
NATIVE = HERE.parent.parent / "kernel_runtime" / "native"
FLAGS = (
    "-O2 -g -fPIC -shared -fvisibility=hidden -fno-stack-protector -std=gnu11 -Wall -Wextra "
    "-Wl,-e,tt_loader_start"
)
ORDINARY_UID = 54321


def compile_c(output: pathlib.Path, *arguments: str) -> pathlib.Path:
    """Compile, or fail with what the compiler says."""
    command = [os.environ.get("CC", "cc"), "-o", str(output), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return output


@functools.cache
def shared_folder() -> pathlib.Path:
    """Readable for every user, gone at the end."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tt_native_lib_", dir="/tmp"))
    folder.chmod(0o755)
    return folder


@functools.cache
def built_library() -> pathlib.Path:
    """The library as the wheel has it."""
    sources = sorted(str(p) for p in NATIVE.glob("*.c"))
    return compile_c(shared_folder() / "libtimetravel.so", *FLAGS.split(), "-Werror", *sources)


@functools.cache
def built_loader() -> pathlib.Path:
    """The library as a program, under a name of its own."""
    loader = shared_folder() / "timetravel-loader"
    shutil.copy2(built_library(), loader)
    return loader


@functools.cache
def built_states() -> pathlib.Path:
    """states.c: what Python cannot set up."""
    return compile_c(
        shared_folder() / "states.so",
        "-O1",
        "-g",
        "-fPIC",
        "-shared",
        "-pthread",
        "-Wall",
        "-Wextra",
        "-Werror",
        str(HERE / "states.c"),
    )


@functools.cache
def can(kind: str) -> str:
    """Empty, or why a world of that kind cannot be had."""
    if kind.startswith("as-") and os.getuid() != 0:
        return "root, to become another user"
    if kind == "root" and os.getuid() != 0:
        return "root"
    library, states = built_library(), built_states()
    try:
        World(kind, library, states).close()
    except (EOFError, OSError):
        return "user and pid namespaces"
    return ""


def need(missing: str) -> None:
    """Skip by the name of the missing ability."""
    if missing:
        if os.environ.get("TT_MUST_WORK") == "1":
            pytest.fail(f"needs {missing}")
        pytest.skip(f"needs {missing}")


KINDS = {
    "root": "root",
    "user": f"as-{ORDINARY_UID}:user" if os.getuid() == 0 else "user",
    "plain": f"as-{ORDINARY_UID}:plain" if os.getuid() == 0 else "plain",
}


def make_world(name: str) -> World:
    """A world by its short name; skips where it cannot be had."""
    need(can(KINDS[name]))
    return World(KINDS[name], built_library(), built_states())


def clean_up() -> None:
    """Remove what was built."""
    if shared_folder.cache_info().currsize:
        shutil.rmtree(shared_folder(), ignore_errors=True)
        shared_folder.cache_clear()
