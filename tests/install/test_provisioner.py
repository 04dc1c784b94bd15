"""The provisioner's choice of the command line: what it takes apart, adds, and refuses."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.provisioning.factory import KernelProvisionerFactory

from jupyter_timetravel.install import PROVISIONER
from jupyter_timetravel.provisioner import (
    TimeTravelProvisioner,
    UnsupportedKernel,
    parse_command,
    supervised,
)

STOCK = ["/venv/bin/python", "-m", "ipykernel_launcher", "-f", "/run/k.json"]


@pytest.mark.parametrize(
    ("argv", "options", "connection_file", "arguments"),
    [
        (STOCK, (), "/run/k.json", ()),
        ([*STOCK, "--profile=work", "--debug"], (), "/run/k.json", ("--profile=work", "--debug")),
        (
            ["/v/bin/python3.12", "-Xfrozen_modules=off", "-W", "error", "-m", "ipykernel", "-f=c"],
            *(("-Xfrozen_modules=off", "-W", "error"), "c", ()),
        ),
        (
            ["python3", "-X", "utf8", "-m", "ipykernel_launcher", "--f", "c", "--no-secure"],
            *(("-X", "utf8"), "c", ("--no-secure",)),
        ),
        (
            ["python", "-m", "ipykernel_launcher", "--IPKernelApp.connection_file=c"],
            *((), "c", ()),
        ),
    ],
)
def test_parse(
    argv: list[str], options: tuple[str, ...], connection_file: str, arguments: tuple[str, ...]
) -> None:
    command = parse_command(argv)
    assert command.interpreter == argv[0]
    assert command[1:] == (options, command.module, connection_file, arguments)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "does not begin with a Python interpreter"),
        (["conda", "run", "python", *STOCK[1:]], "does not begin with a Python interpreter"),
        (["pypy3", *STOCK[1:]], "does not begin with a Python interpreter"),
        (["python", "-m", "xpython", "-f", "c"], "does not start ipykernel"),
        (["python", "kernel.py", "-f", "c"], "does not start ipykernel"),
        (["python", "-m", "ipykernel_launcher"], "where the connection file is"),
        (["python", "-m", "ipykernel_launcher", "-f"], "where the connection file is"),
    ],
)
def test_refusals_name_the_kernelspec_and_the_way_out(argv: list[str], says: str) -> None:
    with pytest.raises(UnsupportedKernel) as caught:
        parse_command(argv, "My kernel")
    assert "'My kernel'" in str(caught.value)
    assert says in str(caught.value)
    assert "Nothing was started." in str(caught.value)


def test_a_stock_kernel_runs_below_the_supervisor() -> None:
    command = supervised(parse_command([*STOCK, "--profile=p"]), ["--Supervisor.auto=off"])
    assert command[:5] == [sys.executable, "-m", "kernel_runtime", "-f", "/run/k.json"]
    assert command[5:7] == ["--python", "/venv/bin/python"]
    assert "--Supervisor.auto=off" in command[7 : command.index("--")]
    assert command[command.index("--") + 1 :] == ["--profile=p"]


def test_python_variables_are_kept_from_the_supervisor() -> None:
    assert supervised(parse_command(STOCK), [], isolate=True)[:2] == [sys.executable, "-E"]


def test_our_own_kernelspec_is_left_as_it_is() -> None:
    argv = ["/other/python", "-m", "kernel_runtime", "-f", "c", "--python", "p"]
    command = supervised(parse_command(argv), ["--Supervisor.auto=off"])
    assert command == [*argv[:5], "--Supervisor.auto=off", "--python", "p"]
    assert supervised(parse_command(argv), []) == argv


def make(config: dict[str, Any], **spec: Any) -> TimeTravelProvisioner:
    """As a Jupyter server would: through the entry point, with the kernelspec's metadata."""
    stanza = {"provisioner_name": PROVISIONER, "config": config}
    kernel_spec = KernelSpec(
        argv=STOCK, display_name="A kernel", metadata={"kernel_provisioner": stanza}, **spec
    )
    made = KernelProvisionerFactory().create_provisioner_instance("id", kernel_spec, None)
    assert isinstance(made, TimeTravelProvisioner)
    return made


async def test_config_of_the_kernelspec_reaches_the_supervisor() -> None:
    provisioner = make({"auto": "changed", "sandbox": "none"}, language="python")
    prepared = await provisioner.pre_launch(env={})
    assert "--Supervisor.auto=changed" in prepared["cmd"]
    assert "--Supervisor.sandbox=none" in prepared["cmd"]


async def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(UnsupportedKernel, match=r"with speed, which does not exist.*auto, "):
        await make({"speed": "high"}, language="python").pre_launch(env={})


async def test_another_language_is_refused() -> None:
    with pytest.raises(UnsupportedKernel, match="language is 'R'"):
        await make({}, language="R").pre_launch(env={})
