"""A process in namespaces of its own that mounts real overlays, works in them and looks at them.

Run as a program it answers requests, one JSON text a line. The tests compare what it saw with what
the code that never mounts anything says. As an ordinary user it keeps its own id (and may read what
it may read outside) but has all rights inside.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

Op = list[Any]


def text(raw: bytes) -> str:
    return raw.decode("latin-1")


def raw(shown: str) -> bytes:
    return shown.encode("latin-1")


def entry(real: bytes, found: os.stat_result, attributes: dict[str, bytes]) -> list[Any]:
    """What must be equal. Sizes and times of whatever a filesystem may choose are left out."""
    mode = found.st_mode
    content = ""
    if stat.S_ISREG(mode):
        content = hashlib.sha1(Path(os.fsdecode(real)).read_bytes()).hexdigest()
    elif stat.S_ISLNK(mode):
        content = text(os.readlink(real))
    return [
        mode,
        found.st_uid,
        found.st_gid,
        found.st_mtime_ns,
        found.st_size if stat.S_ISREG(mode) else None,
        found.st_rdev,
        content,
        sorted([name, text(value)] for name, value in attributes.items()),
    ]


def look(top: bytes) -> dict[str, Any]:
    """Everything that a mount shows, itself too."""
    seen: dict[str, Any] = {}
    todo = [b""]
    while todo:
        path = todo.pop()
        real = top + b"/" + path if path else top
        found = os.lstat(real)
        names = os.listxattr(real, follow_symlinks=False)
        attributes = {
            n: os.getxattr(real, n, follow_symlinks=False)
            for n in names
            if not n.startswith("security.")
        }
        seen[text(path)] = entry(real, found, attributes)
        if stat.S_ISDIR(found.st_mode):
            todo += [path + b"/" + n if path else n for n in os.listdir(real)]
    return seen


def perform(top: bytes, ops: list[Op]) -> None:
    """Do file operations; those that the kernel refuses are refused."""
    for name, *args in ops:
        with contextlib.suppress(OSError):
            OPS[name](*(top + b"/" + raw(a[1:]) if is_path(a) else a for a in args))


def is_path(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("/")


def _put(path: bytes, what: str, flags: int) -> None:
    # A fifo without a reader refuses instead of waiting.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | flags, 0o666)
    try:
        os.write(fd, raw(what))
    finally:
        os.close(fd)


def _write(path: bytes, what: str) -> None:
    _put(path, what, os.O_TRUNC)


def _append(path: bytes, what: str) -> None:
    _put(path, what, os.O_APPEND)


def _replace(path: bytes, what: str) -> None:
    _write(path + b".new", what)
    os.rename(path + b".new", path)


def _rmtree(path: bytes) -> None:
    if stat.S_ISDIR(os.lstat(path).st_mode):  # Python's own waits for the writer of a fifo
        shutil.rmtree(path)


def _remake(path: bytes) -> None:
    """The classic: rm -rf d; mkdir d."""
    _rmtree(path)
    os.mkdir(path)


OPS: dict[str, Any] = {
    "write": _write,
    "append": _append,
    "replace": _replace,
    "mkdir": os.mkdir,
    "rmdir": os.rmdir,
    "rmtree": _rmtree,
    "remake": _remake,
    "unlink": os.unlink,
    "rename": os.rename,
    "symlink": lambda path, to: os.symlink(raw(to[1:]), path),
    "chmod": os.chmod,
    "setxattr": lambda p, n, v: os.setxattr(p, n, raw(v), follow_symlinks=False),
    "removexattr": lambda p, n: os.removexattr(p, n, follow_symlinks=False),
    "link": lambda a, b: os.link(a, b, follow_symlinks=False),
    "utime": lambda p, ns: os.utime(p, ns=(ns, ns), follow_symlinks=False),
    "fifo": os.mkfifo,
    "truncate": os.truncate,
}


class World:
    """The tests' end. Use as a context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__] if sys.version_info >= (3, 11) else
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        self.missing = str(self._answer())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def ask(self, command: str, **args: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, args]) + "\n")
        self._process.stdin.flush()
        reply = self._answer()
        assert "error" not in reply, reply["error"]
        return reply["result"]

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def plain(self, directory: Path, ops: list[Op]) -> None:
        """Do operations in a directory as it is."""
        self.ask("plain", directory=str(directory), ops=ops)

    def generation(self, top: Path, layers: list[str], upper: str, ops: list[Op]) -> dict[str, Any]:
        """Mount top/base below layers (newest first) below a new upper; work; what is seen then,
        after another mount of the same."""
        seen: dict[str, Any] = self.ask(
            "generation", top=str(top), layers=layers, upper=upper, ops=ops
        )
        return seen

    def seen(self, top: Path, layers: list[str]) -> dict[str, Any]:
        """What a mount of layers, newest first, over top/base shows."""
        shown: dict[str, Any] = self.ask("seen", top=str(top), layers=layers)
        return shown


# -- inside ----------------------------------------------------------------------------------


def _enter() -> str:
    from kernel_runtime import linux

    uid, gid = os.getuid(), os.getgid()
    try:
        linux.unshare(linux.CLONE_NEWNS | (linux.CLONE_NEWUSER if uid else 0))
        if uid:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
            Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
        linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    except OSError as error:
        return f"namespaces: {error}"
    return ""


def _mount(top: str, lower: list[str], upper: str | None) -> None:
    from kernel_runtime import linux

    os.chdir(top)
    data = "lowerdir=" + ":".join([*(f"{layer}/files" for layer in lower), "base"])
    if upper is not None:
        os.makedirs(f"{upper}/files", exist_ok=True)
        os.makedirs(f"{upper}/work")
        shutil.copymode(f"{lower[0]}/files" if lower else "base", f"{upper}/files")
        data += f",upperdir={upper}/files,workdir={upper}/work,volatile"
    else:
        data += ":empty"
        os.makedirs("empty", exist_ok=True)
    if os.getuid():
        data += ",userxattr"
    os.makedirs("merged", exist_ok=True)
    linux.mount("overlay", "merged", "overlay", 0, data)


def _unmount(top: str) -> None:
    import ctypes

    if ctypes.CDLL(None, use_errno=True).umount2(f"{top}/merged".encode(), 0):
        raise OSError(ctypes.get_errno(), "umount")


def _answer_one(command: str, args: dict[str, Any]) -> Any:
    if command == "plain":
        perform(os.fsencode(args["directory"]), args["ops"])
        return None
    top = args["top"]
    upper = args.get("upper")
    _mount(top, args["layers"], upper)
    try:
        perform(os.fsencode(f"{top}/merged"), args.get("ops", []))
        seen = look(os.fsencode(f"{top}/merged"))
    finally:
        _unmount(top)
    return seen if upper is None else _answer_one("seen", {"top": top,
                                                 "layers": [upper, *args["layers"]]})  # fmt: skip


def main() -> None:
    """Answer until the end of the input."""
    print(json.dumps(_enter()), flush=True)
    for line in sys.stdin:
        command, args = json.loads(line)
        try:
            reply = {"result": _answer_one(command, args)}
        except Exception as error:
            reply = {"error": repr(error)}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
