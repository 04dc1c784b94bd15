"""Instances whose making anew is not what pickle takes it for; what ends the process meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from namespace_harness import dump, load

OWN_NEW = """
made = []
class Wants:
    def __new__(cls, need): made.append(need); return super().__new__(cls)
    def __init__(self, need): self.need = need
class Text(str):
    def __new__(cls, text, extra): o = super().__new__(cls, text); o.extra = extra; return o
class Pair(tuple):
    def __new__(cls, a, b): return super().__new__(cls, (a, b))
class Below(Wants): pass
class Only:
    one = None
    def __new__(cls):
        if cls.one is None: cls.one = super().__new__(cls); cls.one.n = 0
        return cls.one
class Says:
    def __new__(cls, a=None): o = super().__new__(cls); o.a = a; return o
    def __getnewargs__(self): return (self.a,)
class Passes(list):
    def __getattr__(self, name): return getattr(self.inner, name)
extra = [1]
w, t, p, b, o, s = Wants(4), Text('abc', extra), Pair(1, 2), Below(5), Only(), Says(6)
o.n = 3; passes = Passes([7]); passes.inner = extra
"""


def test_a_new_of_the_session_is_not_run_again(tmp_path: Path) -> None:
    dumped = dump(tmp_path, OWN_NEW)
    assert dumped.lost == {}
    came = load(
        tmp_path,
        dumped,
        "print(w.need, b.need, isinstance(b, Wants), made, s.a, Says(1).a)",
        "print(t, t.extra is extra, t + '!', type(p) is Pair, p, Only() is o, o.n)",
        "print(passes, passes.inner is extra, passes.index(7), passes.copy)",
    )
    assert came.lost == {}
    assert came.printed[0] == "4 5 True [4, 5] 6 1\n"
    assert came.printed[1] == "abc True abc! True (1, 2) True 3\n"
    assert came.printed[2].startswith("[7] True 0 <built-in method copy of Passes")


def test_what_a_library_may_not_make_anew_is_tried(tmp_path: Path) -> None:
    """It is in a unit of its own whose loading is tried before the capture is called ready."""
    pytest.importorskip("numpy")
    dumped = dump(tmp_path, "import numpy as np; info = np.finfo('f4'); data = np.ones(3)")
    tried = {tuple(unit["names"]): unit["try"] for unit in dumped.manifest["units"]}
    assert tried[("info",)] and not tried[("data",)]


def test_records_of_arrays_are_views_of_them(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    dumped = dump(
        tmp_path,
        "import numpy as np; a = np.zeros(3, [('x', 'i4'), ('s', 'U2')]); a['x'] = 1, 2, 3\n"
        "second, alone, rec = a[1], np.zeros(1, a.dtype)[0].copy(), a.view(np.recarray)[2]",
    )
    assert dumped.lost == {}
    came = load(tmp_path, dumped, "a['x'] = 9; print(second['x'], alone['x'], rec.x, type(rec))")
    assert came.printed == ["9 0 9 <class 'numpy.record'>\n"]


def test_small_things_that_pickle_leaves_out(tmp_path: Path) -> None:
    dumped = dump(
        tmp_path,
        """
import builtins, io, os, random, sqlite3, subprocess, tarfile, types, zipfile
builtins.everyones = [1]; mine = everyones
try: not_there
except NameError as error: failed = error
kinds = {types.GeneratorType: 'g', types.FunctionType: 'f'}
secret = random.SystemRandom(); nowhere = open('/dev/null', 'w'); nowhere.write('x')
con = sqlite3.connect(':memory:'); con.execute('create table t(a)'); con.text_factory = bytes
con.execute("insert into t values ('v')"); con.commit()
with zipfile.ZipFile('z.zip', 'w') as closed: closed.writestr('a', 'content')
with tarfile.open('t.tar.gz', 'w:gz') as packed: packed.add('z.zip')
reading = zipfile.ZipFile('z.zip'); tar = tarfile.open('t.tar.gz')
writing = zipfile.ZipFile('w.zip', 'w')
""",
    )
    assert set(dumped.lost) == {"writing"}
    came = load(
        tmp_path,
        dumped,
        "print(everyones is mine, failed.name, kinds[types.GeneratorType],"
        " kinds[types.FunctionType], secret.random() < 1, nowhere.write('y'))",
        "print(con.execute('select a from t').fetchall(), con.text_factory is bytes)",
        "print(closed.namelist(), reading.read('a'), tar.getnames(),"
        " tar.extractfile('z.zip').read(2))",
    )
    assert set(came.lost) == {"writing"}
    assert came.printed == [
        "True not_there g f True 1\n",
        "[(b'v',)] True\n",
        "['a'] b'content' ['z.zip'] b'PK'\n",
    ]


def test_who_watches_knows_what_is_pickled_and_can_leave_it_out(tmp_path: Path) -> None:
    cells = "fine = [1]; shared = fine; bad = {'x': 1}; other = [bad]"
    code = (
        "import json, sys, types\n"
        "from namespace_harness import Cells, DirectoryStore\n"
        "from kernel_runtime.executor.namespace.dumping import dump\n"
        "main = types.ModuleType('__main__'); sys.modules['__main__'] = main\n"
        "cells, tried = Cells(), []\n"
        f"cells.run({cells!r})\n"
        "session = cells.session(None); session.left_out = {'bad': 'it bites'}\n"
        "manifest = dump(session, DirectoryStore('.'), trying=tried.append)\n"
        "print(json.dumps([manifest['lost'], tried, [u['names'] for u in manifest['units']]]))\n"
    )
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    lost, tried, units = json.loads(done.stdout)
    assert lost == [["bad", "it bites"]]
    assert ["fine"] in tried and ["bad"] not in tried and ["fine", "shared"] in tried
    assert ["other"] in units
