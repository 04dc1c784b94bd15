"""An agent that makes the classic mistakes in a notebook, and takes each of them back.

    python examples/agent/agent.py [DIRECTORY]

It is a script: no model, no network. What is real is all the rest: the MCP server that it talks to,
the kernel, pip, the files. It needs `pip install 'jupyter_timetravel[mcp]' pandas`. Without
DIRECTORY it works in a temporary one.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import textwrap
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

COMMAND = "import sys; from jupyter_timetravel.cli import main; sys.exit(main())"


@dataclass(frozen=True)
class Task:
    """Something to do: how the agent goes about it, and how it finds out whether that was right."""

    goal: str
    attempts: Sequence[str]
    check: str


class Agent:
    """Tries, looks, and goes back when it was wrong."""

    def __init__(self, client: Client, notebook: Path) -> None:
        self.client = client
        self.notebook = str(notebook)
        self.mistakes = 0

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """A tool's structured result. Every call names its notebook."""
        done = await self.client.call_tool(tool, {"notebook": self.notebook, **arguments})
        if done.is_error:
            raise RuntimeError(done.content)
        return dict(done.structured_content or {})

    async def run(self, code: str) -> dict[str, Any]:
        """A cell, and what came of it."""
        told = await self.call("run_cell", code=code)
        say(code, "    >>> ")
        say(told["stdout"] or told["result"] or "", "        ")
        if told["error"]:
            say(f"{told['error']['ename']}: {told['error']['evalue']}", "        ")
        return told

    async def do(self, task: Task) -> None:
        """Try one attempt after the other; each begins where the first one did."""
        print(f"\n{task.goal}")
        before = (await self.call("status"))["head"]["number"]
        for attempt in task.attempts:
            told = await self.run(attempt)
            if told["outcome"] == "ok" and (await self.run(task.check))["result"] == "True":
                print(f"    that is right; #{told['checkpoint']} holds it")
                return
            self.mistakes += 1
            back = await self.call("restore", checkpoint=before)
            print("    that was wrong, so back:")
            say(back["text"], "        ")
        raise RuntimeError(f"no attempt was right: {task.goal}")


def say(text: str, indent: str) -> None:
    """Print it, a few lines at most."""
    lines = text.rstrip().splitlines()
    for line in lines[:6]:
        print(indent + textwrap.shorten(line, 100, placeholder=" …"))
    if len(lines) > 6:
        print(f"{indent}… {len(lines) - 6} more lines")


def write_wheel(folder: Path, version: str, code: str) -> str:
    """A wheel of the package `prices`, as somebody has sent it."""
    name = f"prices-{version}"
    path = folder / f"{name}-py3-none-any.whl"
    about = f"Metadata-Version: 2.1\nName: prices\nVersion: {version}\n"
    kind = "Wheel-Version: 1.0\nGenerator: example\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("prices.py", code)
        wheel.writestr(f"{name}.dist-info/METADATA", about)
        wheel.writestr(f"{name}.dist-info/WHEEL", kind)
        wheel.writestr(f"{name}.dist-info/RECORD", "")
    return path.name


def tasks(folder: Path) -> list[Task]:
    """What is to be done, with what will go wrong."""
    old = write_wheel(folder, "1.0", "def net(gross):\n    return gross / 1.19\n")
    new = write_wheel(folder, "2.0", "raise ImportError('prices 2 needs a licence key')\n")
    pip = "!{sys.executable} -m pip install -q --no-index --no-deps --target libs --upgrade "
    return [
        Task(
            "Bring prices up to date.",
            [
                f"{pip}./{new}\nimportlib.invalidate_caches(); importlib.reload(prices);",
                f"{pip}./{old}\nimportlib.invalidate_caches(); importlib.reload(prices);",
            ],
            "round(prices.net(119)) == 100",
        ),
        Task(
            "Make room: delete what is temporary.",
            ["!rm -rf data*", "!rm -rf data/tmp"],
            "sorted(p.name for p in pathlib.Path('data').iterdir()) == ['orders.csv']",
        ),
        Task(
            "Take the tax out of the frame.",
            [
                "orders['price'] = orders['price'].map(prices.net)\n"
                "orders.loc[:, 'price'] = orders['price'].map(prices.net)  # once too often",
                "orders['price'] = orders['price'].map(prices.net)",
            ],
            "bool((orders['price'].round() == [100, 200, 300]).all())",
        ),
    ]


async def work(folder: Path) -> None:
    """All of it."""
    notebook = folder / "orders.ipynb"
    work = tasks(folder)
    # the SDK passes on a few variables only; the kernel shall have all
    server = StdioServerParameters(
        command=sys.executable, args=["-c", COMMAND, "mcp"], env=dict(os.environ)
    )
    async with Client(server) as client:
        agent = Agent(client, notebook)
        await agent.call("start_kernel", create=True)
        old = "prices-1.0-py3-none-any.whl"
        first = await agent.run(
            "import importlib, pathlib, sys\n"
            f"!{{sys.executable}} -m pip install -q --no-index --no-deps --target libs ./{old}\n"
            "sys.path.insert(0, 'libs')\n"
            "import prices, pandas\n"
            "pathlib.Path('data/tmp').mkdir(parents=True)\n"
            "pathlib.Path('data/tmp/cache').write_text('x' * 1000)\n"
            "pathlib.Path('data/orders.csv').write_text('id,price\\n1,119\\n2,238\\n3,357\\n')\n"
            "orders = pandas.read_csv('data/orders.csv'); len(orders)"
        )
        if first["outcome"] != "ok":
            raise RuntimeError(first["error"])
        for task in work:
            await agent.do(task)
        print("\nWhich rounding is best? Try three from the same state.")
        told = await agent.call(
            "try_alternatives",
            alternatives=[f"rounded = orders['price'].round({digits})" for digits in (-3, -2, 0)],
            score="(rounded == [100, 200, 300]).sum()",
            keep="highest",
        )
        print(
            f"    scores {[one['score'] for one in told['alternatives']]}: {told['kept']} is kept"
        )
        end = await agent.run("list(rounded), prices.net(119), pathlib.Path('data').exists()")
        print(f"\n{agent.mistakes} mistakes were made, and nothing of them is left.")
        assert end["result"] == "([100.0, 200.0, 300.0], 100.0, True)", end


def main(argv: Sequence[str]) -> None:
    """Entry point."""
    if argv:
        asyncio.run(work(Path(argv[0]).absolute()))
        return
    with tempfile.TemporaryDirectory(prefix="timetravel-agent-") as folder:
        asyncio.run(work(Path(folder)))


if __name__ == "__main__":
    main(sys.argv[1:])
