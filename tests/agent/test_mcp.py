"""The MCP server over stdio, with the SDK's own client and real kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from agent_world import MAIN, agent, server_of_agent, without

Start = Callable[..., Any]


@pytest.fixture(autouse=True)
def environment(start_notebook: Start) -> None:
    """Store, keys and runtime directory of the test: servers and their kernels inherit them."""


async def test_an_agent_works_and_takes_its_mistakes_back(book: Path, tt: Start) -> None:
    async with agent() as ask:
        first = await ask.run(book, "import pathlib; x = 1; print('hi'); x")
        assert (first["stdout"], first["result"], first["checkpoint"]) == ("hi\n", "1", 1)
        await ask.run(book, "x = 2; pathlib.Path('f').write_text('two');")
        bad = await ask("run_cell", notebook=str(book), code="x = 3; 1/0")
        assert (bad["outcome"], bad["error"]["ename"]) == ("error", "ZeroDivisionError")
        plan = await ask("restore", notebook=str(book), checkpoint=2, dry_run=True)
        assert [one["name"] for one in plan["variables"]["changed"]] == ["x"]
        assert (await ask.run(book, "x"))["result"] == "3"
        back = await ask("restore", notebook=str(book), checkpoint=1)
        assert [one["path"] for one in back["files"]] == ["f"]
        assert (await ask.run(book, "x, pathlib.Path('f').exists()"))["result"] == "(1, False)"
        await ask("restore", notebook=str(book), checkpoint=2, variables=["x"])
        assert (await ask.run(book, "x"))["result"] == "2"
        await ask("checkpoint", notebook=str(book), label="good", comment="so far")
        # the shell and the agent see one and the same
        for tool, words in (
            ("list_checkpoints", ("list", book)),
            ("show_checkpoint", ("show", book, "good")),
            ("diff", ("diff", book, 1, "good")),
            ("status", ("status", book)),
        ):
            names = {"show_checkpoint": {"checkpoint": "good"}, "diff": {"a": 1, "b": "good"}}
            mine = await ask(tool, notebook=str(book), **names.get(tool, {}))
            theirs = tt(*words, "--json")
            moving = ("command", "older", "captures", "memory", "counts", "last_cow_tax_ms")
            moving += ("bytes",)  # of the store, weighed in the background
            assert without(mine, *moving) == without(theirs, *moving)
        assert "[good]" in await ask.said("list_checkpoints", notebook=str(book))


async def test_tools_describe_themselves_and_errors_say_what_to_do(book: Path) -> None:
    async with agent() as ask:
        tools = {tool.name: tool for tool in (await ask.client.list_tools()).tools}
        for name, tool in tools.items():
            assert len(tool.description or "") > 40, name
            of_one = name != "kernels" and not name.startswith("group_")
            assert ("notebook" in tool.input_schema.get("required", ())) == of_one, name
        assert tools["list_checkpoints"].annotations.read_only_hint
        assert tools["restore"].annotations.destructive_hint
        missing = book.with_name("missing.ipynb")
        told = await ask.refused("run_cell", notebook=str(missing), code="x = 1")
        assert told["ename"] == "KernelNotStarted" and "create=true" in told["evalue"]
        assert not missing.exists()
        assert (await ask("start_kernel", notebook=str(missing), create=True))["ends_with_server"]
        assert json.loads(missing.read_text())["cells"] == []
        told = await ask.refused("checkpoint", notebook=str(book))
        assert told["ename"] == "NotRunning" and "start_kernel" in told["evalue"]
        assert (await ask.refused("list_checkpoints", notebook="newest"))["ename"] == "BadRequest"
        told = await ask.refused("restore", notebook=str(missing), checkpoint="nowhere")
        assert told["ename"] == "UnknownCheckpoint"
        told = await ask.refused("restore", notebook=str(missing))
        assert told["ename"] == "BadRequest"
        told = await ask.refused("wait_for_cell", notebook=str(missing), cell="none")
        assert told["ename"] == "UnknownCell"


async def test_kernels_end_with_the_server_and_nothing_is_lost(book: Path, tt: Start) -> None:
    async with agent() as ask:
        await ask.run(book, "import os; x = [1, 2]; os.getppid()")
        await ask("checkpoint", notebook=str(book), label="mine")
        (kernel,) = (await ask("kernels"))["kernels"]
        assert kernel["notebook"] == str(book)
        processes = [
            one for one in psutil.process_iter(["cmdline"])
            if kernel["connection_file"] in (one.info["cmdline"] or ())
        ]  # fmt: skip
        assert processes
    assert not psutil.wait_procs(processes, timeout=110)[1]
    assert tt("kernels", "--json")["kernels"] == []
    assert tt("list", book, "--manual", "--json")["checkpoints"][0]["label"] == "mine"
    async with agent() as ask:
        # without a kernel the store answers, and takes a restore
        listed = await ask("list_checkpoints", notebook=str(book))
        assert not listed["running"]
        told = await ask("restore", notebook=str(book), checkpoint="mine")
        assert told["checkpoint"]["label"] == "mine"
        assert (await ask.run(book, "x"))["result"] == "[1, 2]"


async def test_a_server_that_is_killed_takes_its_kernels_along(book: Path, tt: Start) -> None:
    with pytest.raises(Exception):  # noqa: B017 - whatever the SDK makes of a broken pipe
        async with agent() as ask:
            await ask.run(book, "x = 1")
            await ask("checkpoint", notebook=str(book), label="mine")
            server = server_of_agent()
            kernels = server.children()
            server.kill()
            with anyio.fail_after(30):
                await ask("kernels")
    gone, left = psutil.wait_procs(kernels, timeout=110)
    assert gone and not left
    assert tt("show", book, "mine", "--json")["variables"]["x"]["value"] == "1"


@pytest.mark.slow
async def test_a_kernel_that_is_ending_is_not_joined(book: Path, on: Start, tt: Start) -> None:
    kernel = on(book)
    kernel.run("x = 1")
    kernel.head()
    stopped = psutil.Process(kernel.pid)
    stopped.suspend()  # it runs, and cannot be asked: no second kernel may take its notebook
    try:
        async with agent() as ask:
            told = await ask.refused("run_cell", notebook=str(book), code="x")
    finally:
        stopped.resume()
    assert told["ename"] == "KernelNotStarted" and "could not be asked" in told["evalue"]
    kernel.client.stop_channels()
    kernel.manager.request_shutdown()
    async with agent() as ask:
        assert (await ask.run(book, "'fresh'"))["result"] == "'fresh'"
        (record,) = (await ask("kernels"))["kernels"]
        assert record["connection_file"] != kernel.manager.connection_file


async def test_a_kernel_that_runs_is_joined_and_left_alone(
    book: Path, on: Start, tt: Start
) -> None:
    kernel = on(book)
    kernel.run("x = 'theirs'")
    async with agent() as ask:
        joined = await ask("start_kernel", notebook=str(book))
        assert not joined["ends_with_server"]
        assert (await ask.run(book, "x"))["result"] == "'theirs'"
        by_id = await ask("run_cell", notebook=joined["kernel"]["id"], code="y = 1; x")
        assert by_id["result"] == "'theirs'"
        told = await ask.refused("shutdown_kernel", notebook=str(book))
        assert told["ename"] == "KernelNotStarted"
        # a cell of the person's is not run into
        running = kernel.send("import time\nwhile not stop: time.sleep(0.01)")
        kernel.wait(running)
        kernel.run("import pathlib")
        running = kernel.send("while not pathlib.Path('go').exists(): time.sleep(0.01)")
        while not tt("status", book, "--json")["busy"]:
            await anyio.sleep(0.05)
        told = await ask.refused("run_cell", notebook=str(book), code="z = 1", timeout_s=0.3)
        assert told["ename"] == "KernelBusy" and "another client" in told["evalue"]
        (book.parent / "go").write_text("")
        kernel.wait(running)
        assert (await ask.run(book, "'z' in dir()"))["result"] == "False"
    assert kernel.run("print(x, y)").out == "theirs 1"


async def test_a_kernel_that_ends_while_a_cell_runs_is_told(book: Path, on: Start) -> None:
    kernel = on(book)
    kernel.run("import time")
    async with agent() as ask:

        async def shut_down() -> None:
            while not (await ask("status", notebook=str(book)))["busy"]:
                await anyio.sleep(0.05)
            kernel.client.stop_channels()
            await anyio.to_thread.run_sync(lambda: kernel.manager.shutdown_kernel(now=True))

        async with anyio.create_task_group() as group:
            group.start_soon(shut_down)
            told = await ask.refused(
                "run_cell", notebook=str(book), code="while True: time.sleep(0.01)", timeout_s=90
            )
        assert told["ename"] == "NotRunning" and "ended while the cell ran" in told["evalue"]


async def test_a_call_that_is_cancelled_and_a_cell_that_kills_its_process(book: Path) -> None:
    async with agent() as ask:
        await ask.run(book, "import os, time; log = []")
        async with anyio.create_task_group() as group:
            running = "log.append(1); open('runs', 'w').close()\nwhile True: time.sleep(0.01)"
            group.start_soon(ask.run, book, running)
            while not (book.parent / "runs").exists():
                await anyio.sleep(0.05)
            group.cancel_scope.cancel()
        told = await ask.refused("run_cell", notebook=str(book), code="len(log)", timeout_s=0.3)
        assert told["ename"] == "KernelBusy"
        await ask("interrupt", notebook=str(book))
        assert (await ask.run(book, "log"))["result"] == "[1]"
        died = await ask("run_cell", notebook=str(book), code="os._exit(3)")
        assert (died["outcome"], died["error"]["ename"]) == ("error", "ExecutorDied")
        assert (await ask.run(book, "log"))["result"] == "[1]"


async def test_alternatives(book: Path) -> None:
    async with agent() as ask:
        await ask.run(book, "x = 10; import pathlib, time")
        tries = [
            "x += 1; pathlib.Path('one').write_text('');",
            "x += 5",
            "x = None; 1/0",
            "x += 2\nwhile True: time.sleep(0.01)",
        ]
        more = {"notebook": str(book), "alternatives": tries, "timeout_s": 10}
        told = await ask("try_alternatives", **more, score="x", keep="highest")
        outcomes = [one["outcome"] for one in told["alternatives"]]
        assert outcomes == ["ok", "ok", "error", "timed out"]
        assert [one["score"] for one in told["alternatives"]] == [11.0, 15.0, None, None]
        assert told["kept"] == 2
        assert (await ask.run(book, "x, pathlib.Path('one').exists()"))["result"] == "(15, False)"
        # another one later
        await ask("restore", notebook=str(book), checkpoint=told["alternatives"][0]["checkpoint"])
        assert (await ask.run(book, "x, pathlib.Path('one').exists()"))["result"] == "(11, True)"
        # none is kept unless that is said; what was there is at hand
        told = await ask("try_alternatives", **{**more, "alternatives": tries[:3]}, checkpoint=1)
        assert told["kept"] is None
        assert (await ask.run(book, "x"))["result"] == "10"
        await ask("restore", notebook=str(book), checkpoint=told["before"])
        assert (await ask.run(book, "x"))["result"] == "11"
        for wrong in ({"keep": 7}, {"keep": "highest"}, {"alternatives": []}):
            assert (await ask.refused("try_alternatives", **{**more, **wrong}))[
                "ename"
            ] == "BadRequest"


async def test_pictures_long_output_and_magics(book: Path) -> None:
    async with agent() as ask:
        done = await ask.client.call_tool(
            "run_cell",
            {
                "notebook": str(book),
                "code": "from IPython.display import Image, display\nimport base64\n"
                "display(Image(data=base64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
                "AAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='), format='png'))",
            },
        )
        assert [one.type for one in done.content] == ["text", "image"]
        assert done.content[1].mime_type == "image/png"
        long = await ask.run(book, "print('a' * 50_000 + 'end')")
        assert len(long["stdout"]) < 25_000 and long["stdout"].endswith("end\n")
        assert "left out" in long["stdout"]
        shell = await ask.run(book, "!echo from the shell")
        assert shell["stdout"].strip() == "from the shell"
        told = await ask("run_cell", notebook=str(book), code="input('? ')")
        assert told["error"]["ename"] == "StdinNotImplementedError"


def test_without_the_sdk_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "mcp").mkdir()
    (tmp_path / "mcp" / "__init__.py").write_text("raise ImportError('as if it were not there')")
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "mcp"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "pip install 'jupyter_timetravel[mcp]'" in done.stderr


async def test_an_argument_that_a_tool_has_not_is_refused(book: Path) -> None:
    async with agent() as ask:
        await ask.run(book, "x = 1")
        await ask.run(book, "x = 2")
        for wrong in ({"dryrun": True}, {"paths": ["f"]}, {"Only": "files", "vars": ["x"]}):
            told = await ask.refused("restore", notebook=str(book), checkpoint=1, **wrong)
            assert "restore has no argument" in told["evalue"]
            assert "dry_run" in told["evalue"]
        assert (await ask.run(book, "x"))["result"] == "2"
        told = await ask.refused("kernels", notebook=str(book))
        assert "kernels has no argument 'notebook'" in told["evalue"]
