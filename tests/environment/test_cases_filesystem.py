"""The cases of the filesystem, with real kernels. E is a directory that the sandbox covers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
import pytest
from environment_tools import TREE, among_mounts, checkpoint, tree

from tests.waiting import PATIENCE, until


def on_host(notebook, code):
    """What a shell says outside of the sandbox, among the mounts that the supervisor sees."""
    user = [] if os.geteuid() == 0 else ["-U", "--preserve-credentials"]
    command = ["nsenter", "-t", str(notebook.pid), "-m", *user]
    return subprocess.run(
        [*command, "sh", "-c", code], capture_output=True, text=True, timeout=60
    ).stdout


@pytest.fixture
def mounts_allowed(ability):
    """Skip, by name, where this user cannot mount anything even in a namespace of its own."""
    tried = subprocess.run([*among_mounts("mount -t tmpfs t /mnt"), "true"])
    ability("mounts in a namespace", tried.returncode == 0)


def test_01_renaming_a_directory_that_came_from_the_host(start, home, E):
    """Both renames are refused, as docs/environment.md and the doctor say; what is done instead is
    captured whole."""
    (E / "pkg/sub").mkdir(parents=True)
    (E / "pkg/a.py").write_text("one\n")
    (E / "pkg/sub/b.py").write_text("two\n")
    (home / "work").mkdir()
    notebook = start(cwd=home / "work")
    part = tempfile.mktemp(dir="/tmp")
    notebook.run(f"import os, shutil\n{TREE}\nE = {str(E)!r}; part = {part!r}")
    a = checkpoint(notebook, "pkg")
    renaming = (
        "try: os.rename(f'{E}/pkg', f'{E}/pkg-old'); print('rename ok')\n"
        "except OSError as e: print('errno', e.errno)"
    )
    assert notebook.run(renaming).out == "errno 18"
    notebook.run(
        "shutil.move(f'{E}/pkg', f'{E}/pkg-old'); os.mkdir(f'{E}/pkg')\n"
        "open(f'{E}/pkg/a.py','w').write('new')"
    )
    b = checkpoint(notebook, "moved")
    notebook.run("open(part, 'w').write('result')")
    replacing = (
        "try: os.replace(part, 'result.txt'); print('replace ok')\n"
        "except OSError as e: print('errno', e.errno); shutil.move(part, 'result.txt')"
    )
    assert notebook.run(replacing).out == "errno 18"
    assert (home / "work/result.txt").read_text() == "result" and not os.path.exists(part)
    notebook.run(f"%restore {a}")
    assert eval(notebook.run("tree(E)").result) == tree(E)
    notebook.run(f"%restore {b}")
    cell = notebook.run(
        "print(sorted(os.listdir(E)), os.listdir(f'{E}/pkg'), open(f'{E}/pkg/a.py').read(),"
        " sorted(os.listdir(f'{E}/pkg-old')), open(f'{E}/pkg-old/a.py').read(),"
        " open(f'{E}/pkg-old/sub/b.py').read())"
    )
    assert cell.text() == "['pkg', 'pkg-old'] ['a.py'] new ['a.py', 'sub'] one\n two\n\n"


def test_01_the_doctor_tries_both_on_this_machine(ability):
    code = "from jupyter_timetravel.cli import main; raise SystemExit(main(['doctor', '--json']))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    rows = {row["name"]: row for row in json.loads(done.stdout)["checks"]}
    ability(f"overlays ({rows['overlays']['text']})", rows["overlays"]["state"] == "fine")
    text = rows["renames"]["text"]
    assert "os.rename of a directory that the host has fails (Invalid cross-device link)" in text
    into = text.partition("os.replace or os.rename of a file from ")[2]
    for place in (os.path.expanduser("~"), tempfile.gettempdir()):
        assert place in into.partition(" into the workspace")[0], text
    assert "fails too (Invalid cross-device link)" in into
    left = [name for name in os.listdir(os.path.expanduser("~")) if "timetravel-trial" in name]
    assert not left


def test_01_renaming_a_directory_of_an_earlier_cell(notebook, E):
    """The cell learns why, and what to do instead; an ordinary error has no such hint."""
    notebook.run(
        f"import os; E = {str(E)!r}; os.mkdir(E + '/made'); open(E + '/made/f', 'w').close()"
    )
    notebook.head()
    renamed = notebook.run("os.rename(E + '/made', E + '/other')", ok=False)
    assert "Errno 18" in renamed.error and "shutil.move" in renamed.text("stderr")
    other = notebook.run("os.rename(E + '/none', E + '/other')", ok=False)
    assert "Errno 2" in other.error and "time travel" not in other.text("stderr")
    devices = notebook.run("os.rename(E + '/made', '/dev/shm/made')", ok=False)
    assert "Errno 18" in devices.error and "time travel" not in devices.text("stderr")


def test_hard_links_outside_of_the_workspace(notebook, E):
    """As docs/environment.md says: after a checkpoint they part, after a restore they are one."""
    notebook.run(
        f"import os; a, b = {str(E / 'a')!r}, {str(E / 'b')!r}; print(open(a, 'w').write('1'))"
    )
    notebook.run("os.link(a, b)")
    at = notebook.head()["number"]
    notebook.run("open(a, 'a').write('2')")
    assert notebook.run("print(open(a).read(), open(b).read())").out == "12 1"
    notebook.run(f"%restore {at}")
    shown = "print(open(a).read(), open(b).read(), os.stat(a).st_ino == os.stat(b).st_ino)"
    assert notebook.run(shown).out == "1 1 True"


def test_02_a_directory_deleted_and_made_again(start, home, E):
    (E / "d/deep").mkdir(parents=True)
    (E / "d/old").write_text("old\n")
    (E / "d/deep/old").write_text("old\n")
    before = tree(E)
    work = home / "work"
    work.mkdir()
    nbformat.write(nbformat.v4.new_notebook(), work / "t.ipynb")
    named = {"cwd": work, "env": {"JPY_SESSION_NAME": str(work / "t.ipynb")}}
    notebook = start(**named)
    notebook.run(f"!rm -rf {E}/d && mkdir {E}/d && echo new > {E}/d/new")
    a = checkpoint(notebook, "replaced")
    notebook.run(f"!rm -rf {E}/d")
    b = checkpoint(notebook, "gone")
    listed = f"!ls {E}/d 2>&1; ls -d {E}/d 2>&1"
    assert "No such file" in notebook.run(listed).out
    notebook.run(f"%restore {a}")
    assert notebook.run(f"!ls {E}/d").out.split() == ["new"]
    notebook.run(f"%restore {b}")
    assert "No such file" in notebook.run(f"!ls -d {E}/d 2>&1").out
    notebook.manager.shutdown_kernel()
    again = start(**named)
    assert "No such file" in again.run(f"!ls -d {E}/d 2>&1").out
    again.run(f"%restore {a} --only files")
    assert again.run(f"!ls {E}/d").out.split() == ["new"]
    again.run(f"%restore {b} --only files")
    assert "No such file" in again.run(f"!ls -d {E}/d 2>&1").out
    assert tree(E) == before


def test_04_files_that_look_like_the_overlays_own(notebook, E):
    (E / "app").mkdir()
    (E / "test").write_text("t\n")
    (E / "app/test").write_text("t\n")
    made = notebook.run(
        f"import os, stat\nos.chdir({str(E)!r})\n"
        'open(".wh.test","w").write("mine\\n"); os.makedirs("app2")\n'
        'open("app2/.wh..wh..opq","w").write("mine too\\n")\n'
        'os.makedirs("lay"); open("lay/f","w").write("f\\n")\n'
        'for k in ("user.overlay.opaque","user.overlay.whiteout","user.note"):\n'
        '    try: os.setxattr("lay", k, b"y")\n'
        "    except OSError as e: print(k, e.errno)\n"
        'try: os.mknod("cdev", stat.S_IFCHR | 0o600, os.makedev(0, 0)); print("made")\n'
        'except OSError as e: print("mknod", e.errno)\n'
        'attributes = {n: os.getxattr("lay", n) for n in os.listxattr("lay")}; print(attributes)'
    ).out.splitlines()
    assert made[0] in ("made", "mknod 1") and "user.note" in made[-1]
    before = tree(E)
    a = checkpoint(notebook, "markers")
    notebook.run("!rm -rf .wh.test app2 lay")
    notebook.run(f"%restore {a}")
    read = notebook.run("!cat test app/test .wh.test app2/.wh..wh..opq lay/f")
    assert read.out.split() == ["t", "t", "mine", "mine", "too", "f"]
    again = "{n: os.getxattr('lay', n) for n in os.listxattr('lay')} == attributes"
    assert notebook.run(again).result == "True"
    there = {".wh.test", "app", "app2", "lay", "test"} | ({"cdev"} if made[0] == "made" else set())
    assert set(eval(notebook.run("os.listdir()").result)) == there
    assert tree(E) == before


def test_05_a_file_that_the_kernel_has_mapped(notebook, E):
    (E / "table.bin").write_bytes(b"a" * (1 << 20))
    looked = 'print(view[:4], open(path,"rb").read(4), fh.seek(0) or fh.read(4))'
    notebook.run(
        f"import mmap, os\npath = {str(E / 'table.bin')!r}\n"
        "fh = open(path,'rb'); view = mmap.mmap(fh.fileno(), 0, prot=mmap.PROT_READ)\n"
        "first = view[:4]"
    )
    a = checkpoint(notebook, "mapped")
    changed = notebook.run(f"with open(path,'r+b') as f: f.write(b'BBBB')\n{looked}").out
    assert changed in ("b'aaaa' b'BBBB' b'BBBB'", "b'BBBB' b'BBBB' b'BBBB'")
    notebook.run(f"%restore {a}")
    assert notebook.run(looked).out == "b'aaaa' b'aaaa' b'aaaa'"
    notebook.run("!echo more >> {path}")
    assert notebook.run('print(open(path,"rb").seek(0,2))').out == "1048581"
    held = notebook.run(
        "maps = [line.split(None, 5) for line in open('/proc/self/maps')]\n"
        "paths = {one[5].rstrip('\\n') for one in maps if len(one) == 6 and '/' in one[5]}\n"
        "paths |= {os.readlink(d.path) for d in os.scandir('/proc/self/fd')"
        " if os.path.islink(d.path)}\n"
        "sorted(p for p in paths if p.startswith('/') and (not os.path.exists(p) or 'layers' in p))"
    )
    assert held.result == "[]"


def full_disk(notebook, E):
    """The case on a kernel whose store, with the live layers, has 64 MiB."""
    notebook.run(f"import os; os.chdir({str(E)!r}); x = 1")
    a = checkpoint(notebook, "good")
    full = notebook.run(
        "x = 2\nopen('pad','wb').write(bytes(30 << 20))\n"
        "try: open('big','r+b'); print('opened')\n"
        "except OSError as e: print('open', e.errno)\n"
        "try: os.chmod('big', 0o600)\n"
        "except OSError as e: print('chmod', e.errno)\n"
        "os.unlink('big'); print('deleted')"
    )
    assert full.out == "open 28\nchmod 28\ndeleted"
    # to the last byte
    notebook.run(
        "fd = os.open('rest', os.O_CREAT | os.O_WRONLY)\n"
        "try:\n    while True: os.write(fd, bytes(4096))\n"
        "except OSError: os.close(fd)"
    )
    notebook.head()  # that of the last cell is made, or not
    before = [c["number"] for c in notebook.command("list")["checkpoints"]]
    cell = notebook.run("%checkpoint while full", ok=False)
    held = notebook.head()
    if held["number"] in before:
        assert "space" in cell.error
    elif any(c["state"] == "failed" for c in held["captures"]):
        assert "not captured" in cell.out and "No " in cell.out
    looked = "print(x, os.path.getsize('big'), os.path.exists('pad'), os.path.exists('rest'))"
    for _ in range(3):
        cell = notebook.run(f"%restore {a}")
        assert notebook.run(looked).out == "1 52428800 False False"
        notebook.run("x = 3; open('small', 'w').close()")
    notebook.run("open(os.path.expanduser('~/in-home'), 'w').close()")
    # room is made
    for record in notebook.command("list")["checkpoints"]:
        if record["number"] > a and not record["is_head"]:
            notebook.command("delete", checkpoint=record["number"])
    # a mount that had what was deleted goes at a capture after the last process that used it
    free = "found = os.statvfs('.'); print(found.f_bavail * found.f_frsize)"
    write = f"open('small', 'w').write('1')\n{free}"

    def has_room():
        cell = notebook.run(write, ok=False)
        return not cell.error and int(cell.out) > 24 << 20

    until(has_room, "no room")
    notebook.run("x = 4; open('after', 'wb').write(bytes(20 << 20))")
    b = checkpoint(notebook, "room again")
    notebook.run(f"%restore {a}")
    notebook.run(f"%restore {b}")
    assert notebook.run("print(x, os.path.getsize('after'))").out == "4 20971520"
    return b


# an overlay below the home, which a store is put on
OVERLAY = (
    'mount -t tmpfs -o mode=755 t "$TOP" && cd "$TOP" && mkdir u w r && '
    'mount -t overlay o -o lowerdir="$E",upperdir=u,workdir=w$UX r && cd "$W"'
)


def test_07_the_store_is_on_an_overlay(home, E, start_notebook, tmp_path, mounts_allowed):
    (E / "local").mkdir()
    (home / "top").mkdir()
    work = tmp_path / "work"
    work.mkdir()
    named = {"TOP": str(home / "top"), "E": str(E), "W": str(work), "HOME": str(home)}
    named["UX"] = "" if os.geteuid() == 0 else ",userxattr"
    store = home / "top/r/store"
    notebook = start_notebook(
        f"--Supervisor.store={store}", prefix=among_mounts(OVERLAY), env=named, cwd=work
    )
    assert not notebook.command("status")["environment"]["covered"]
    first = notebook.run(f"open('{E}/local/marker', 'w').write('x'); y = 5")
    notebook.run("open('w', 'w').write('1')")
    assert "is on overlayfs" in first.text("stderr") and "volume" in first.text("stderr")
    a = checkpoint(notebook, "in a container")
    notebook.run("y = 6; open('w', 'w').write('2')")
    notebook.run(f"%restore {a}")
    assert notebook.run("print(y, open('w').read())").out == "5 1"
    assert (E / "local/marker").read_text() == "x"


# as in a container: the root is an overlay (DEPTH of them), /tmp with the store a volume
CONTAINER = """
mount -t tmpfs -o mode=755 t "$TOP" && cd "$TOP" && below=/
for level in $(seq $DEPTH); do
    mkdir u$level w$level r$level
    mount -t overlay o -o lowerdir=$below,upperdir=u$level,workdir=w$level r$level || exit 1
    below=$TOP/r$level
done
for name in proc sys dev run tmp; do mount --rbind /$name $below/$name; done
mkdir -p "$below$V" && mount --rbind "$V" "$below$V"
cd $below && pivot_root . . && umount -l . && cd "$W"
"""


@pytest.mark.root
@pytest.mark.parametrize("depth, where", [(1, "volume"), (1, "inside"), (2, "volume")])
def test_07_jupyter_in_a_container(home, E, start_notebook, tmp_path, depth, where):
    (home / "top").mkdir()
    work = tmp_path / "work"
    work.mkdir()
    named = {"TOP": str(home / "top"), "W": str(work), "HOME": str(home), "DEPTH": str(depth)}
    named["V"] = str(tmp_path)  # what the store and the workspace lie on
    arguments = [f"--Supervisor.host_paths={tmp_path}"]
    arguments += [f"--Supervisor.store={home}/store"] if where == "inside" else []
    notebook = start_notebook(
        *arguments, prefix=among_mounts(CONTAINER.strip()), env=named, cwd=work
    )
    works = (depth, where) == (1, "volume")
    assert bool(notebook.command("status")["environment"]["covered"]) == works
    first = notebook.run(f"open('{E}/marker', 'w').write('x'); y = 5").text("stderr")
    if where == "inside":
        assert "is on overlayfs" in first and "volume" in first
    elif depth == 2:
        assert "overlays already, nested as deep as" in first
    else:
        assert not first
    notebook.run("open('w', 'w').write('1')")
    a = checkpoint(notebook, "in a container")
    notebook.run(f"y = 6; open('w', 'w').write('2'); open('{E}/marker', 'w').write('y')")
    notebook.run(f"%restore {a}")
    read = f"print(y, open('w').read(), open('{E}/marker').read())"
    assert notebook.run(read).out == ("5 1 x" if works else "5 1 y")


SMALL_STORE = 'mkdir -p "$STORE" && mount -t tmpfs -o size=64m,mode=700 small "$STORE"'


def test_08_the_disk_fills_up(start, tmp_path, E, mounts_allowed):
    (E / "big").write_bytes(bytes(range(256)) * (50 << 12))
    store = {"STORE": str(tmp_path / "store")}
    full_disk(start(prefix=among_mounts(SMALL_STORE), env=store), E)


@pytest.mark.root
def test_08_on_a_disk_whose_directories_need_room_too(start, tmp_path, E, ability):
    store = tmp_path / "store"
    store.mkdir(mode=0o700)
    with open(tmp_path / "image", "wb") as f:
        f.truncate(64 << 20)
    mkfs = shutil.which("mkfs.ext4", path="/sbin:/usr/sbin:/bin:/usr/bin")
    ability("mkfs.ext4", mkfs is not None)
    subprocess.run([mkfs, "-q", "-m", "0", tmp_path / "image"], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", tmp_path / "image", store])
    ability("loop devices", mounted.returncode == 0)
    work = tmp_path / "work"
    work.mkdir()
    nbformat.write(nbformat.v4.new_notebook(), work / "t.ipynb")
    try:
        (E / "big").write_bytes(bytes(range(256)) * (50 << 12))
        named = {"cwd": work, "env": {"JPY_SESSION_NAME": str(work / "t.ipynb")}}
        notebook = start(**named)
        b = full_disk(notebook, E)
        notebook.manager.shutdown_kernel()
        # all of it is in the database
        notebook = start(**named)
        notebook.run(f"%restore {b} --only files")
        assert notebook.run(f"import os; os.path.getsize('{E}/after')").result == "20971520"
        notebook.manager.shutdown_kernel()
    finally:
        subprocess.run(["umount", "-l", store], check=True)


def test_10_the_host_changes_the_base(start, home, E):
    for name in "abc":
        (E / name).write_text("1\n")
    work = home / "work"
    work.mkdir()
    nbformat.write(nbformat.v4.new_notebook(), work / "t.ipynb")
    named = {"cwd": work, "env": {"JPY_SESSION_NAME": str(work / "t.ipynb")}}
    notebook = start(**named)
    notebook.run(f"import os; os.chdir({str(E)!r}); open('c', 'w').write('mine\\n')")
    a = checkpoint(notebook, "before host change")
    time.sleep(0.1)
    (E / "a").write_text("2\n")
    (E / "b").unlink()
    (E / "c").write_text("2\n")
    (E / "new").write_text("2\n")
    host = tree(E)
    seen = notebook.run("!cat a c; ls")
    assert "Input/output error" not in seen.out and "Stale" not in seen.out
    assert seen.out.split()[1] == "mine"
    checkpoint(notebook, "after")
    cell = notebook.run(f"%restore {a}")
    told = notebook.until_said("are as they are now: ", cell.out + cell.text("stderr"))
    assert "have changed since that checkpoint" in told, told
    for name in ("a", "b", "new"):
        assert f"{E}/{name}" in told or f"{E}," in told or f"{E}\n" in told, told
    seen = notebook.run("!cat a b c; ls")
    assert "Input/output error" not in seen.out and "Stale" not in seen.out
    assert notebook.run("open('c').read()").result == "'mine\\n'"
    assert tree(E) == host
    notebook.shut_down()
    time.sleep(0.1)
    (E / "newer").write_text("3\n")
    again = start(**named)
    told = ""
    end = time.monotonic() + PATIENCE
    while "beneath it" not in told:  # in the cell that runs next when it is known
        assert time.monotonic() < end
        cell = again.run(f"open('{E}/c').read()")
        assert cell.result == "'mine\\n'"
        told = cell.text("stderr")
    assert f"{E}/newer" in told, told


BOTH = pytest.mark.parametrize(
    "who", ["ordinary user", pytest.param("root", marks=pytest.mark.root)]
)
"""As root a whole tree with its mounts is covered, for others each directory beside them."""


@BOTH
def test_11_other_filesystems_below(start, tmp_path, E, mounts_allowed, who):
    work = tmp_path / "work"
    (E / "vol").mkdir()
    (work / "mnt").mkdir(parents=True)
    mounts = (
        'mount -t tmpfs -o mode=755 t "$E/vol" && echo v > "$E/vol/f" && '
        'mount -t tmpfs -o mode=755 t "$W/mnt" && echo w > "$W/mnt/g"'
    )
    named = {"E": str(E), "W": str(work)}
    notebook = start(prefix=among_mounts(mounts), env=named, cwd=work)
    environment = notebook.command("status")["environment"]
    a = checkpoint(notebook, "mounts")
    changed = f"!cat {E}/vol/f; echo v2 > {E}/vol/f; rm -f mnt/g; echo x > mnt/h; cat {E}/vol/f"
    assert notebook.run(changed).out.split() == ["v", "v2"]
    notebook.run(f"%restore {a}")
    seen = notebook.run(f"!cat {E}/vol/f; ls mnt; mountpoint mnt").out.split()
    host = on_host(notebook, f"cat {E}/vol/f; ls {work}/mnt; mountpoint {work}/mnt").split()
    assert str(E / "vol") in environment["covered"]
    assert seen == ["v", "g", "mnt", "is", "a", "mountpoint"]
    assert host == ["v", "g", str(work / "mnt"), "is", "a", "mountpoint"]
    # what is beside the mount is covered, or it is said that it is not
    notebook.run(f"open('{E}/beside', 'w').close()")
    told = any(str(E) == path for path in environment["not_covered"])
    assert (E / "beside").exists() == told


HUNG = """
import ctypes, os, sys
fd = os.open("/dev/fuse", os.O_RDWR)
os.set_inheritable(fd, True)
options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other"
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"hung", os.fsencode(os.environ["HUNG"]), b"fuse.hung", 0, options.encode()):
    sys.exit(os.strerror(ctypes.get_errno()))
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""A mount that never answers, as that of a dead file server."""


@pytest.mark.root
@pytest.mark.parametrize("where", ["outside", "inside"])
@pytest.mark.parametrize("who", ["ordinary user", "root"])
def test_11_a_mount_that_never_answers(start, play, tmp_path, ability, where, who):
    ability("FUSE", os.path.exists("/dev/fuse"))
    hung = Path("/mnt") if where == "outside" else tmp_path / "work/hung"
    hung.mkdir(parents=True, exist_ok=True)
    mounting = (sys.executable, "-c", HUNG)
    covered = Path(tempfile.mkdtemp(prefix="tt-test-", dir="/var/lib"))
    try:
        if who == "root":
            prefix = ("unshare", "-m", *mounting)
            notebook = start(prefix=prefix, env={"HUNG": str(hung)}, cwd=tmp_path / "work")
        else:
            os.chown(covered, 12345, 12345)
            notebook = play(before=mounting, HUNG=str(hung))
        said = notebook.run("import os").text("stderr")
        a = checkpoint(notebook, "hung")
        notebook.run(f"open('{covered}/f', 'w').close(); open('g', 'w').close()")
        b = checkpoint(notebook, "written")
        there = f"print(os.path.exists('{covered}/f'), os.path.exists('g'))"
        notebook.run(f"%restore {a}")
        assert notebook.run(there).out == "False False"
        notebook.run(f"%restore {b}")
        assert notebook.run(there).out == "True True"
        assert not os.listdir(covered)
    finally:
        os.rmdir(covered)
    not_covered = notebook.command("status")["environment"]["not_covered"]
    assert "does not answer" in said if where == "inside" else str(hung) in not_covered


OWNED = """
import os, shutil, struct, subprocess
os.chdir(E)
def access_list(path, uid):
    # acl(5): version, then tag, permissions and id of each entry
    rows = [(1, 6, -1), (2, 4, uid), (4, 4, -1), (16, 4, -1), (32, 4, -1)]
    data = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *row) for row in rows)
    os.setxattr(path, "system.posix_acl_access", data)
def shown():
    st = os.stat("o")
    attributes = {n: os.getxattr("o", n) for n in os.listxattr("o")}
    capability = os.getxattr("capbin", "security.capability")
    owner = [st.st_uid, st.st_gid, oct(st.st_mode)]
    return [*owner, attributes, capability, os.stat("capbin").st_mode]
"""


@pytest.mark.root
def test_13_owners_and_capabilities_as_root(notebook, E, ability):
    ability("setcap", shutil.which("setcap", path="/sbin:/usr/sbin") is not None)
    notebook.run(f"E = {str(E)!r}{OWNED}")
    notebook.run(
        "!touch o && chown 33:42 o && chmod 2755 o && cp /bin/true capbin"
        " && PATH=$PATH:/sbin:/usr/sbin setcap cap_net_raw+ep capbin\n"
        "access_list('o', 33); os.setxattr('o', 'user.k', b'val'); before = shown()"
    )
    a = checkpoint(notebook, "owned")
    notebook.run("!rm -f o capbin")
    notebook.run(f"%restore {a}")
    assert notebook.run("shown() == before").result == "True"
    shown = eval(notebook.run("shown()").result)
    assert shown[:2] == [33, 42] and shown[3]["user.k"] == b"val"
    assert "system.posix_acl_access" in shown[3] and int(shown[2], 8) & 0o2000


def test_13_an_owner_that_cannot_be_given(notebook, E):
    made = f"!cd {E}; touch o; chown 33:42 o; echo rc=$?; chmod 2755 o; cp /bin/true c"
    assert "rc=1" in notebook.run(made).out
    shown = f"!stat -c '%u:%g %a' {E}/o {E}/c"
    before = notebook.run(shown).out
    assert before.startswith(f"{os.getuid()}:{os.getgid()} 2755")
    a = checkpoint(notebook, "owned")
    notebook.run(f"!rm -f {E}/o {E}/c")
    notebook.run(f"%restore {a}")
    assert notebook.run(shown).out == before
