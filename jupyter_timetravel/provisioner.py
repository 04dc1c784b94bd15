"""A kernel provisioner that gives time travel to any kernelspec of an IPython kernel.

A kernelspec asks for it in its metadata::

    "metadata": {"kernel_provisioner": {"provisioner_name": "timetravel-provisioner",
                                        "config": {"auto": "changed", "workspace": ["~/data"]}}}

Its command then is not run as it stands: the supervisor runs under the interpreter of the Jupyter
server (this one, where the package is installed), and the notebook's code under the interpreter
that the kernelspec names, whose environment needs ipykernel only. ``config`` holds the supervisor's
settings. A kernelspec that already starts ``kernel_runtime`` only has its settings added.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from jupyter_client.provisioning.local_provisioner import LocalProvisioner

from kernel_runtime.errors import TimeTravelError
from kernel_runtime.supervisor.config import Supervisor

KERNEL_MODULES = ("ipykernel_launcher", "ipykernel")
OUR_MODULE = "kernel_runtime"
FILE_OPTIONS = ("-f", "--f", "--connection-file", "--IPKernelApp.connection_file")
STARTUP_VARIABLES = frozenset({"PYTHONHOME", "PYTHONPATH"})
OPTIONS_WITH_VALUE = ("-W", "-X")
HINT = (
    "Nothing was started. Name the interpreter itself in the kernelspec's argv, such as "
    '["/path/to/python", "-m", "ipykernel_launcher", "-f", "{connection_file}"], or take the '
    "provisioner out of its metadata."
)


class UnsupportedKernel(TimeTravelError):
    """A kernelspec asks for time travel but does not start an IPython kernel: nothing was started.

    Raised at launch, so the Jupyter server shows the message to whoever opened the notebook.
    """


class KernelCommand(NamedTuple):
    """The parts of a command line that starts an IPython kernel."""

    interpreter: str
    options: tuple[str, ...]  # of the interpreter, such as -Xutf8
    module: str
    connection_file: str
    arguments: tuple[str, ...]  # of the kernel application, the connection file left out


def parse_command(argv: Sequence[str], name: str = "") -> KernelCommand:
    """Take a kernel's command line apart. Raises UnsupportedKernel, naming the kernelspec."""
    words = list(argv)
    if not words or not re.fullmatch(r"python[\d.]*(\.exe)?", PurePath(words[0]).name):
        raise UnsupportedKernel(
            f"The kernelspec {name!r} asks for time travel, but its command does not begin with "
            f"a Python interpreter: {words[:1]}. {HINT}"
        )
    interpreter, rest = words[0], words[1:]
    options: list[str] = []
    while rest and rest[0] != "-m" and rest[0].startswith("-"):
        takes_value = rest[0] in OPTIONS_WITH_VALUE
        options += rest[: 1 + takes_value]
        rest = rest[1 + takes_value :]
    if len(rest) < 2 or rest[0] != "-m" or rest[1] not in (*KERNEL_MODULES, OUR_MODULE):
        raise UnsupportedKernel(
            f"The kernelspec {name!r} asks for time travel, but it does not start ipykernel "
            f"(-m {KERNEL_MODULES[0]}): {words}. Only IPython kernels can go back. {HINT}"
        )
    connection_file, arguments = _take_connection_file(rest[2:])
    if connection_file is None:
        raise UnsupportedKernel(
            f"The kernelspec {name!r} asks for time travel, but its command does not say where "
            f"the connection file is (-f {{connection_file}}): {words}. {HINT}"
        )
    return KernelCommand(interpreter, tuple(options), rest[1], connection_file, arguments)


def _take_connection_file(words: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """Split the arguments of a kernel application into the connection file and the others."""
    found: str | None = None
    others: list[str] = []
    rest = iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        if option not in FILE_OPTIONS:
            others.append(word)
        elif equals:
            found = value
        else:
            found = next(rest, None)
    return found, tuple(others)


def settings_arguments(settings: Mapping[str, Any], name: str = "") -> list[str]:
    """The provisioner's config as command-line arguments of the supervisor.

    Raises UnsupportedKernel for a setting that the supervisor does not have.
    """
    known = Supervisor.class_trait_names(config=True)
    if unknown := sorted(set(settings) - set(known)):
        raise UnsupportedKernel(
            f"The kernelspec {name!r} configures time travel with {', '.join(unknown)}, which does "
            f"not exist. Nothing was started. There are: {', '.join(sorted(known))}."
        )
    return [f"--Supervisor.{key}={value}" for key, value in settings.items()]


def supervised(
    command: KernelCommand, arguments: Sequence[str], *, isolate: bool = False
) -> list[str]:
    """The command that runs a kernel under a supervisor.

    arguments: of the supervisor. isolate: keep the PYTHON… variables, which are meant for the
    kernel's interpreter, away from the supervisor's.
    """
    if command.module == OUR_MODULE:
        return [
            *(command.interpreter, *command.options, "-m", OUR_MODULE),
            *("-f", command.connection_file, *arguments, *command.arguments),
        ]
    return [
        *(sys.executable, *(["-E"] if isolate else []), "-m", OUR_MODULE),
        *("-f", command.connection_file, "--python", command.interpreter, *arguments),
        *("--", *command.arguments),
    ]


class TimeTravelProvisioner(LocalProvisioner):
    """Launches the supervisor on this machine; its process is the kernel that Jupyter sees.

    Polling, waiting and signals are those of a local process. When the supervisor ends, whatever
    the way, the sandbox ends everything that the session has started.
    """

    def __init__(self, **kwargs: Any) -> None:
        # KernelProvisionerFactory passes the kernelspec's config as keywords beside its own
        own = {name: kwargs.pop(name) for name in tuple(kwargs) if name in self.trait_names()}
        self._settings: dict[str, Any] = kwargs
        super().__init__(**own)

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Called by KernelManager before each start and restart: choose the command line."""
        spec = self.kernel_spec
        if spec.language.lower() != "python":
            raise UnsupportedKernel(
                f"The kernelspec {spec.display_name!r} asks for time travel, but its language is "
                f"{spec.language!r}. Only IPython kernels can go back. {HINT}"
            )
        arguments = settings_arguments(self._settings, spec.display_name)
        prepared = await super().pre_launch(**kwargs)
        command = parse_command(prepared["cmd"], spec.display_name)
        isolate = not STARTUP_VARIABLES.isdisjoint(spec.env)
        prepared["cmd"] = supervised(command, arguments, isolate=isolate)
        return prepared
