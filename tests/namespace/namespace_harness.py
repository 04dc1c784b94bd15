"""A session in one interpreter, dumped into a directory, and loaded by another one.

``python namespace_harness.py dump|load DIRECTORY`` reads the request as JSON from its input and
prints the result as the last line. Cells run in ``__main__``, as a kernel's do.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import linecache
import os
import subprocess
import sys
import traceback
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HIDDEN = ("In", "Out", "_", "__", "___", "_i", "_ii", "_iii", "_ih", "_oh", "_dh")

REMOTE_02 = """\
def f(n):
    t = 0
    for i in range(n):
        try: t += i
        except ValueError: pass
    return t
class P:
    k = 3
    def go(self): return f(self.k)
data = {"x": [1, 2, 3]}; p = P(); g = lambda z: z + 1
"""
"""The cell of case remote-02."""


class DirectoryStore:
    """Sink and source: a file for each piece. Counts what it was given."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.put_bytes = 0

    def missing(self, digests: Sequence[str]) -> Collection[str]:
        return [d for d in digests if not os.path.exists(os.path.join(self.directory, d))]

    def put(self, digest: str, data: bytes | memoryview, older: str | None = None) -> None:
        self.put_bytes += len(data)
        with open(os.path.join(self.directory, digest), "wb") as file:
            file.write(data)

    def get(self, digest: str) -> bytes:
        with open(os.path.join(self.directory, digest), "rb") as file:
            return file.read()

    def get_into(self, digest: str, target: memoryview) -> None:
        with open(os.path.join(self.directory, digest), "rb") as file:
            assert file.readinto(target) == len(target)


@dataclass
class Dumped:
    """The manifest, what was put into the store, and what the cells printed."""

    manifest: dict[str, Any]
    put_bytes: int
    printed: list[str]
    environment: dict[str, str]

    @property
    def lost(self) -> dict[str, str]:
        return dict(self.manifest["lost"])


@dataclass
class Came:
    """What a load reported, and what the cells after it printed."""

    lost: dict[str, str]
    notices: list[list[str]]
    names: list[str]
    printed: list[str] = field(default_factory=list)


def dump(
    directory: Path,
    *cells: str,
    seed: str = "7",
    python: str = sys.executable,
    dumps: int = 1,
    shell: bool = False,
) -> Any:
    """Run cells and dump after the last of them, or after each of the last ``dumps`` cells."""
    directory.mkdir(exist_ok=True)
    request = {"cells": cells, "seed": seed, "dumps": dumps, "shell": shell}
    answer = _interpreter(python, seed, "dump", directory, request)
    dumped = [Dumped(m, b, answer["printed"], {"seed": seed}) for m, b in answer["dumps"]]
    return dumped[0] if dumps == 1 else dumped


def load(
    directory: Path,
    dumped: Dumped,
    *cells: str,
    names: Sequence[str] | None = None,
    python: str = sys.executable,
    before: Sequence[str] = (),
    shell: bool = False,
) -> Came:
    """Load into a fresh interpreter, after the cells ``before``, and run cells there."""
    request = {
        "manifest": dumped.manifest,
        "names": names,
        "cells": cells,
        "before": before,
        "shell": shell,
    }
    answer = _interpreter(python, dumped.environment["seed"], "load", directory, request)
    return Came(dict(answer["lost"]), answer["notices"], answer["names"], answer["printed"])


def _interpreter(python: str, seed: str, verb: str, directory: Path, request: Any) -> Any:
    done = subprocess.run(
        [python, __file__, verb, str(directory)],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=100,
        cwd=directory,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, f"ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])


# -- in the interpreters --------------------------------------------------------------------


class ShellCells:
    """Runs cells in a real IPython shell."""

    def __init__(self) -> None:
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        import __main__

        config = Config()
        config.HistoryManager.enabled = False
        self.shell = InteractiveShell.instance(
            config=config, user_module=__main__, user_ns=__main__.__dict__, colors="NoColor"
        )

    def run(self, cell: str) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            self.shell.run_cell(cell, store_history=True)
        return printed.getvalue()

    def session(self, seed: str | None) -> Any:
        from kernel_runtime.executor.namespace.session import SessionState

        shell = self.shell
        return SessionState(
            namespace=shell.user_ns,
            hidden=shell.user_ns_hidden,
            outputs=shell.user_ns["Out"],
            inputs=shell.user_ns["In"],
            execution_count=shell.execution_count,
            shell=shell,
            hash_seed=seed,
        )


class Cells:
    """Runs cells as IPython does, without it: the value of the last line goes into ``Out``."""

    def __init__(self) -> None:
        import __main__

        self.names = __main__.__dict__
        kept = {k: v for k, v in self.names.items() if k.startswith("__")}
        self.names.clear()
        self.names.update(kept)
        self.inputs: list[str] = [""]
        self.outputs: dict[int, Any] = {}
        self.names.update(In=self.inputs, Out=self.outputs, _="", __="", ___="")
        self.hidden = {name: self.names.get(name) for name in HIDDEN}

    def run(self, cell: str) -> str:
        import ast

        number = len(self.inputs)
        self.inputs.append(cell)
        name = f"<cell {number}>"
        linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
        tree = ast.parse(cell)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                exec(compile(tree, name, "exec", dont_inherit=True), self.names)
                if last is not None:
                    expression = ast.Expression(last.value)
                    code = compile(expression, name, "eval", dont_inherit=True)
                    value = eval(code, self.names)
                    if value is not None:
                        self.outputs[number] = value
                        self.names[f"_{number}"] = self.names["_"] = value
            except Exception:
                printed.write(traceback.format_exc(limit=-1))
        return printed.getvalue()

    def session(self, seed: str | None) -> Any:
        from kernel_runtime.executor.namespace.session import SessionState

        return SessionState(
            namespace=self.names,
            hidden=self.hidden,
            outputs=self.outputs,
            inputs=self.inputs,
            execution_count=len(self.inputs),
            hash_seed=seed,
        )


def _main(verb: str, directory: str) -> None:
    from kernel_runtime.executor.namespace.dumping import dump as dump_it
    from kernel_runtime.executor.namespace.loading import load as load_it

    request = json.load(sys.stdin)
    cells = ShellCells() if request["shell"] else Cells()
    answer: dict[str, Any] = {"printed": [], "dumps": []}
    store = DirectoryStore(directory)
    if verb == "dump":
        for number, cell in enumerate(request["cells"], 1):
            answer["printed"].append(cells.run(cell))
            if number > len(request["cells"]) - request["dumps"]:
                store.put_bytes = 0
                gc.disable()
                manifest = dump_it(cells.session(request["seed"]), store)
                gc.enable()
                answer["dumps"].append((manifest, store.put_bytes))
    else:
        for cell in request["before"]:
            cells.run(cell)
        session = cells.session(request["manifest"]["hash_seed"])
        if not request["before"] and request["names"] is None:
            session.inputs[:] = [""]
        came = load_it(request["manifest"], store, session, names=request["names"])
        answer.update(lost=came.lost, notices=came.notices, names=came.names)
        answer["printed"] = [cells.run(cell) for cell in request["cells"]]
    print("\n" + json.dumps(answer))


if __name__ == "__main__":
    if sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
        del sys.path[0]
    # The cells get ``__main__``, and this module goes on under its own name.
    import importlib.util

    spec = importlib.util.spec_from_file_location("namespace_harness", __file__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["namespace_harness"] = module
    spec.loader.exec_module(module)
    module.__file__ = None  # not a module of the user's, whose data is kept
    module._main(sys.argv[1], sys.argv[2])
