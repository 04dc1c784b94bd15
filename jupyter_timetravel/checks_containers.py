"""What the doctor finds about kernelspecs whose kernels run in containers."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from jupyter_client.kernelspec import KernelSpecManager

from jupyter_timetravel.containers.errors import ContainerError
from jupyter_timetravel.findings import FAULTY, FINE, LIMITED, SKIPPED, Check, Finding, is_linux
from jupyter_timetravel.install import DOCKER_PROVISIONER
from kernel_runtime.timeline.text import plural


def check_containers() -> Finding:
    """Whether a kernel of each such kernelspec would start, and what it is given."""
    if not is_linux():
        return Finding(SKIPPED, "for Linux only")
    wanted = _kernelspecs()
    if not wanted:
        return Finding(SKIPPED, "no kernelspec runs its kernel in a container")
    told, states = [], {FINE}
    for name, config in sorted(wanted.items()):
        try:
            state, text = _look(config)
        except ContainerError as error:
            state, text = FAULTY, str(error)
        states.add(state)
        told.append(f"{name}: {text}")
    worst = next(state for state in (FAULTY, LIMITED, FINE) if state in states)
    mend = "Change the metadata of the kernelspec, or what it names." if worst != FINE else ""
    return Finding(worst, "; ".join(one.rstrip(".") for one in told), mend)


def _kernelspecs() -> dict[str, dict[str, Any]]:
    """The config of each, by name."""
    found = {}
    for name, one in KernelSpecManager().get_all_specs().items():
        asked = one["spec"].get("metadata", {}).get("kernel_provisioner", {})
        if asked.get("provisioner_name") == DOCKER_PROVISIONER:
            found[name] = dict(asked.get("config") or {})
    return found


def _look(config: dict[str, Any]) -> tuple[str, str]:
    """Raises ContainerError. Runs the image's interpreter in a container for a moment."""
    from jupyter_timetravel.containers.daemon import Daemon
    from jupyter_timetravel.containers.fitting import fitting
    from jupyter_timetravel.containers.options import parse

    options, _ = parse(config)
    with closing(Daemon(options.docker_host)) as daemon:
        fitting(daemon, options)
        commits = len([*daemon.commits({})]) if options.isolation == "commit" else 0
    limit = f"memory {options.memory / 2**30:.1f} GiB" if options.memory else "all of the memory"
    isolation = options.isolation + (f" ({plural(commits, 'image')} so far)" if commits else "")
    text = (
        f"{options.image}, isolation {isolation}, network {options.network}, {limit}, "
        f"/dev/shm {options.shared_memory / 2**30:.1f} GiB (option shm)"
    )
    if options.shared_memory < (options.memory or 0):
        return LIMITED, f"{text}, less than the memory: what fills it ends with SIGBUS"
    return FINE, text


CHECKS: tuple[Check, ...] = (Check("containers", "kernels in containers", check_containers),)
