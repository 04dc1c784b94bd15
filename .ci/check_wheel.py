"""Whether the wheel gives kernelspec, server extension and sidebar with no further command.

Run by the interpreter of the fresh environment that it was installed into. `--no-sidebar` where
there is no JupyterLab. Says what it has found; status 1, and why, where something is not there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PREFIX = Path(sys.prefix)
PATIENCE_S = 120


def require(fact: bool, *why: Any) -> None:
    """End here if it is not so."""
    if not fact:
        sys.exit("the wheel: " + " ".join(map(str, why)))


def told(*words: str) -> str:
    """What a module says, on both streams, as a program; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    require(done.returncode == 0, *words, "failed:", done.stdout)
    return done.stdout


def kernelspec() -> str:
    """The kernel is there, and is this environment's."""
    listed = json.loads(told("jupyter_client.kernelspecapp", "list", "--json", "--log-level=ERROR"))
    spec = listed["kernelspecs"].get("python3-timetravel")
    require(spec is not None, "there is no kernelspec:", listed)
    place = Path(spec["resource_dir"])
    require(PREFIX in place.parents, "the kernelspec is of another place:", place)
    return str(place)


def server_extension() -> str:
    """It is enabled by a file of this environment."""
    file = PREFIX / "etc/jupyter/jupyter_server_config.d/jupyter_timetravel.json"
    require(file.is_file(), file, "is not there")
    listed = told("jupyter_server", "extension", "list")
    lines = [line for line in listed.splitlines() if "jupyter_timetravel" in line]
    require(any("enabled" in line for line in lines), "it is not enabled:", listed)
    require(not any("disabled" in line or "X" in line.split() for line in lines), listed)
    return str(file)


def sidebar() -> str:
    """JupyterLab finds it, enabled, built for its version."""
    place = PREFIX / "share/jupyter/labextensions/jupyter-timetravel"
    require((place / "package.json").is_file(), place, "is not there")
    listed = told("jupyterlab.labextensions", "list")
    lines = [line for line in listed.splitlines() if "jupyter-timetravel" in line]
    good = len(lines) == 1 and "enabled" in lines[0] and "OK" in lines[0]
    require(good, "JupyterLab does not take the sidebar:", listed)
    licences = (place / "static" / "third-party-licenses.json").read_text()
    brought = [one["name"] for one in json.loads(licences)["packages"]]
    own = [name for name in brought if name.startswith(("@jupyterlab/", "@lumino/", "react"))]
    require(not own, "the sidebar brings what is JupyterLab's own:", own)
    return str(place)


def kernel() -> str:
    """It starts, has time travel, and is this environment's code."""
    from jupyter_client.manager import run_kernel

    code = "import jupyter_timetravel; open('at', 'w').write(jupyter_timetravel.__file__)"
    with run_kernel(kernel_name="python3-timetravel", startup_timeout=PATIENCE_S) as client:
        for cell in (code, "%restore 1"):
            reply = client.execute(cell, reply=True, timeout=PATIENCE_S)
            require(reply["content"]["status"] == "ok", reply["content"])
    at = Path("at").read_text()
    require(PREFIX in Path(at).parents, "the kernel runs other code:", at)
    return at


def main() -> None:
    with tempfile.TemporaryDirectory() as empty:
        # nothing of what this user has configured elsewhere
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
            os.environ[name] = f"{empty}/{name}"
        os.environ["JUPYTER_TIMETRAVEL_STORE"] = f"{empty}/store"
        os.environ["JUPYTER_TIMETRAVEL_KEYS"] = f"{empty}/keys"
        work = Path(empty, "work")
        work.mkdir()
        os.chdir(work)
        looks = [kernelspec, server_extension, kernel]
        if "--no-sidebar" not in sys.argv:
            looks.append(sidebar)
        for look in looks:
            print(f"{look.__name__}: {look()}", flush=True)
        os.chdir("/")


main()
