"""What a cell printed stays with its checkpoint, whatever becomes of the cell on the page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_world import agent, end, ended

from kernel_runtime.timeline.cells import OUTPUT_LENGTH

Start = Callable[..., Any]
SECRET = "TTSECRET-" + "4f9a1c" * 4


async def test_what_a_cell_printed(book: Path, on: Start, tt: Start, tmp_path: Path) -> None:
    """Of Python, C and children, and its error; by magic, command line and MCP; live and stored."""
    kernel = on(book)
    kernel.run("import os, sys; x = 1; print('x', x); os.system('echo child'); 40 + 2")
    failing = "print('err', file=sys.stderr); print('nul \\0 half \\ud800'); 1/0"
    kernel.run(failing, ok=False)
    kernel.run("for n in range(30_000): print(n)")
    kernel.run("y = 2")
    kernel.head()

    def outputs() -> list[str]:
        return [tt("show", book, n, "--json")["cells"][0]["output"] for n in range(1, 5)]

    kept = outputs()
    assert kept[0] == "x 1\nchild\n"
    assert kept[1].splitlines() == [
        "err", "nul \ufffd half ?", "ZeroDivisionError: division by zero",
    ]  # fmt: skip
    assert len(kept[2]) == OUTPUT_LENGTH and kept[2].startswith("0\n1\n2\n") and kept[3] == ""
    shown = tt("show", book, 1)
    assert "│ x 1" in shown and "│ child" in shown and "= 42" in shown
    assert "│ x 1" in kernel.run("%timeline 1").text()
    long = tt("show", book, 3)
    assert "│ 9" in long and "│ 10" not in long and "lines more" in long
    async with agent() as ask:
        told = await ask("show_checkpoint", notebook=str(book), checkpoint=1)
        assert told["cells"][0]["output"] == kept[0]
    assert kernel.command("cells")["cells"][0]["output"] is None  # of all at once: too long
    end(kernel)
    ended(tt, book)
    assert outputs() == kept
    # elsewhere
    tt("export", book, "-o", tmp_path / "a.ttl")
    other = ["--store", tmp_path / "other"]
    taken = tt("import", tmp_path / "a.ttl", *other, "--json")["timeline"]
    assert tt("show", taken, 1, *other, "--json")["cells"][0]["output"] == kept[0]


def test_a_secret_that_was_printed_can_be_redacted(
    book: Path, on: Start, tt: Start, tmp_path: Path
) -> None:
    kernel = on(book)
    kernel.run(f"open('s', 'w').write({SECRET!r}); print(open('s').read(), 'said')")
    kernel.run("print('x' * 19_990 + open('s').read())")  # cut in the middle of it
    kernel.run("os = __import__('os'); os.remove('s')")
    end(kernel)
    ended(tt, book)
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    tt("redact", book, "--text-from", secret, "--yes")
    outputs = [tt("show", book, n, "--json")["cells"][0]["output"] for n in (1, 2)]
    assert outputs[0] == "[redacted] said\n"
    assert SECRET[:5] not in outputs[1] and outputs[1].startswith("xxx")
