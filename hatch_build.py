"""Hatchling hook: compile the native core and give the wheel the tag that fits it.

On Linux all of ``kernel_runtime/native/*.c`` become one plain shared library, which Python loads
with ctypes: no Python API, so one wheel serves every Python version. Elsewhere the wheel is pure:
it installs, and the kernel says at its start what is missing.

The compiler is the first of ``$CC``, ``cc``, ``gcc``, ``clang``; where there is none, the
``ziglang`` package (about 90 MB) is asked for as a build requirement. For a wheel that runs on
other distributions set ``TIMETRAVEL_ZIG_TARGET`` to ``x86_64`` or ``aarch64``: zig then links
against glibc 2.17, and the wheel is tagged manylinux.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("kernel_runtime") / "native"
LIBRARY = NATIVE / "libtimetravel.so"
LOADER = NATIVE / "timetravel-loader"
"""The same file: as a program it needs a name of its own, lest /proc/self/exe stay its."""
FLAGS = (
    *("-O2", "-g", "-std=gnu11", "-Wall", "-fPIC", "-shared"),
    *("-fvisibility=hidden", "-fno-stack-protector"),
    "-Wl,-e,tt_loader_start",  # it is a program, too: native/loader.c
)
ZIG_TARGET_VARIABLE = "TIMETRAVEL_ZIG_TARGET"
GLIBC = "2.17"  # the oldest that a manylinux wheel of ours promises to run on
NO_COMPILER = (
    "The native core of jupyter_timetravel needs a C compiler, and none was found as $CC, cc, gcc "
    "or clang, nor the ziglang package. Nothing was built. Install a compiler (Debian, Ubuntu: "
    "`apt install gcc libc6-dev`; Fedora: `dnf install gcc`; conda: `conda install gcc`), or "
    "`pip install ziglang` if you build without isolation, and try again."
)


class NativeBuildError(RuntimeError):
    """The native core could not be compiled: no wheel is made."""


class Compiler(NamedTuple):
    """A compiler's command line, and the platform tag that its output deserves."""

    command: tuple[str, ...]
    platform_tag: str


def local_platform_tag() -> str:
    """The tag of a wheel that is for this machine only, such as ``linux_x86_64``."""
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def system_compiler() -> tuple[str, ...] | None:
    """The machine's own C compiler, or None."""
    for candidate in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        words = tuple(shlex.split(candidate))
        if words and shutil.which(words[0]):
            return words
    return None


def zig_compiler(architecture: str) -> Compiler:
    """Zig as shipped by the ``ziglang`` package, for glibc 2.17 or later."""
    command = (sys.executable, "-m", "ziglang", "cc", "-target")
    tag = f"manylinux_{GLIBC.replace('.', '_')}_{architecture}"
    return Compiler((*command, f"{architecture}-linux-gnu.{GLIBC}"), tag)


def choose_compiler() -> Compiler:
    """The compiler to use now. Raises NativeBuildError where there is none."""
    if target := os.environ.get(ZIG_TARGET_VARIABLE):
        return zig_compiler(target)
    if command := system_compiler():
        return Compiler(command, local_platform_tag())
    try:
        import ziglang  # noqa: F401
    except ImportError:
        raise NativeBuildError(NO_COMPILER) from None
    return zig_compiler(os.uname().machine)


def compile_library(root: Path, compiler: Compiler) -> Path:
    """Compile every C file under ``root`` and put the library in place in one step.

    The library may be in use by a running kernel, so it is replaced by a rename, never written to.
    Raises NativeBuildError with the compiler's own words.
    """
    sources = sorted(str(path) for path in (root / NATIVE).glob("*.c"))
    if not sources:
        raise NativeBuildError(f"{root / NATIVE} holds no C files: this source tree is incomplete.")
    target = root / LIBRARY
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    command = [*compiler.command, *FLAGS, "-o", str(fresh), *sources]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        fresh.unlink(missing_ok=True)
        raise NativeBuildError(
            f"The C compiler refused the native core; nothing was built.\n{shlex.join(command)}\n"
            f"{done.stdout}{done.stderr}\n"
            "Where a header is missing: Debian and Ubuntu have it in libc6-dev."
        )
    fresh.chmod(0o755)  # it is executed, too
    loader = fresh.with_name(f".{LOADER.name}.{os.getpid()}")
    shutil.copy2(fresh, loader)
    loader.replace(root / LOADER)
    fresh.replace(target)
    return target


class NativeBuildHook(BuildHookInterface[Any]):
    """Called by hatchling before it collects the files of a wheel, editable ones included."""

    def dependencies(self) -> list[str]:
        """Ask for ziglang only where nothing else can compile."""
        if not sys.platform.startswith("linux"):
            return []
        wanted = bool(os.environ.get(ZIG_TARGET_VARIABLE)) or system_compiler() is None
        return ["ziglang"] if wanted else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not sys.platform.startswith("linux"):
            return
        compiler = choose_compiler()
        compile_library(Path(self.root), compiler)
        # both are ignored by git
        build_data["artifacts"] += [LIBRARY.as_posix(), LOADER.as_posix()]
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{compiler.platform_tag}"
