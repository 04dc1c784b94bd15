"""Pages that the next cell will write are made ready after a freeze (native/prefault.c)."""

from __future__ import annotations

import time


def test_pages_written_since_the_last_freeze_are_noted_and_touched(notebook):
    notebook.run(
        "library = get_ipython().kernel.timetravel._library\nimport resource\n"
        "block = bytearray(4 << 20)\n"
        "def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "def write():\n    for i in range(0, len(block), 4096): block[i] = block[i] ^ 1"
    )
    notebook.head()
    # what is written here, between two freezes, is noted before the second one …
    cell = notebook.run("write(); print(library._library.tt_pages_note(8 << 20, 8192))")
    assert int(cell.out) > 1000
    # … and was made this process's own after it: writing it again meets hardly a fault
    time.sleep(0.3)  # cells back to back leave no time for it
    notebook.run("write()")
    time.sleep(0.5)  # nobody asks for anything: else the touching stops
    cell = notebook.run("before = faults(); write(); print(faults() - before)")
    assert int(cell.out) < 500


def test_touching_stops_for_a_request(notebook):
    cell = notebook.run(
        "import os\nlibrary = get_ipython().kernel.timetravel._library\n"
        "r, w = os.pipe(); os.write(w, b'x')\nlibrary.note_pages()\n"
        "print(library.touch_pages(r) <= 4096, library.touch_pages(-1))"
    )
    assert cell.out == "True 0"
