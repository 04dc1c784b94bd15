"""The variables that a checkpoint lists are those of its moment, whatever comes in between."""

from __future__ import annotations


def of_cells(notebook, name):
    """What each cell's checkpoint has noted of one variable, with the cell's code."""
    records = notebook.command("list")["checkpoints"]
    found = {}
    for record in records:
        if record["reason"] == "cell":
            variables = notebook.command("get", checkpoint=record["number"])["variables"]
            found[record["code"]] = variables.get(name, {}).get("value")
    return found


def test_a_cell_that_comes_before_the_loop_has_turned(notebook):
    """The reply is out, the next cell is there, and the loop has had no turn in between."""
    notebook.run(
        "import asyncio, time\n"
        "async def keep_busy():\n"
        "    while True:\n"
        "        time.sleep(0.003)\n"
        "        await asyncio.sleep(0)\n"
        "busy = asyncio.ensure_future(keep_busy()); x = -1"
    )
    for i in range(10):
        first, second = notebook.send_queue(f"%checkpoint before {i}", f"x = {i}")
        notebook.wait(first)
        notebook.wait(second)
    assert [value for code, value in of_cells(notebook, "x").items() if code[:3] == "x ="] == [
        str(i) for i in range(10)
    ]


def test_a_comm_message_while_a_cell_awaits(notebook):
    notebook.run(
        "import asyncio, time\n"
        "from ipykernel.comm import Comm\n"
        "comm = Comm(target_name='t'); came = asyncio.Event(); x = -1\n"
        "comm.on_msg(lambda message: came.set())\n"
    )
    comm_id = notebook.run("print(comm.comm_id)").out
    client = notebook.client
    for i in range(5):
        cell = notebook.send(
            f"came.clear(); print('waits'); await came.wait(); await asyncio.sleep(0.005); x = {i}"
        )
        notebook.until_printed(cell, "waits")
        client.shell_channel.send(client.session.msg("comm_msg", {"comm_id": comm_id, "data": {}}))
        notebook.wait(cell)
    noted = of_cells(notebook, "x")
    assert [noted[code] for code in noted if "await" in code] == [str(i) for i in range(5)]


def test_a_cell_compares_with_what_it_has_done_itself(notebook):
    notebook.cells("x = 1", "%checkpoint --label before")
    told = notebook.run("x = 2; z = 5\n%timeline diff before").out
    assert "  + z  int 5" in told and "int 1 → int 2" in told
    told = notebook.run("del z\n%restore before --dry-run").out
    assert "x  int 2 → int 1" in told and "- z" not in told
