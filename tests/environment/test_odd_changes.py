"""Changes that are hard to look at or to carry: what is told of them, and that they go back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest


def test_what_may_not_be_looked_into(notebook: Any, E: Path) -> None:
    """chmod -R 000: the rest of what the same cell did is told all the same, and all goes back."""
    run = notebook.run
    (E / "site-packages").mkdir()
    (E / "locked").mkdir()
    (E / "locked" / "file").write_text("mine")
    run(f"import os\nfrom pathlib import Path\nE = Path({str(E)!r})\n%checkpoint before")
    run(
        "info = E / 'site-packages' / 'tinynum-2.0.dist-info'\ninfo.mkdir()\n"
        "(info / 'METADATA').write_text('Metadata-Version: 2.1\\nName: tinynum\\n'\n"
        "    'Version: 2.0\\n')\n"
        "(E / 'empty').touch(0o000)\n"
        "!chmod -R 000 {E}/locked"
    )
    said = run("%restore before --dry-run").out + run("%restore before").out
    assert said.count("tinynum 2.0") == 2 and said.count(f"{E}/empty") == 2, said
    assert run("print((E / 'locked/file').read_text(), (E / 'empty').exists())").out == "mine False"
    # and from the other side, where a layer's index was made
    said = run("%restore --undo").out
    assert "tinynum 2.0" in said and f"{E}/empty" in said, said
    assert run("print(oct(os.stat(E / 'locked').st_mode))").out == "0o40000"


@pytest.mark.root
def test_devices_of_the_machine_stay(notebook: Any, ability: Any) -> None:
    """/dev is the machine's own, so as root it is read-only: rm -rf would be no matter of undo."""
    ability("root", os.geteuid() == 0)
    victim = Path(f"/dev/timetravel-test-{os.getpid()}")
    victim.symlink_to("null")
    try:
        out = notebook.run(f"!rm -f {victim}; echo rc=$?; chmod 600 /dev/full; echo rc=$?").out
        assert out.count("Read-only file system") == 2 and out.count("rc=1") == 2, out
        assert victim.is_symlink()
    finally:
        victim.unlink()
    works = (
        "import multiprocessing.shared_memory as shm, os, pty\n"
        "open('/dev/null', 'w').write('x'); open('/dev/shm/x', 'w').write('x')\n"
        "one = shm.SharedMemory(create=True, size=100); one.close(); one.unlink()\n"
        "print(pty.openpty()[0] > 0, len(os.urandom(4)), open('/dev/zero', 'rb').read(1))"
    )
    assert notebook.run(works).out == "True 4 b'\\x00'"
