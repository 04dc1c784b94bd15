"""Wheels, virtual environments, trees and kernels for the cases of the environment."""

from __future__ import annotations

import base64
import hashlib
import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any


def make_wheel(out: Path, name: str, version: str, files: dict[str, str]) -> None:
    """A wheel of pure Python."""
    info = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    out.mkdir(exist_ok=True)
    with zipfile.ZipFile(out / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
            record += f"{path},sha256={digest.rstrip(b'=').decode()},{len(text.encode())}\n"
        wheel.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")


def make_venv(path: Path) -> Path:
    """A virtual environment that has the packages of this one beside its own; its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", path], check=True, timeout=60)
    here = next(p for p in sys.path if p.endswith("site-packages"))
    (site_packages(path) / "outer.pth").write_text(here + "\n")
    return path / "bin" / "python"


def site_packages(venv: Path) -> Path:
    """Where its packages are."""
    return next(venv.glob("lib/python3*/site-packages"))


def pip_install(python: Path, wheels: Path, *what: str) -> None:
    """Install on the host."""
    command = [python, "-m", "pip", "install", "-q", "--no-index", "--find-links", wheels, *what]
    subprocess.run(command, check=True, timeout=100)


def tree(top: Path) -> dict[bytes, tuple[object, ...]]:
    """All that "tree equal" compares: type, mode, content or target, mtime of each path."""
    found: dict[bytes, tuple[object, ...]] = {}
    base = os.fsencode(top)
    for parent, directories, files in os.walk(base):
        for path in [parent, *(os.path.join(parent, n) for n in [*directories, *files])]:
            st = os.lstat(path)
            content: object = None
            if stat.S_ISREG(st.st_mode):
                with open(path, "rb") as f:
                    content = hashlib.sha256(f.read()).hexdigest()
            elif stat.S_ISLNK(st.st_mode):
                content = os.readlink(path)
            found[os.path.relpath(path, base)] = (st.st_mode, content, st.st_mtime_ns)
    return found


TREE = """
def tree(top):
    import hashlib, os, stat
    found = {}
    base = os.fsencode(top)
    for parent, directories, files in os.walk(base):
        for path in [parent, *(os.path.join(parent, n) for n in [*directories, *files])]:
            st = os.lstat(path); content = None
            if stat.S_ISREG(st.st_mode):
                with open(path, "rb") as f: content = hashlib.sha256(f.read()).hexdigest()
            elif stat.S_ISLNK(st.st_mode): content = os.readlink(path)
            found[os.path.relpath(path, base)] = (st.st_mode, content, st.st_mtime_ns)
    return found
"""
"""The same function, for a cell."""


def checkpoint(notebook: Any, comment: str) -> int:
    """``%checkpoint``; the number that it reports."""
    notebook.run(f"%checkpoint {comment}")
    number: int = notebook.head()["number"]
    return number


def among_mounts(mounts: str) -> tuple[str, ...]:
    """Start a kernel in a mount namespace of its own, as the same user; mounts: in shell."""
    if os.geteuid() == 0:
        return ("unshare", "-m", "sh", "-c", f'{mounts} && exec "$@"', "sh")
    drop = "setpriv --ambient-caps=-all --inh-caps=-all"
    enter = ("unshare", "-Um", "--map-current-user", "--keep-caps", "sh", "-c")
    return (*enter, f'{mounts} && exec {drop} "$@"', "sh")
