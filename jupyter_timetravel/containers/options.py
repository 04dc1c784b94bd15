"""The settings of a kernelspec whose kernel runs in a container."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from jupyter_timetravel.containers.errors import ContainerError

ISOLATIONS: Final = ("namespaces", "commit", "snapshots", "plain")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_HINT: Final = "Nothing was started; change the kernelspec's metadata."


@dataclass(frozen=True)
class ContainerOptions:
    """How to make the container; what is not named here goes to the supervisor inside."""

    image: str
    """Name of an image with Python and this package. It is never pulled on its own."""
    python: str = "python"
    """The image's interpreter that has the package."""
    memory: int | None = None
    """Bytes of memory at most; memory and swap together."""
    cpus: float | None = None
    """Processors at most."""
    shm: int | None = None
    """Bytes of /dev/shm. By default what memory says, else half of the machine's."""
    network: str = "bridge"
    """none, bridge, host, or the name of a network of Docker's."""
    isolation: str = "namespaces"
    """namespaces: the container may make namespaces, in which the session's environment goes back.
    plain: Docker's own confinement, untouched: memory and workspace go back. snapshots: the same,
    and the image's Python packages and the home directory are captured as the workspace is. commit:
    the same, and Docker commits the container's own layer; the home directory as with snapshots."""
    user: str = ""
    """uid:gid inside; by default whoever runs the server, so that new files belong to him."""
    capabilities: tuple[str, ...] = ()
    """Linux capabilities, as SYS_ADMIN, beside those that `isolation` gives, in a container of
    root's. An ordinary user's processes have none of them."""
    seccomp: str = ""
    """unconfined: no filter of system calls, which CRIU needs; by default what `isolation` says."""
    mounts: tuple[str, ...] = ()
    """Further directories, each as source:target or source:target:ro."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for the kernel; what starts with JUPYTER_TIMETRAVEL_ is set by us."""
    docker_host: str | None = None
    """Address of the daemon; by default as Docker's own command finds it. Podman serves the same
    interface at unix:///run/user/UID/podman/podman.sock."""
    orphan_hours: float = 24.0
    """How long a container whose server was killed waits for its notebook to be opened again."""

    @property
    def shared_memory(self) -> int:
        """Bytes of /dev/shm that the container gets."""
        half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
        return self.shm or self.memory or half


def parse(config: Mapping[str, Any]) -> tuple[ContainerOptions, dict[str, Any]]:
    """Split a kernelspec's config into the container's options and the supervisor's settings.

    Raises ContainerError, naming the option.
    """
    known = {f.name for f in fields(ContainerOptions)}
    mine = {name: value for name, value in config.items() if name in known}
    rest = {name: value for name, value in config.items() if name not in known}
    if not isinstance(mine.get("image"), str) or not mine["image"]:
        raise ContainerError(
            'The kernelspec names no image ("image": "name:tag"). Nothing was started. `jupyter '
            "timetravel install --docker IMAGE` writes such a kernelspec."
        )
    for name in ("memory", "shm"):
        if mine.get(name) is not None:
            mine[name] = _bytes(name, mine[name])
    if mine.get("cpus") is not None:
        mine["cpus"] = _number("cpus", mine["cpus"])
    if "orphan_hours" in mine:
        mine["orphan_hours"] = _number("orphan_hours", mine["orphan_hours"])
    if mine.get("isolation", "namespaces") not in ISOLATIONS:
        raise ContainerError(
            f"isolation is {mine['isolation']!r}; there are: {', '.join(ISOLATIONS)}. {_HINT}"
        )
    if mine.get("seccomp", "") not in ("", "unconfined"):
        raise ContainerError(
            f"seccomp is {mine['seccomp']!r}; there is: unconfined. Without it, the "
            f"filter is what isolation says. {_HINT}"
        )
    mine["capabilities"] = _capabilities(mine.get("capabilities", ()))
    mine["mounts"] = tuple(_mount(text) for text in mine.get("mounts", ()))
    user = str(mine.get("user") or f"{os.getuid()}:{os.getgid()}")
    if not re.fullmatch(r"\d+:\d+", user):
        raise ContainerError(f"user is {user!r}; give numbers, as uid:gid. {_HINT}")
    mine["user"] = user
    environment = mine.get("environment", {})
    if not isinstance(environment, Mapping):
        raise ContainerError(f"environment must map names to values. {_HINT}")
    mine["environment"] = {str(key): str(value) for key, value in environment.items()}
    options = ContainerOptions(**mine)
    if options.isolation != "namespaces":
        rest.setdefault("sandbox", "none")
    return options, rest


def _bytes(name: str, value: object) -> int:
    found = _SIZE.fullmatch(str(value).strip())
    if isinstance(value, bool) or found is None:
        raise ContainerError(f"{name} is {value!r}; give bytes, or a size such as 4g. {_HINT}")
    return int(float(found[1]) * 1024 ** _POWERS[found[2].lower()])


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 < number < 1e6 or isinstance(value, bool):
        raise ContainerError(f"{name} is {value!r}; give a number above 0. {_HINT}")
    return number


def _capabilities(names: object) -> tuple[str, ...]:
    """Without the prefix CAP_, as Docker's interface takes them and Podman's too."""
    if not isinstance(names, (list, tuple)) or not all(
        re.fullmatch(r"[A-Za-z_]+", str(name)) for name in names
    ):
        raise ContainerError(
            f'capabilities is {names!r}; give a list such as ["SYS_ADMIN"]. {_HINT}'
        )
    return tuple(str(name).upper().removeprefix("CAP_") for name in names)


def _mount(text: object) -> str:
    parts = str(text).split(":")
    parts[0] = os.path.expanduser(parts[0])
    right = len(parts) in (2, 3) and all(os.path.isabs(p) for p in parts[:2])
    if not right or (len(parts) == 3 and parts[2] not in ("ro", "rw")):
        raise ContainerError(
            f"The mount {text!r} is not understood; write /on/host:/inside or "
            f"/on/host:/inside:ro. {_HINT}"
        )
    if not os.path.isdir(parts[0]):
        raise ContainerError(
            f"The directory {parts[0]} of the mount {text!r} does not exist. {_HINT}"
        )
    return ":".join(parts)
