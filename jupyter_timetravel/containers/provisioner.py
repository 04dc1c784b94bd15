"""The provisioner ``timetravel-docker-provisioner``: the kernel runs in a container.

A kernelspec asks for it in its metadata::

    "metadata": {"kernel_provisioner": {"provisioner_name": "timetravel-docker-provisioner",
                                        "config": {"image": "timetravel", "memory": "4g"}}}

``config`` holds what `ContainerOptions` knows; all else goes to the supervisor inside.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
from concurrent.futures import Future
from hashlib import blake2b
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from jupyter_core.paths import jupyter_runtime_dir

from jupyter_timetravel.containers import commits, orphans
from jupyter_timetravel.containers.daemon import Daemon, Found
from jupyter_timetravel.containers.errors import ContainerError
from jupyter_timetravel.containers.exporting import BASE_FILE
from jupyter_timetravel.containers.fitting import fitting
from jupyter_timetravel.containers.options import parse
from jupyter_timetravel.containers.places import KEPT, STORE, state_directory
from jupyter_timetravel.provisioner import UnsupportedKernel, settings_arguments
from kernel_runtime.process_names import this_process
from kernel_runtime.store.paths import key_directory, private_directory
from kernel_runtime.supervisor.document import VARIABLE as NOTEBOOK_VARIABLE

INSIDE: Final = "/var/lib/timetravel"
"""Where the store, the keys and the home directory are inside."""
_HISTORY: Final = tuple(
    f"~/.ipython/profile_default/history.sqlite{end}" for end in ("", "-journal", "-wal", "-shm")
)
"""In the home directory: a database that the supervisor writes, of all that was ever run."""
_START_S: Final = 60.0
_RETRY_S: Final = 2.0
_LONGEST_SOCKET: Final = 107  # unix(7), without the final NUL
_PORTS: Final = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")


class DockerProvisioner(LocalProvisioner):
    """Starts, watches and removes the container of one kernel."""

    def __init__(self, **kwargs: Any) -> None:
        # KernelProvisionerFactory passes the kernelspec's config as keywords beside its own
        own = {name: kwargs.pop(name) for name in tuple(kwargs) if name in self.trait_names()}
        self._config: dict[str, Any] = kwargs
        super().__init__(**own)
        self._daemon: Daemon | None = None
        self._container = ""
        self._ended: Future[int] | None = None
        self._runtime: Path | None = None
        self._found: Found | None = None
        self._commits: commits.Commits | None = None

    # --- starting --------------------------------------------------------------------------------

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Choose the channels' addresses before the connection file is written.

        Raises ContainerError or UnsupportedKernel; then nothing was started.
        """
        spec = self.kernel_spec
        if spec.language.lower() != "python":
            raise UnsupportedKernel(
                f"The kernelspec {spec.display_name!r} asks for time travel in a container, but "
                f"its language is {spec.language!r}. Only IPython kernels can go back. Nothing was "
                "started; take the provisioner out of its metadata."
            )
        self._options, self._settings = parse(self._config)
        settings_arguments(self._settings, spec.display_name)  # refuses what there is not
        self._check_user()
        self._daemon = await asyncio.to_thread(Daemon, self._options.docker_host)
        environment = kwargs.get("env") or os.environ
        self._directory = os.path.realpath(kwargs.get("cwd") or os.getcwd())
        self._notebook = environment.get(NOTEBOOK_VARIABLE, "")
        self._image = await asyncio.to_thread(self._prepare)
        if self._runtime is None:
            self._runtime = self._make_runtime()
        manager: Any = self.parent
        if manager is not None:
            self._address(manager)
        return await super().pre_launch(**kwargs)

    def _check_user(self) -> None:
        uid = int(self._options.user.split(":")[0])
        if os.getuid() not in (0, uid):
            raise ContainerError(
                f"user is {self._options.user}, and the server runs as {os.getuid()}: files would "
                "belong to somebody else. Nothing was started; leave the option out."
            )

    def _prepare(self) -> str:
        """Look at the image, clear away what killed servers left, find this notebook's session."""
        assert self._daemon is not None
        image, there = fitting(self._daemon, self._options)
        if self._options.isolation in ("snapshots", "commit"):
            packages = there.directories if self._options.isolation == "snapshots" else ()
            kept = [*self._settings.get("workspace", ()), *packages, f"{INSIDE}/home"]
            self._settings["workspace"] = kept
            left_out = [*self._settings.get("workspace_exclude", ()), *_HISTORY]
            self._settings["workspace_exclude"] = left_out
        self._arguments = settings_arguments(self._settings, self.kernel_spec.display_name)
        orphans.sweep(self._daemon, _runtimes(), self._options.orphan_hours)
        commits.sweep(self._daemon)
        if self._runtime is None and not self._container:
            self._found = orphans.find(self._daemon, self._identity(), image)
            if self._found is not None:
                self._runtime = Path(self._found.labels["runtime"])
        return image

    def _identity(self) -> dict[str, str]:
        """What a container must have been made for to be this notebook's."""
        options = blake2b(repr((self._options, self._arguments)).encode(), digest_size=8)
        return {
            "notebook": self._notebook,
            "directory": self._directory,
            "options": options.hexdigest(),
        }

    def _make_runtime(self) -> Path:
        """The directory that host and container share: sockets and the connection file."""
        parent = _runtimes()
        private_directory(parent)
        path = Path(tempfile.mkdtemp(prefix="timetravel-c-", dir=parent))
        if len(os.fsencode(path)) + len("/s-5") > _LONGEST_SOCKET:
            path.rmdir()
            path = Path(tempfile.mkdtemp(prefix=f"timetravel-c-{os.getuid()}-", dir="/tmp"))
        orphans.own(path)
        orphans.look_after(path)
        return path

    def _address(self, manager: Any) -> None:
        assert self._runtime is not None
        if self._found is not None:
            info = json.loads((self._runtime / "connection.json").read_text("utf-8"))
            manager.load_connection_info(info)
            return
        manager.transport = "ipc"
        manager.ip = str(self._runtime / "s")
        for number, name in enumerate(_PORTS, 1):
            setattr(manager, name, number)

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Start the container and wait until its channels are there. Raises ContainerError."""
        assert self._daemon is not None
        assert self._runtime is not None
        try:
            found, self._found = self._found, None
            self._container = await asyncio.to_thread(self._begin, found)
            self._ended = self._watch()
            await self._started()
        except BaseException:
            await self.cleanup()
            raise
        return self.connection_info

    def _begin(self, found: Found | None) -> str:
        """The id of the container that runs: one that was found, or a new one."""
        assert self._daemon is not None
        assert self._runtime is not None
        if found is None:
            for old in self._runtime.glob("s-*"):
                old.unlink()
            for left in self._runtime.glob("timetravel-*"):  # of a container that was killed
                shutil.rmtree(left, ignore_errors=True)
            inner = self._runtime / "connection.json"
            manager: Any = self.parent
            shutil.copyfile(manager.connection_file, inner)
            inner.chmod(0o600)
        state, home, keys = self._make_state(self._runtime / "connection.json")
        self._binds = [
            f"{self._directory}:{self._directory}",
            f"{self._runtime}:{self._runtime}",
            f"{state / KEPT}:{INSIDE}/{KEPT}",
            f"{home}:{INSIDE}/home",
            f"{keys}:{INSIDE}/keys",
            *self._options.mounts,
        ]
        if self._options.isolation == "commit":
            self._commits = commits.Commits(
                self._daemon,
                state=state,
                notebook=self._notebook,
                apart=str(self._runtime),
                base=self._image,
                store=state / STORE,
                uid=int(self._options.user.split(":")[0]),
                create=self._create,
                took=self._take,
            )
            self._commits.serve(self._runtime / commits.SOCKET)
        if found is not None:
            if self._commits is not None:
                self._commits.take_up(found.id, found.image)
            return found.id
        made_of = {"name": self._options.image, "id": self._image}
        (state / BASE_FILE).write_text(json.dumps(made_of), "utf-8")
        made = self._commits.start() if self._commits is not None else self._create(self._image)
        try:
            self._daemon.start(made)
        except ContainerError:
            self._daemon.remove(made)
            raise
        return made

    def _take(self, container: str) -> None:
        self._container = container

    def _create(self, image: str) -> str:
        """Make a container of an image, not started, and return its id. Raises ContainerError."""
        assert self._daemon is not None
        assert self._runtime is not None
        environment = {
            "HOME": f"{INSIDE}/home",
            "JUPYTER_RUNTIME_DIR": str(self._runtime),  # which is hidden from cells
            **self.kernel_spec.env,
            **self._options.environment,
            "JUPYTER_TIMETRAVEL_STORE": f"{INSIDE}/{STORE}",
            "JUPYTER_TIMETRAVEL_KEYS": f"{INSIDE}/keys",
        }
        if self._notebook:
            environment[NOTEBOOK_VARIABLE] = self._notebook
        if self._options.isolation == "commit":
            environment[commits.VARIABLE] = str(self._runtime / commits.SOCKET)
            # a commit bears what the container had that it was made of, and Docker takes none away
            old = self._daemon.variables(image) - self._daemon.variables(self._image)
            old -= {*environment, commits.UNSET}
            environment[commits.UNSET] = ",".join(sorted(old))
        labels = {
            **self._identity(),
            "runtime": str(self._runtime),
            "server": this_process(),
            "kernel": self.kernel_id,
            "base": self._image,
        }
        inner = self._runtime / "connection.json"
        command = [self._options.python, "-m", "kernel_runtime", "-f", str(inner)]
        return self._daemon.create(
            image,
            [*command, *self._arguments],
            self._options,
            binds=self._binds,
            labels=labels,
            environment=environment,
            directory=self._directory,
        )

    def _make_state(self, inner: Path) -> tuple[Path, Path, Path]:
        """The directory of the image's sessions, and those of the home and the keys."""
        assert self._runtime is not None
        uid, gid = map(int, self._options.user.split(":"))
        state = state_directory(self._options.image)
        if uid == os.getuid():
            home = self._home(state)
            for path in (state / KEPT, home, key_directory()):
                private_directory(path)
            return state, home, key_directory()
        # root starts it for somebody else, with keys of his own
        state = state.with_name(f"{state.name}-{uid}")
        home = self._home(state)
        for path in (state / KEPT, home, state / "keys"):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.chown(path, uid, gid)
        os.chown(inner, uid, gid)
        os.chown(self._runtime, uid, gid)
        return state, home, state / "keys"

    def _home(self, state: Path) -> Path:
        """One for all kernels, each with layers of its own above it; one for each notebook where it
        is restored in place, so that none takes back what another has written."""
        assert self._runtime is not None
        if self._options.isolation not in ("snapshots", "commit"):
            return state / "home"
        if not self._notebook:
            return self._runtime / "home"  # ends with the kernel
        mark = blake2b(self._notebook.encode(), digest_size=8).hexdigest()
        return state / "homes" / mark

    async def _started(self) -> None:
        """Wait for the sockets. Raises ContainerError with what the container has said."""
        assert self._daemon is not None
        assert self._runtime is not None
        loop = asyncio.get_running_loop()
        until = loop.time() + _START_S
        wanted = {f"s-{number}" for number in range(1, len(_PORTS) + 1)}
        while not wanted <= {path.name for path in self._runtime.iterdir()}:
            status = await self.poll()
            if status is not None or loop.time() > until:
                said = await asyncio.to_thread(self._daemon.last_lines, self._container)
                what = f"ended at once, with status {status}" if status is not None else "is silent"
                raise ContainerError(
                    f"The kernel in a container of {self._options.image!r} {what}. It was removed; "
                    f"its last words: {said or 'none'}"
                )
            await asyncio.sleep(0.02)

    # --- watching --------------------------------------------------------------------------------

    def _watch(self) -> Future[int]:
        """Wait for the container's end in a thread that nothing needs to join."""
        ended: Future[int] = Future()
        daemon, made, log = self._daemon, self._commits, self.log
        assert daemon is not None

        def wait() -> None:
            container = self._container
            while True:
                try:
                    status = daemon.wait(container)
                    if status and (said := daemon.last_lines(container)):
                        log.error("A kernel's container ended with status %s: %s", status, said)
                    following = made.following(container) if made is not None else None
                    if following is not None:
                        container = following
                        continue
                    ended.set_result(status)
                    return
                except ContainerError:  # the daemon is being restarted: the container may live on
                    Event().wait(_RETRY_S)

        Thread(target=wait, name="container", daemon=True).start()
        return ended

    @property
    def has_process(self) -> bool:
        return self._ended is not None

    async def poll(self) -> int | None:
        """None while the container runs, else its exit status."""
        if self._ended is None:
            return 0
        if not self._ended.done():
            if self._runtime is not None:
                orphans.look_after(self._runtime)
            return None
        return self._ended.result()

    async def wait(self) -> int | None:
        """Wait for the container's end."""
        if self._ended is None:
            return 0
        status = await asyncio.wrap_future(self._ended)
        self._ended = None
        return status

    async def send_signal(self, signum: int) -> None:
        """Send a signal to the supervisor; an interrupt comes as a message."""
        if self._ended is not None and self._daemon is not None and signum:
            await asyncio.to_thread(self._daemon.signal, self._container, int(signum))

    async def shutdown_requested(self, restart: bool = False) -> None:
        """The kernel is asked to end: no other container takes its place."""
        if self._commits is not None:
            await asyncio.to_thread(self._commits.stand_down)

    async def kill(self, restart: bool = False) -> None:
        """End everything in the container at once."""
        await self.shutdown_requested(restart)
        await self.send_signal(signal.SIGKILL)

    async def terminate(self, restart: bool = False) -> None:
        """Ask the supervisor to end."""
        await self.shutdown_requested(restart)
        await self.send_signal(signal.SIGTERM)

    async def cleanup(self, restart: bool = False) -> None:
        """Remove the container; for good, its runtime directory too. What it stored stays.

        If the daemon went away, the next start of such a kernel removes it; raises ContainerError
        where this is a restart, and then all is as it was.
        """
        removed = True
        if self._commits is not None:
            await asyncio.to_thread(self._commits.close)
        if self._daemon is not None and self._container:
            removed = await asyncio.to_thread(self._daemon.remove, self._container)
        if not removed and restart:
            raise ContainerError(
                "Docker's daemon went away, so the kernel was not restarted; its container is as "
                "it was. Start the daemon, then restart the kernel once more."
            )
        if not removed and self._runtime is not None:
            orphans.give_up(self._runtime)
        if self._commits is not None and not restart and not self._notebook:
            with contextlib.suppress(ContainerError):  # the next start's sweep
                await asyncio.to_thread(self._commits.forget)
        self._container = ""
        self._ended = None
        self._commits = None
        if not restart:
            if self._runtime is not None:
                if removed:
                    shutil.rmtree(self._runtime, ignore_errors=True)
                self._runtime = None
            if self._daemon is not None:
                self._daemon.close()
                self._daemon = None


def _runtimes() -> Path:
    return Path(jupyter_runtime_dir())
