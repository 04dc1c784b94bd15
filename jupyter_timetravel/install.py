"""``jupyter timetravel install``: write a kernelspec that starts the time-travel kernel.

The wheel brings a kernelspec of its own, for the environment that it is installed into. This one is
for Jupyter servers that run in another environment. It starts an absolute interpreter and, unless
asked, names no provisioner: a server hides a kernelspec whose provisioner its own environment
lacks, and front ends such as VS Code start the command themselves. The command alone is enough.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpecManager

from jupyter_timetravel.command_line.output import tell
from kernel_runtime.errors import TimeTravelError

SUMMARY = "write a kernelspec that starts the time-travel kernel"
KERNELSPEC = Path(__file__).parent / "kernelspec"
KERNEL_NAME = "python3-timetravel"
PROVISIONER = "timetravel-provisioner"
DOCKER_NAME = "python3-timetravel-docker"
DOCKER_PROVISIONER = "timetravel-docker-provisioner"


class InstallError(TimeTravelError):
    """A kernelspec could not be written; the kernelspecs that exist are as they were."""


def kernelspec(
    *, display_name: str | None = None, python: str | None = None, provisioner: bool = False
) -> dict[str, Any]:
    """The contents of kernel.json for this interpreter.

    python: run the notebook's code under this interpreter instead, which needs ipykernel only.
    provisioner: let the Jupyter server launch it through TimeTravelProvisioner.
    """
    spec: dict[str, Any] = json.loads((KERNELSPEC / "kernel.json").read_text("utf-8"))
    spec["argv"][0] = sys.executable
    if python is not None:
        spec["argv"] += ["--python", python]
    if display_name is not None:
        spec["display_name"] = display_name
    if not provisioner:
        del spec["metadata"]["kernel_provisioner"]
    return spec


def docker_kernelspec(image: str, *, display_name: str | None = None) -> dict[str, Any]:
    """The contents of kernel.json for a kernel in a container of an image."""
    spec = kernelspec(display_name=display_name or f"Python 3 (time travel, {image})")
    spec["argv"][0] = "python"  # the container's
    spec["metadata"]["kernel_provisioner"] = {
        "provisioner_name": DOCKER_PROVISIONER,
        "config": {"image": image},
    }
    return spec


def write_kernelspec(
    spec: dict[str, Any], name: str, *, user: bool = False, prefix: str | None = None
) -> Path:
    """Install a kernelspec with our logos and return its directory.

    An older one of that name is replaced. Raises InstallError.
    """
    manager = KernelSpecManager()
    with tempfile.TemporaryDirectory(prefix="timetravel-") as folder:
        source = Path(folder) / "spec"
        shutil.copytree(KERNELSPEC, source)
        (source / "kernel.json").write_text(json.dumps(spec, indent=2) + "\n", "utf-8")
        try:
            return Path(manager.install_kernel_spec(str(source), name, user=user, prefix=prefix))
        except (OSError, ValueError) as error:
            raise InstallError(
                f"The kernelspec {name!r} was not written: {error}. Kernelspecs that exist are as "
                "they were. Choose another place (--user, --sys-prefix, --prefix DIR) or, if the "
                "name was refused, another --name (letters, digits, and . _ -)."
            ) from error


def absolute_interpreter(text: str) -> str:
    """The absolute path of an interpreter, links kept: a virtual environment is found by its link.

    Raises InstallError if there is no such program.
    """
    found = shutil.which(text)
    if found is None:
        raise InstallError(
            f"There is no interpreter {text!r}. Nothing was written. Give the path of the python "
            "of the environment in which the notebook's code shall run."
        )
    return os.path.abspath(found)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--user", action="store_true", help="for you, in all environments")
    place.add_argument(
        "--sys-prefix", action="store_true", help=f"for this environment ({sys.prefix})"
    )
    place.add_argument("--prefix", metavar="DIR", help="below DIR/share/jupyter")
    parser.add_argument(
        "--name", help=f"name (default: {KERNEL_NAME}, with --docker {DOCKER_NAME})"
    )
    parser.add_argument("--display-name", metavar="TEXT", help="what the kernel picker shows")
    parser.add_argument(
        "--python",
        metavar="PATH",
        help="run the notebook's code under this interpreter; its environment needs ipykernel only",
    )
    parser.add_argument(
        "--provisioner",
        action="store_true",
        help="name the kernel provisioner: for a Jupyter server whose environment has this package",
    )
    parser.add_argument(
        "--docker",
        metavar="IMAGE",
        help="run the kernel in a container of this image; memory, network and more are set in the "
        "kernelspec's metadata",
    )


def run(args: argparse.Namespace) -> int:
    if args.docker is not None:
        if args.python is not None:
            raise InstallError(
                "--python names an interpreter of this machine, --docker runs the image's. Nothing "
                "was written; leave one of them out."
            )
        spec = docker_kernelspec(args.docker, display_name=args.display_name)
        name = args.name or DOCKER_NAME
    else:
        python = None if args.python is None else absolute_interpreter(args.python)
        spec = kernelspec(
            display_name=args.display_name, python=python, provisioner=args.provisioner
        )
        name = args.name or KERNEL_NAME
    prefix = sys.prefix if args.sys_prefix else args.prefix
    path = write_kernelspec(spec, name, user=args.user, prefix=prefix)
    lines = [f"Installed {spec['display_name']!r} in {path}"]
    if path.parent not in map(Path, KernelSpecManager().kernel_dirs):
        lines.append(
            f"A Jupyter server finds it when JUPYTER_PATH holds {path.parent.parent}, "
            "or when it runs in that environment."
        )
    tell(args, "\n".join(lines), {"path": str(path), "text": "\n".join(lines)})
    return 0
