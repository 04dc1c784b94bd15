"""Digests of mapped files, kept for the next kernel: only where nothing can have changed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import pytest

from kernel_runtime.engines import mapped_files
from kernel_runtime.engines.mapped_files import FileDigests, known_by
from kernel_runtime.engines.workspace.filesystems import granularity_ns, trust_of
from kernel_runtime.store.file_digests import SETTLED_NS, KeptDigests, Key, key_of
from kernel_runtime.store.image_model import FileInUse
from kernel_runtime.store.keys import Keys
from tests.waiting import until

MADE_UP = "f" * 64
"""What a digest that was not read again looks like here."""


def in_use(path: Path) -> FileInUse:
    found = path.stat()
    return FileInUse(str(path), found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def real(path: Path) -> str:
    return blake2b(path.read_bytes(), digest_size=32).hexdigest()


def known(path: Path) -> Key | None:
    return known_by(in_use(path), path.stat())


class Kernels:
    """Kernels of one store, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "images").mkdir()

    def kept(self) -> KeptDigests:
        return KeptDigests(self.folder / "images", Keys(self.folder / "keys"))

    def digest(self, path: Path, root: str = "") -> str:
        """What a kernel that has just started says of a file."""
        files = FileDigests(self.kept())
        found = files.digest(in_use(path), root)
        files.save()
        return found

    def make_up(self, path: Path) -> None:
        kept = self.kept()
        kept.add(key_of(path.stat()), MADE_UP)
        kept.save()


@pytest.fixture
def kernels(tmp_path: Path, ability: Callable[[str, bool], None]) -> Kernels:
    directory = os.open(tmp_path, os.O_RDONLY)
    trust = trust_of(directory)
    os.close(directory)
    proves = trust.stat and trust.same_clock and trust.name != "tmpfs"
    ability("temporary files on a disk whose times prove a change", proves)
    return Kernels(tmp_path)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files settle as soon as the clock has ticked."""
    monkeypatch.setattr(mapped_files, "SETTLED_NS", 0)


@pytest.mark.usefixtures("settled")
def test_a_library_is_read_once_for_all_kernels(kernels: Kernels) -> None:
    path = kernels.folder / "library"
    path.write_bytes(b"library" * 1000)
    until(lambda: known(path) is not None)
    assert kernels.digest(path) == real(path)
    assert kernels.kept().get(key_of(path.stat())) == real(path)
    kernels.make_up(path)
    assert kernels.digest(path) == MADE_UP  # it was not read
    # what another key has signed, or nobody, is not believed
    stored = kernels.folder / "images" / "files"
    data = stored.read_bytes()
    stored.write_bytes(data.replace(b"fff", b"eee"))
    assert kernels.digest(path) == real(path)
    stored.write_bytes(data)
    os.rename(kernels.folder / "keys", kernels.folder / "other")
    assert kernels.digest(path) == real(path)


def test_kernels_do_not_take_each_others_away(kernels: Kernels) -> None:
    one, other = kernels.kept(), kernels.kept()
    assert one.get((1, 1, 1, 1, 1)) is None and other.get((1, 1, 1, 1, 1)) is None
    one.add((1, 1, 1, 1, 1), "a")
    other.add((2, 2, 2, 2, 2), "b")
    one.save()
    other.save()
    kept = kernels.kept()
    assert (kept.get((1, 1, 1, 1, 1)), kept.get((2, 2, 2, 2, 2))) == ("a", "b")
    assert [path.name for path in (kernels.folder / "images").iterdir()] == ["files"]


def test_a_file_that_was_just_written_is_read_each_time(kernels: Kernels) -> None:
    path = kernels.folder / "library"
    path.write_bytes(b"young")
    assert known(path) is None and SETTLED_NS > 60 * 10**9
    kernels.make_up(path)
    assert kernels.digest(path) == real(path)


@pytest.mark.usefixtures("settled")
def test_a_write_within_the_clocks_tick_is_not_missed(kernels: Kernels) -> None:
    path = kernels.folder / "library"
    unknown = 0
    for turn in range(50):
        path.write_bytes(bytes([turn]))
        found = path.stat()
        with open(path, "rb") as file:
            tick_ns = granularity_ns(trust_of(file.fileno()), found.st_ctime_ns)
        key = known(path)
        assert key is None or time.time_ns() - found.st_ctime_ns > tick_ns
        unknown += key is None
    assert unknown


@pytest.mark.usefixtures("settled")
def test_another_file_with_the_same_size_and_mtime(kernels: Kernels) -> None:
    path = kernels.folder / "library"
    path.write_bytes(b"before")
    until(lambda: known(path) is not None)
    assert kernels.digest(path) == real(path)
    kernels.make_up(path)
    assert kernels.digest(path) == MADE_UP
    before = path.stat()
    path.write_bytes(b"after ")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    until(lambda: known(path) is not None)
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert kernels.digest(path) == real(path)
    # and one that took its place
    kernels.make_up(path)
    other = kernels.folder / "other"
    other.write_bytes(b"others")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.rename(path)
    until(lambda: known(path) is not None)
    assert kernels.digest(path) == real(path)


@pytest.mark.usefixtures("settled")
def test_a_file_that_the_session_has_changed_is_not_the_hosts(kernels: Kernels) -> None:
    host = kernels.folder / "library"
    host.write_bytes(b"the host's")
    until(lambda: known(host) is not None)
    kernels.make_up(host)
    root = kernels.folder / "root"
    inside = Path(f"{root}{host}")
    inside.parent.mkdir(parents=True)
    inside.write_bytes(b"the layer's")
    found = inside.stat()
    used = FileInUse(str(host), found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    assert known_by(used, found) is None
    assert FileDigests(kernels.kept()).digest(used, str(root)) == real(inside)


def test_what_is_no_file_any_more(tmp_path: Path) -> None:
    found = Path(sys.executable).stat()
    gone = FileInUse(str(tmp_path / "gone"), found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    assert known_by(gone, found) is None
    os.mkfifo(tmp_path / "gone")
    assert known_by(gone, found) is None  # and does not wait for whoever writes to it


def test_a_large_file_is_hashed_in_pieces(tmp_path: Path) -> None:
    """A change of one byte anywhere, also behind the last whole step, is another digest."""
    path = tmp_path / "large"
    data = bytearray(range(256)) * (72 << 10)  # 18 MiB
    seen = set()
    for at in (None, 0, 5 << 20, (16 << 20) + 1, len(data) - 1):
        if at is not None:
            data[at] ^= 1
        path.write_bytes(data)
        found = path.stat()
        used = FileInUse(str(path), found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        digest = FileDigests().digest(used, "")
        assert digest == FileDigests().digest(used, "") and len(digest) > 64
        seen.add(digest)
    assert len(seen) == 5
