"""Hatchling hook: compile the native core, add the sidebar, and tag the wheel as it fits.

On Linux all of ``kernel_runtime/native/*.c`` become one plain shared library, which Python loads
with ctypes: no Python API, so one wheel serves every Python version. Elsewhere the wheel is pure:
it installs, and the kernel says at its start what is missing.

The compiler is the first of ``$CC``, ``cc``, ``gcc``, ``clang``; where there is none, the
``ziglang`` package (about 90 MB) is asked for as a build requirement. For a wheel that runs on
other distributions set ``TIMETRAVEL_ZIG_TARGET`` to ``x86_64`` or ``aarch64``: zig then links
against glibc 2.17, and the wheel is tagged manylinux.

The sidebar of JupyterLab is built from ``labextension/`` by npm where that is there and nothing is
built yet. Without npm, or with ``TIMETRAVEL_SIDEBAR=0``, the wheel has no sidebar; an editable
install takes what is built and builds nothing.
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
SIDEBAR = Path("jupyter_timetravel") / "labextension"
SIDEBAR_SOURCES = Path("labextension")
SIDEBAR_TARGET = "share/jupyter/labextensions/jupyter-timetravel"
SIDEBAR_VARIABLE = "TIMETRAVEL_SIDEBAR"
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


class SidebarBuildError(RuntimeError):
    """The sidebar could not be built: no wheel is made."""


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


def build_sidebar(root: Path) -> str:
    """Build the sidebar unless it is built. Returns why there is none, or "".

    Raises SidebarBuildError with npm's own words.
    """
    sources = root / SIDEBAR_SOURCES
    if (root / SIDEBAR / "package.json").exists():
        return ""
    if os.environ.get(SIDEBAR_VARIABLE) == "0":
        return f"{SIDEBAR_VARIABLE}=0 says so"
    if not (sources / "package.json").exists():
        return f"{sources} is not there"
    npm = shutil.which("npm")
    if npm is None:
        return "npm is not there (Debian, Ubuntu: `apt install nodejs npm`, version 20 or later)"
    for arguments in (("ci", "--ignore-scripts", "--no-audit", "--no-fund"), ("run", "build:prod")):
        command = [npm, *arguments]
        done = subprocess.run(command, cwd=sources, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SidebarBuildError(
                f"The sidebar could not be built; nothing was installed.\n{shlex.join(command)}\n"
                f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}\n"
                f"To install everything else without it: {SIDEBAR_VARIABLE}=0 pip install …"
            )
    return ""


class NativeBuildHook(BuildHookInterface[Any]):
    """Called by hatchling before it collects the files of a wheel, editable ones included."""

    def dependencies(self) -> list[str]:
        """Ask for ziglang only where nothing else can compile."""
        if not sys.platform.startswith("linux"):
            return []
        wanted = bool(os.environ.get(ZIG_TARGET_VARIABLE)) or system_compiler() is None
        return ["ziglang"] if wanted else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        why = "" if version == "editable" else build_sidebar(root)
        if why:
            self.app.display_warning(f"This wheel has no sidebar for JupyterLab: {why}.")
        if (root / SIDEBAR / "package.json").exists():
            build_data["shared_data"][SIDEBAR.as_posix()] = SIDEBAR_TARGET
            about = (SIDEBAR_SOURCES / "install.json").as_posix()
            build_data["shared_data"][about] = f"{SIDEBAR_TARGET}/install.json"
        if not sys.platform.startswith("linux"):
            return
        compiler = choose_compiler()
        compile_library(root, compiler)
        # both are ignored by git
        build_data["artifacts"] += [LIBRARY.as_posix(), LOADER.as_posix()]
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{compiler.platform_tag}"
