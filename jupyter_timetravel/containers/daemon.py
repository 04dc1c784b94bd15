"""What is asked of Docker: look at an image, make a container, find ours again, remove them.

Every call blocks; the provisioner makes them in threads.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from jupyter_timetravel.containers.errors import ContainerError
from jupyter_timetravel.containers.options import ContainerOptions
from kernel_runtime.process_names import this_process

LABEL: Final = "jupyter-timetravel"
"""Every container of ours bears it, with the uid of whoever runs the server as its value."""
COMMIT: Final = f"{LABEL}-commit"
"""Every commit of ours bears it likewise."""
PROFILE: Final = Path(__file__).with_name("seccomp.json")
HOST_NAME: Final = "host.docker.internal"
_LOOK: Final = (
    "import importlib.metadata as m, json, os, sys, sysconfig\n"
    "try: version = m.version('jupyter_timetravel')\n"
    "except m.PackageNotFoundError: version = None\n"
    "paths = [sysconfig.get_path(name) for name in ('purelib', 'platlib', 'scripts')]\n"
    "if sys.prefix != sys.base_prefix: paths = [sys.prefix]\n"
    "own = [path for path in dict.fromkeys(paths) if os.access(path, os.W_OK)]\n"
    "print(json.dumps([version, own]))"
)
_PATIENCE_S: Final = 300  # rootless Podman copies an image for its first container
_LINES: Final = 20


@dataclass(frozen=True)
class Found:
    """A container of ours. lives: it runs or is paused. labels: without the prefix of ours."""

    id: str
    lives: bool
    paused: bool
    image: str
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Commit:
    """An image that was made of a container of ours. created: seconds since the epoch. labels:
    without the prefix of ours."""

    id: str
    created: int
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Packages:
    """The version of this package in an image, and the directories of Python's packages that the
    kernel's user may write to."""

    version: str
    directories: tuple[str, ...]


class Daemon:
    """A connection to Docker, or to what serves its interface."""

    def __init__(self, address: str | None = None) -> None:
        """Connect. Raises ContainerError where there is no daemon, or none that we may use."""
        try:
            import docker
            import requests  # by which it speaks, and whose errors it lets through
        except ImportError as error:
            raise ContainerError(
                "Kernels in containers need Docker's library for Python, which is not installed. "
                "Nothing was started; `pip install jupyter_timetravel[docker]` brings it."
            ) from error
        self._errors = docker.errors
        self._away = requests.exceptions.RequestException
        try:
            settings: dict[str, Any] = docker.utils.kwargs_from_env()
            if address:
                settings = {"base_url": address}
            self._api = docker.APIClient(timeout=_PATIENCE_S, **settings)
            parts = self._api.version().get("Components") or ()
            self.is_podman = any("podman" in str(part.get("Name")).lower() for part in parts)
        except Exception as error:  # the library lets requests' and urllib3's through
            raise _unreachable(error, address) from error

    def close(self) -> None:
        """End the connection."""
        self._api.close()

    # --- images ----------------------------------------------------------------------------------

    def image(self, name: str) -> str:
        """The id of an image that is here. Raises ContainerError; it is never pulled."""
        try:
            return str(self._api.inspect_image(name)["Id"])
        except self._errors.ImageNotFound as error:
            raise ContainerError(
                f"There is no image {name!r} on this machine. Nothing was started. `docker pull "
                f"{name}` brings one from a registry; containers/Dockerfile in this project's "
                "source builds ours."
            ) from error
        except self._errors.APIError as error:
            raise ContainerError(
                f"Docker does not take {name!r} for an image: {_said(error)}. Nothing was started; "
                "correct its name in the kernelspec's metadata."
            ) from error

    def variables(self, image: str) -> set[str]:
        """The names of the environment variables that an image brings. Raises ContainerError."""
        self.image(image)
        listed = self._api.inspect_image(image)["Config"].get("Env") or ()
        return {one.partition("=")[0] for one in listed}

    def packages(self, image: str, python: str, user: str) -> Packages:
        """What an image's interpreter says of this package and of where packages are.

        Raises ContainerError where there is no such interpreter or no such package.
        """
        known = _looked.get((image, python, user))
        if known is None:
            known = _looked[image, python, user] = self._look(image, python, user)
        return known

    def _look(self, image: str, python: str, user: str) -> Packages:
        asked = self._api.create_container(
            image,
            [python, "-c", _LOOK],
            entrypoint="",
            user=user,
            # named as this server's: one that starts meanwhile clears away what is nobody's
            labels={
                LABEL: str(os.getuid()),
                f"{LABEL}.kind": "probe",
                f"{LABEL}.server": this_process(),
            },
            host_config=self._api.create_host_config(network_mode="none", cap_drop=["ALL"]),
        )["Id"]
        try:
            self._start(asked, python)
            status = self._api.wait(asked, timeout=_PATIENCE_S)["StatusCode"]
            text = str(self._api.logs(asked).decode(errors="replace")).strip()
        except self._errors.APIError as error:
            raise ContainerError(
                f"The image could not be looked at: {_said(error)}. Nothing was started; try again."
            ) from error
        finally:
            self.remove(asked)
        version, directories = None, []
        with contextlib.suppress(ValueError):
            version, directories = json.loads(text.splitlines()[-1] if text else "")
            text = ""
        if status != 0 or version is None:
            raise ContainerError(
                f"The image has no jupyter_timetravel under {python!r}"
                f"{f' ({text[-200:]})' if text else ''}. Nothing was started. "
                "Install the wheel in the image, build it with containers/Dockerfile, or name the "
                'interpreter that has it ("python": "/path/to/python" in the kernelspec).'
            )
        return Packages(version, tuple(directories))

    def save(self, name: str, file: Path) -> None:
        """Write an image into a new file, as `docker save` does. Raises ContainerError, OSError."""
        self.image(name)
        with open(file, "xb") as out:
            for piece in self._api.get_image(name):
                out.write(piece)

    def load(self, file: Path) -> None:
        """Read an image from a file, as `docker load` does. Raises ContainerError, OSError."""
        try:
            with open(file, "rb") as source:
                for answer in self._api.load_image(source):
                    if "error" in answer:
                        raise ContainerError(f"Docker did not take the image: {answer['error']}")
        except self._errors.APIError as error:
            raise ContainerError(f"Docker did not take the image: {_said(error)}.") from error

    # --- containers ------------------------------------------------------------------------------

    def create(
        self,
        image: str,
        command: Sequence[str],
        options: ContainerOptions,
        *,
        binds: Sequence[str],
        labels: Mapping[str, str],
        environment: Mapping[str, str],
        directory: str,
    ) -> str:
        """Make a container, not started yet, and return its id. Raises ContainerError."""
        is_root = options.user.startswith("0:")
        security = ["no-new-privileges"]
        if options.isolation == "namespaces":
            # Docker's interface takes a profile, Podman's the name of a file
            if not options.seccomp:
                security.append(f"seccomp={PROFILE if self.is_podman else _profile()}")
            if self.is_podman:
                security.append("unmask=ALL")
            if any("apparmor" in one for one in self._api.info().get("SecurityOptions") or ()):
                security.append("apparmor=unconfined")  # Docker's own profile forbids mounts
        if options.seccomp:
            security.append(f"seccomp={options.seccomp}")
        settings: dict[str, Any] = {
            "binds": list(binds),
            "security_opt": security,
            "network_mode": options.network,
            "shm_size": options.shared_memory,
        }
        if not is_root:
            settings["cap_drop"] = ["ALL"]
        if options.capabilities:
            settings["cap_add"] = list(options.capabilities)
        if options.memory:
            settings["mem_limit"] = settings["memswap_limit"] = options.memory
        if options.cpus:
            settings["nano_cpus"] = int(options.cpus * 1e9)
        if options.network not in ("none", "host") and not self.is_podman:  # it has a name itself
            settings["extra_hosts"] = {HOST_NAME: "host-gateway"}
        host = self._api.create_host_config(**settings)
        if options.isolation == "namespaces":
            # what the command's `--security-opt systempaths=unconfined` says: where parts of /proc
            # are covered, the kernel lets nobody mount a fresh one
            host["MaskedPaths"], host["ReadonlyPaths"] = [], []
        if self.is_podman and not is_root and self._api.info().get("Rootless"):
            host["UsernsMode"] = "keep-id"  # else the user is root inside
        try:
            made = self._api.create_container(
                image,
                list(command),
                entrypoint="",
                user=options.user,
                working_dir=directory,
                environment=dict(environment),
                labels={LABEL: str(os.getuid()), **{f"{LABEL}.{k}": v for k, v in labels.items()}},
                host_config=host,
            )
        except self._errors.APIError as error:
            raise ContainerError(
                f"Docker did not make the container: {_said(error)}. Nothing was started; look at "
                "the options in the kernelspec's metadata."
            ) from error
        except self._away as error:
            raise _unreachable(error, None) from error
        return str(made["Id"])

    def start(self, id: str) -> None:
        """Start a container that was made. Raises ContainerError."""
        self._start(id, "the kernel's command")

    def _start(self, id: str, what: str) -> None:
        try:
            self._api.start(id)
        except self._errors.APIError as error:
            raise ContainerError(
                f"Docker did not start {what}: {_said(error)}. Nothing was left behind; look at "
                "the options in the kernelspec's metadata."
            ) from error
        except self._away as error:
            raise _unreachable(error, None) from error

    def wait(self, id: str) -> int:
        """Wait until a container has ended and return its exit status; 137 if it was removed.

        Raises ContainerError if the daemon went away meanwhile.
        """
        try:
            return int(self._api.wait(id, timeout=None)["StatusCode"])
        except self._errors.NotFound:
            return 137
        except Exception as error:
            raise _unreachable(error, None) from error

    def signal(self, id: str, number: int) -> None:
        """Send a signal to a container's first process; nothing if it has ended, or if the daemon
        went away."""
        with contextlib.suppress(self._errors.APIError, self._away):
            self._api.kill(id, number)

    def remove(self, id: str) -> bool:
        """Remove a container and end what runs in it; False if the daemon went away."""
        try:
            self._api.remove_container(id, force=True, v=True)
        except self._errors.APIError:
            return True  # it is gone, or being removed
        except self._away:
            return False
        return True

    def resume(self, id: str) -> None:
        """Let a paused container go on; nothing if it is not paused."""
        with contextlib.suppress(self._errors.APIError):
            self._api.unpause(id)

    def last_lines(self, id: str) -> str:
        """The end of what it has printed."""
        try:
            return str(self._api.logs(id, tail=_LINES).decode(errors="replace")).strip()
        except (self._errors.APIError, self._away):
            return ""

    def ours(self) -> Iterator[Found]:
        """All containers that this user's servers have made, ended ones too."""
        listed = self._api.containers(all=True, filters={"label": f"{LABEL}={os.getuid()}"})
        for found in listed:
            labels = _labels(found["Labels"], LABEL)
            state = found["State"]
            lives = state in ("running", "paused")
            yield Found(found["Id"], lives, state == "paused", found["ImageID"], labels)

    # --- commits ---------------------------------------------------------------------------------

    def commit(self, id: str, labels: Mapping[str, str]) -> str:
        """Make an image of a container, which is paused meanwhile; return its id.

        Raises ContainerError.
        """
        own = {COMMIT: str(os.getuid()), **{f"{COMMIT}.{k}": v for k, v in labels.items()}}
        # a commit bears its container's labels: who runs one by hand has no container of ours
        own[LABEL] = "commit"
        # Docker's interface takes a container's settings, Podman's lines of a Dockerfile
        lines = [f"LABEL {json.dumps(key)}={json.dumps(value)}" for key, value in own.items()]
        settings: dict[str, Any] = (
            {"changes": lines} if self.is_podman else {"conf": {"Labels": own}}
        )
        try:
            made = str(self._api.commit(id, **settings)["Id"])
            return made if made.startswith("sha256:") else f"sha256:{made}"
        except self._errors.APIError as error:
            raise ContainerError(f"Docker did not commit the container: {_said(error)}.") from error
        except self._away as error:
            raise _unreachable(error, None) from error

    def commit_bytes(self, image: str) -> int:
        """Bytes of its own layer."""
        with contextlib.suppress(self._errors.APIError, self._away, IndexError, KeyError):
            return int(self._api.history(image)[0]["Size"])
        return 0

    def commit_labels(self, image: str) -> dict[str, str]:
        """Of a commit, without the prefix of ours. Raises ContainerError if it is gone."""
        try:
            found = self._api.inspect_image(image)["Config"].get("Labels")
        except self._errors.APIError as error:
            raise ContainerError(
                f"Docker has no image {image} any more: {_said(error)}. Nothing was done."
            ) from error
        except self._away as error:
            raise _unreachable(error, None) from error
        return _labels(found, COMMIT)

    def commits(self, labels: Mapping[str, str]) -> Iterator[Commit]:
        """All commits of this user's with these labels. Raises ContainerError."""
        wanted = [f"{COMMIT}={os.getuid()}", *(f"{COMMIT}.{k}={v}" for k, v in labels.items())]
        try:
            listed = self._api.images(all=True, filters={"label": wanted})
        except (self._errors.APIError, self._away) as error:
            raise _unreachable(error, None) from error
        for found in listed:
            yield Commit(found["Id"], found["Created"], _labels(found["Labels"], COMMIT))

    def remove_commit(self, image: str) -> bool:
        """Remove an image, and none that it was made of; False if it is needed by another, or by a
        container, or if the daemon went away."""
        try:
            self._api.remove_image(image, noprune=True)
        except (self._errors.APIError, self._away):
            return False
        return True


_looked: dict[tuple[str, str, str], Packages] = {}
"""What images answered: by id of the image, interpreter and user."""


@lru_cache(maxsize=1)
def _profile() -> str:
    return PROFILE.read_text("utf-8")


def _labels(found: Mapping[str, str] | None, prefix: str) -> dict[str, str]:
    return {
        key.removeprefix(f"{prefix}."): value
        for key, value in (found or {}).items()
        if key.startswith(f"{prefix}.")
    }


def _said(error: Any) -> str:
    return str(getattr(error, "explanation", None) or error).strip().rstrip(".")


def _unreachable(error: Exception, address: str | None) -> ContainerError:
    place = address or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    text = str(error)
    if "PermissionError" in text or "Permission denied" in text:
        return ContainerError(
            f"You may not use Docker's socket ({place}). Nothing was started. Members of the group "
            "docker may (they are root on this machine in effect); or run Docker or Podman as "
            'yourself (rootless) and name its socket ("docker_host" in the kernelspec).'
        )
    return ContainerError(
        f"There is no Docker daemon at {place} ({text[-200:]}). Nothing was started. Start it, or "
        'name another one ("docker_host" in the kernelspec, or DOCKER_HOST).'
    )
