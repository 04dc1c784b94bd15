"""Open files come back at their place, with what was buffered; loading never changes a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from namespace_harness import Dumped, dump, load

from tests.conftest import ROOT


def test_case_07_files_keep_their_content_and_their_positions(tmp_path: Path) -> None:
    dumped = dump(
        tmp_path,
        """
open("keep.csv", "w").write("a,b\\n1,2\\n")
ap = open("keep.csv", "a"); ap.write("3,4\\n"); ap.flush()
rd = open("keep.csv"); rd.readline()
out = open("results.txt", "w"); out.write("hello\\n"); out.flush()
gz = __import__("gzip").open("r.gz", "wb"); gz.write(b"zz"); gz.flush()
keep = 42
gone = open("gone.txt", "w")
short = open("short.txt", "w"); short.write("123456789"); short.flush()
""",
    )
    assert set(dumped.lost) == {"gz"}
    (tmp_path / "gone.txt").unlink()
    (tmp_path / "short.txt").write_text("1")

    came = load(
        tmp_path,
        dumped,
        'print(repr(open("keep.csv").read()), repr(open("results.txt").read()), keep)',
        """
print(repr(rd.readline()))
ap.write("5,6\\n"); ap.flush(); out.write("world\\n"); out.flush()
print(repr(open("keep.csv").read()), repr(open("results.txt").read()))
""",
    )

    assert came.printed == [
        "'a,b\\n1,2\\n3,4\\n' 'hello\\n' 42\n",
        "'1,2\\n'\n'a,b\\n1,2\\n3,4\\n5,6\\n' 'hello\\nworld\\n'\n",
    ]
    assert "is not there any more" in came.lost["gone"]
    assert "shorter" in came.lost["short"]
    assert not (tmp_path / "gone.txt").exists()
    assert (tmp_path / "short.txt").read_text() == "1"


WRITTEN = """
import bz2, gzip, io, lzma, mmap, os, sys, tempfile
open("text.txt", "wb").write("".join(f"line {i} äöü€\\r\\n" for i in range(5000)).encode())
plain = open("text.txt", newline=""); plain.readline()
universal = open("text.txt", encoding="utf-8"); universal.readline(); universal.read(3)
looped = open("text.txt"); _first = [next(looped) for _ in range(777)]
kept_ends = open("text.txt", newline=""); next(kept_ends)
with open("text.txt") as closed: pass
both = open("both.txt", "w+"); both.write("abcdef"); both.seek(2); both.write("X")
binary = open("bytes", "wb+"); binary.write(b"0123456789"); binary.seek(3); binary.read(1)
bare = open("bytes", "rb", buffering=0); bare.seek(4)
pending = open("pending.txt", "w"); pending.write("not yet")
wide = open("wide.txt", "w", encoding="utf-16"); wide.write("hi")
ends = open("ends.txt", "w", newline="\\r\\n"); ends.write("x\\n")
for library, name in ((gzip, "z.gz"), (bz2, "z.bz2"), (lzma, "z.xz")):
    with library.open(name, "wb") as file: file.write(b"hello world")
packed = [gzip.open("z.gz"), bz2.open("z.bz2"), lzma.open("z.xz"), gzip.open("z.gz", "rt")]
for each in packed: each.read(6)
text = io.StringIO("ab"); text.read(1); data = io.BytesIO(b"abc"); data.read(2)
memory = mmap.mmap(-1, 10); memory[:3] = b"abc"
named = tempfile.NamedTemporaryFile("w+", dir=".", delete=False); named.write("t")
r, w = os.pipe(); pipe = os.fdopen(w, "w")
mapped = mmap.mmap(bare.fileno(), 0, access=mmap.ACCESS_READ)
error, listing = sys.__stderr__, os.scandir(".")
"""


def test_every_kind_of_file(tmp_path: Path) -> None:
    dumped = dump(tmp_path, WRITTEN)
    assert set(dumped.lost) == {"pipe", "mapped", "listing"}
    assert "pipe" in dumped.lost["pipe"] and "scandir" in dumped.lost["listing"]

    came = load(
        tmp_path,
        dumped,
        "print(repr(plain.readline()), repr(universal.readline()), repr(looped.readline()))\n"
        "print(repr(next(kept_ends)), closed.closed, closed.name, closed.mode)",
        "print(both.tell(), both.mode); both.write('Y'); both.seek(0); print(both.read())\n"
        "print(binary.tell(), binary.read(2), bare.tell(), bare.name)",
        "print(repr(open('pending.txt').read())); pending.close(); "
        "print(open('pending.txt').read())",
        "wide.write('ho'); wide.close(); print(open('wide.txt', encoding='utf-16').read())\n"
        "ends.write('y\\n'); ends.close(); print(open('ends.txt', 'rb').read())",
        "print([each.read() for each in packed], file.closed)",
        "import sys\n"
        "print(text.read(), data.read(), memory[:4], named.tell(), error is sys.__stderr__)",
    )

    assert came.lost == dumped.lost
    assert came.printed == [
        "'line 1 äöü€\\r\\n' 'e 1 äöü€\\n' 'line 777 äöü€\\n'\n"
        "'line 1 äöü€\\r\\n' True text.txt r\n",
        "3 w+\nabXYef\n4 b'45' 4 bytes\n",
        "''\nnot yet\n",
        "hiho\nb'x\\r\\ny\\r\\n'\n",
        "[b'world', b'world', b'world', 'world'] True\n",
        "b b'c' b'abc\\x00' 1 True\n",
    ]


IN_A_COPY = """
import json, os, sqlite3, sys
def _open():
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
from kernel_runtime.executor.namespace.dumping import dump
from kernel_runtime.executor.namespace.session import SessionState
from tests.namespace.namespace_harness import DirectoryStore

out = open("out.txt", "w"); out.write("on the disk\\n"); out.flush(); out.write("pending\\n")
rd = open("out.txt"); rd.read(3)
both = open("both.bin", "w+b"); both.write(b"12345")
con = sqlite3.connect("s.db"); con.execute("create table t(x)"); con.commit()
con.create_function("twice", 1, lambda x: 2 * x)
files = {}
for file in (out, rd, both):
    fd = file.fileno()
    offset = os.lseek(fd, 0, os.SEEK_CUR)
    files[fd] = {"path": os.path.realpath(file.name), "flags": 0, "offset": offset}
open_now = {int(fd): os.readlink(f"/proc/self/fd/{fd}") for fd in _open()}
for fd in {*files, *(fd for fd, path in open_now.items() if path.endswith("s.db"))}:
    os.close(fd)
names = {"out": out, "rd": rd, "both": both, "con": con}
manifest = dump(SessionState(namespace=names, files=files), DirectoryStore(os.getcwd()))
print(json.dumps(manifest))
sys.stdout.flush()
os._exit(0)
"""


def test_files_in_a_copy_of_the_process_where_they_are_not_open(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_COPY],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.txt").read_text() == "on the disk\n"
    manifest = json.loads(done.stdout)
    assert manifest["lost"] == []
    assert manifest["notices"] == [["con", "what was added to the connection is not kept: twice()"]]

    came = load(
        tmp_path,
        Dumped(manifest, 0, [], {"seed": "7"}),
        "print(repr(rd.read())); out.close(); print(rd.read(), both.tell()); both.flush()\n"
        "print(con.execute('select count(*) from t').fetchone())",
    )

    assert came.printed == ["'the disk\\n'\npending\n 5\n(0,)\n"]
    assert (tmp_path / "out.txt").read_text() == "on the disk\npending\n"
    assert (tmp_path / "both.bin").read_bytes() == b"12345"
