"""Files and attributes of the user's that look like deletions (case filesystem-04): an export keeps
them, an image refuses those that it cannot hold, and neither makes deletions of them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import open_up
from tests.exchange.conftest import call, end, write_notebook
from tests.exchange.world import plain

MAKE = """
import os, stat
from pathlib import Path
os.chdir({E!r})
open(".wh.test", "w").write("mine"); os.makedirs("app2"); os.makedirs(".wh.d/.wh.e")
open("app2/.wh..wh..opq", "w").write("mine too"); open("app2/.wh..opq", "w").close()
open("app2/.wh.empty", "w").close(); os.link("app2/.wh.empty", "app2/second")
open("app2/.%wh.odd", "w").write("odd"); open(".wh.d/.wh.e/f", "w").write("deep")
os.unlink(".wh.host")
os.makedirs("lay"); open("lay/f", "w").write("f"); attributes = []
for k in ("user.overlay.opaque", "user.overlay.whiteout", "user.note"):
    try: os.setxattr("lay", k, b"y"); attributes.append(k)
    except OSError as e: print(k, e.errno)
"""
SHOW = """
import os
found = {}
for parent, directories, files in os.walk(E):
    found.update((os.path.relpath(os.path.join(parent, n), E), None) for n in directories)
    for n in files:
        with open(os.path.join(parent, n)) as f: found[os.path.relpath(f.name, E)] = f.read()
attributes = {n: os.getxattr(E + "/lay", n) for n in os.listxattr(E + "/lay")}
print((found, attributes))
"""


@dataclass
class Place:
    """base/E is covered: the cells make files there. #plain, #markers and #gone are checkpoints."""

    base: Path
    attributes: list[str]
    start: Callable[..., Any]
    kernels: list[Any] = field(default_factory=list)

    @property
    def E(self) -> Path:
        return self.base / "E"

    @property
    def notebook(self) -> Path:
        return self.base / "P" / "a.ipynb"

    def call(self, *words: Any, store: str = "store", status: int = 0) -> str:
        keys = str(self.base / "keys")
        return call(*words, store=self.base / store, status=status, JUPYTER_TIMETRAVEL_KEYS=keys)

    def kernel(self, path: Path, store: str = "store") -> Any:
        kernel = self.start(
            cwd=path.parent,
            env={
                "HOME": str(self.base),
                "JPY_SESSION_NAME": str(path),
                "JUPYTER_TIMETRAVEL_STORE": str(self.base / store),
                "JUPYTER_TIMETRAVEL_KEYS": str(self.base / "keys"),
            },
        )
        self.kernels.append(kernel)
        return kernel


@pytest.fixture
def place(start_notebook: Callable[..., Any], ability: Any) -> Iterator[Place]:
    base = Path(tempfile.mkdtemp(prefix="tt-exchange-", dir=Path.home()))
    made = Place(base, [], start_notebook)
    try:
        (made.E / "app").mkdir(parents=True)
        for name in ("test", "app/test", "host", ".wh.host"):
            (made.E / name).write_text("t")
        (made.E / "app2").mkdir()
        (made.E / "app2/below").write_text("below")
        write_notebook(made.notebook)
        kernel = made.kernel(made.notebook)
        ability("overlays", bool(kernel.command("status")["environment"]["covered"]))
        W = str(made.notebook.parent)
        kernel.run(f"E = {str(made.E)!r}\nopen(E + '/plain', 'w').close()")
        kernel.run("%checkpoint --label plain")
        kernel.run(MAKE.format(E=str(made.E)).replace('os.makedirs("app2"); ', ""))
        kernel.run(f"os.chdir({W!r})")
        kernel.run("%checkpoint --label markers")
        made.attributes = eval(kernel.run("attributes").result)
        kernel.run(
            "import shutil; shutil.rmtree(E + '/.wh.d'); os.unlink(E + '/app2/.wh..wh..opq')\n"
            "os.unlink(E + '/.wh.test'); os.unlink(E + '/app2/.wh.empty')\n"
            "os.unlink(E + '/app2/second'); os.unlink(E + '/app2/.wh..opq')\n"
            "for n in os.listxattr(E + '/lay'): os.removexattr(E + '/lay', n)"
        )
        kernel.run("%checkpoint --label gone")
        end(kernel)
        yield made
    finally:
        for kernel in made.kernels:
            if kernel.manager.is_alive():
                kernel.manager.shutdown_kernel()
        open_up(base)
        shutil.rmtree(base)


WITHOUT = {
    "app": None, "app/test": "t", "test": "t", "host": "t", "plain": "", "app2": None,
    "app2/below": "below", "app2/.%wh.odd": "odd", "lay": None, "lay/f": "f",
}  # fmt: skip
ALL = {
    **WITHOUT, ".wh.test": "mine", ".wh.d": None, ".wh.d/.wh.e": None, ".wh.d/.wh.e/f": "deep",
    "app2/.wh..wh..opq": "mine too", "app2/.wh..opq": "", "app2/.wh.empty": "", "app2/second": "",
}  # fmt: skip


def test_an_export_keeps_them(place: Place) -> None:
    file = place.base / "a.ttl"
    place.call("export", place.notebook, "-o", file)
    with tarfile.open(fileobj=io.BytesIO(plain(file))) as tar:
        names = [info.name.partition("/E/")[2] for info in tar if "/E/" in info.name]
    # what another reader of such layers would take for a deletion is one
    deletions = {name for name in names if name.rpartition("/")[2].startswith(".wh.")}
    assert ".wh..%wh.host" in deletions and ".%wh.test" in names
    assert not deletions & {".wh.test", "app2/.wh..wh..opq", "app2/.wh.empty", ".wh.d/.wh.e"}
    path = place.base / "Q" / "b.ipynb"
    write_notebook(path)
    place.call("import", file, "--as", path, store="other")
    kernel = place.kernel(path, "other")
    kernel.run(f"E = {str(place.E)!r}")
    for label, expected, attributes in (
        ("gone", WITHOUT, []),
        ("markers", ALL, place.attributes),
        ("gone", WITHOUT, []),
    ):
        kernel.run(f"%restore {label} --only files")
        found = eval(kernel.run(SHOW).out)
        assert found == (expected, dict.fromkeys(attributes, b"y")), label
    assert "user.note" in place.attributes
    assert (place.E / ".wh.host").read_text() == "t", "the host's own is as it was"


def scratch(file: Path) -> Path:
    """An image without layers, as `docker save` writes one."""
    config = json.dumps({
        "architecture": "amd64", "os": "linux", "config": {},
        "rootfs": {"type": "layers", "diff_ids": []}, "history": [],
    }).encode()  # fmt: skip
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": name, "RepoTags": None, "Layers": []}]).encode()
    with tarfile.open(file, "w") as tar:
        for member, data in ((name, config), ("manifest.json", manifest)):
            info = tarfile.TarInfo(member)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file


def test_an_image_refuses_what_it_cannot_hold(place: Place) -> None:
    base, target = scratch(place.base / "base.tar"), place.base / "image.tar"
    words = ("--image", "timetravel-test:1", "--base", base, "-o", target)
    told = place.call("export", place.notebook, "markers", *words, status=1)
    assert f"{place.E}/" in told and ".wh." in told and "No image was made" in told
    assert not target.exists()
    place.call("export", place.notebook, "gone", *words)
    top = str(place.E).strip("/")
    shown: dict[str, str | None] = {}
    with tarfile.open(target) as image:
        listed = json.load(image.extractfile("manifest.json"))  # type: ignore[arg-type]
        for name in listed[0]["Layers"]:
            with tarfile.open(fileobj=image.extractfile(name)) as layer:
                for info in layer:
                    if not info.name.startswith(f"{top}/"):
                        continue
                    path = info.name[len(top) + 1 :]
                    assert not any("user.overlay." in key for key in info.pax_headers), path
                    parent, _, last = path.rpartition("/")
                    assert not parent.rpartition("/")[2].startswith(".wh.")
                    if last.startswith(".wh."):
                        # of what the image had below, and of nothing else
                        gone = os.path.join(parent, last[len(".wh.") :])
                        assert shown.pop(gone) is not None
                    else:
                        shown[path] = (
                            layer.extractfile(info).read().decode()  # type: ignore[union-attr]
                            if info.isreg()
                            else None
                        )
    not_of_the_session = {"app", "app/test", "test", "host", "app2/below"}
    assert shown == {k: v for k, v in WITHOUT.items() if k not in not_of_the_session}


def test_an_image_refuses_files_of_the_workspace_too(place: Place) -> None:
    kernel = place.kernel(place.notebook)
    made = kernel.run(
        "import os, stat; open('.wh.mine', 'w').close()\n"
        "try: os.mknod('cdev', stat.S_IFCHR | 0o600, os.makedev(0, 0)); print('made')\n"
        "except OSError as e: print(e.errno)"
    ).out
    told = kernel.run("%checkpoint --label workspace").out
    assert ("cdev" in told) == (made == "made"), "a device is named, and not kept"
    end(kernel)
    base, target = scratch(place.base / "base.tar"), place.base / "image.tar"
    words = ("--image", "timetravel-test:1", "--base", base, "-o", target, "--workspace")
    told = place.call("export", place.notebook, "workspace", *words, status=1)
    assert ".wh.mine" in told and "No image was made" in told
    assert not target.exists()
    file, path = place.base / "a.ttl", place.base / "Q" / "b.ipynb"
    place.call("export", place.notebook, "workspace", "-o", file)
    write_notebook(path)
    place.call("import", file, "--as", path, store="other")
    place.call("restore", path, "workspace", store="other")
    assert (path.parent / ".wh.mine").read_bytes() == b""
    assert not (path.parent / "cdev").exists()
