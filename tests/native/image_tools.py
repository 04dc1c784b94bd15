"""Images by hand: a frozen target written to a store, and loaded in another world."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import native_harness
import native_target as tt
from native_build import built_library, built_loader, built_states
from native_harness import Frozen, World

from kernel_runtime.engines.image import Loaded, read_answer, tell_loader
from kernel_runtime.engines.mapped_files import FileDigests
from kernel_runtime.store.image_model import OpenImage, Written
from kernel_runtime.store.images import ImageStore
from kernel_runtime.store.keys import Keys


class Images:
    """A store of images in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = ImageStore(folder, Keys(folder / "keys"))
        self.files = FileDigests(self.store.file_digests)

    def write(self, frozen: Frozen, base: Written | None = None, root: str = "") -> Written:
        """Have a frozen process written."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with ours:
            with theirs:
                answer = frozen.ask(tt.IMAGE, fds=(theirs.fileno(),))
            assert answer.error == 0, os.strerror(answer.error)
            return self.store.take_in(ours, self.files.at(root), base=base.ref if base else None)

    def load(self, ref: str, world: World) -> Frozen:
        """A frozen process in that world. Raises ImageUnusable and its like."""
        frozen, loaded = self.load_closely(ref, world)
        assert loaded.not_captured == []
        return frozen

    def load_closely(self, ref: str, world: World) -> tuple[Frozen, Loaded]:
        with self.store.open(ref) as image:
            self.files.check(image, "")
            return self.load_opened(image, world)

    def load_opened(self, image: OpenImage, world: World) -> tuple[Frozen, Loaded]:
        path = str(world.folder / f"loaded.{world.count()}")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(path)
            os.chmod(path, 0o777)
            listener.listen(8)
            process = world.start_program([str(built_loader())])
            keep = not is_plain(world)
            tell_loader(process.link, image, listener.fileno(), -1, keep_ids=keep)
        process.link.settimeout(native_harness.PATIENCE)
        loaded = read_answer(image.ref, process.link.recv(4096))
        return Frozen(world, path, loaded.pid, {}), loaded


@contextmanager
def another(kind: str) -> Iterator[World]:
    """A world like the one that is gone: new processes, new /tmp and /dev/shm."""
    world = World(kind, built_library(), built_states())
    try:
        if not kind.endswith("plain"):
            assert world.mount("none", "/dev/shm", "tmpfs") == 0
        yield world
    finally:
        world.close()


def is_plain(world: World) -> bool:
    return world.kind.endswith("plain")


def load(images: Images, written: Written, world: World, *, again: bool = False) -> Frozen:
    """again: what was written had been loaded itself."""
    frozen, loaded = images.load_closely(written.ref, world)
    # which program a process is may be said by those who can restore checkpoints; one that was
    # loaded by others is our loader from then on, as its image says
    lost = loaded.not_captured
    is_another = is_plain(world) and not again
    assert [note.kind for note in lost] == ["process"] * is_another, lost
    return frozen
