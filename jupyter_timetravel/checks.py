"""What time travel asks of a machine: a table of named checks, each tried for real.

A check returns a Finding and never raises. Its state is one of

- ``fine``     nothing is missing;
- ``limited``  it works with less: the finding says with what;
- ``missing``  time travel does not work here;
- ``skipped``  it cannot be tried, because something that it builds on is missing.

Called by jupyter_timetravel.doctor. The order of ``CHECKS`` is the order in which things build on
one another, so the first line that is not fine is the one to mend first.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from jupyter_client.provisioning.factory import KernelProvisionerFactory

from jupyter_timetravel import (
    checks_containers,
    checks_dmtcp,
    checks_environment,
    checks_images,
    checks_server,
    probes,
)
from jupyter_timetravel.checks_environment import mended
from jupyter_timetravel.findings import (
    FAULTY,
    FINE,
    LIMITED,
    MISSING,
    SKIPPED,
    Check,
    Finding,
    is_linux,
)
from jupyter_timetravel.install import KERNEL_NAME, PROVISIONER
from kernel_runtime.sandbox import refusals

OLDEST_KERNEL = (5, 11)  # of Linux: user namespaces with set_tid (5.9) and close_range (5.11)
ARCHITECTURES = ("x86_64", "aarch64")
FEW_WATCHES = 65_536
FEW_PROCESSES = 1_000
FICLONE = 0x4004_9409  # ioctl_ficlone(2)
NEW_IDS = "Threads come back under new ids; what remembers an id is listed on the checkpoint."


def read(path: str | Path) -> str | None:
    """The stripped text of a small file, or None where it cannot be read."""
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return None


def linux_version(release: str) -> tuple[int, int]:
    """``6.1.0-18-amd64`` is (6, 1); (0, 0) where no number is found."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def check_platform() -> Finding:
    machine, release = platform.machine(), platform.release()
    if not is_linux():
        return Finding(
            MISSING,
            f"{platform.system()} {release} on {machine}: frozen processes need Linux.",
            "Run the kernel on Linux: a virtual machine, WSL 2 on Windows, or a remote server.",
        )
    c_library = "glibc" if platform.libc_ver()[0] == "glibc" else "no glibc (musl?)"
    text = f"Linux {release} on {machine}, {c_library}, Python {platform.python_version()}"
    if linux_version(release) < OLDEST_KERNEL:
        oldest = ".".join(map(str, OLDEST_KERNEL))
        return Finding(MISSING, text, f"Use Linux {oldest} or later.")
    if machine not in ARCHITECTURES or c_library != "glibc":
        return Finding(
            LIMITED,
            f"{text}: only a process with a single thread can be frozen.",
            f"Use a Python for glibc on {' or '.join(ARCHITECTURES)}.",
        )
    return Finding(FINE, text)


def native_library() -> Path:
    """Where the wheel keeps the C library."""
    spec = importlib.util.find_spec("kernel_runtime")
    folders = spec.submodule_search_locations if spec else None
    return Path(*(folders or ["."])[:1], "native", "libtimetravel.so")


def check_library() -> Finding:
    path = native_library()
    if not is_linux():
        return Finding(SKIPPED, "for Linux only")
    if not path.exists():
        return Finding(
            MISSING,
            f"{path} is not there: a wheel for another platform was installed.",
            "pip install --force-reinstall --no-binary jupyter_timetravel jupyter_timetravel",
        )
    try:
        ctypes.CDLL(str(path)).tt_freeze  # noqa: B018
    except (OSError, AttributeError) as error:
        return Finding(
            MISSING,
            f"{path} cannot be loaded: {error}",
            "pip install --force-reinstall --no-binary jupyter_timetravel jupyter_timetravel",
        )
    return Finding(FINE, str(path))


def check_user_namespace() -> Finding:
    if not is_linux():
        return Finding(SKIPPED, "for Linux only")
    if os.geteuid() == 0:
        return Finding(FINE, "not needed: running as root")
    outcome = probes.run("user_namespace")
    if outcome.ok:
        return Finding(FINE, str(outcome))
    step = "unshare" if outcome.step.startswith("unshare") else "uid_map"
    why = refusals.explain(step, outcome.error)
    return Finding(LIMITED, f"{why.cause}. {NEW_IDS}", mended(why.mend))


STEPS = {"mount(private)": "mount", "mount(proc)": "mount /proc", "uid_map": "uid_map"}
"""Of probes, as kernel_runtime.sandbox.refusals calls them."""


def check_pid_namespace() -> Finding:
    if not is_linux():
        return Finding(SKIPPED, "for Linux only")
    outcome = probes.run("sandbox")
    if outcome.ok:
        return Finding(FINE, str(outcome))
    why = refusals.explain(STEPS.get(outcome.step, "unshare"), outcome.error)
    text = f"{why.cause}. The kernel runs without a sandbox. {NEW_IDS}"
    return Finding(LIMITED, text, mended(why.mend))


def probe_check(name: str, without: str, mend: str) -> Callable[[], Finding]:
    """A check that runs a probe: fine, or limited with what that means."""

    def run() -> Finding:
        if not is_linux():
            return Finding(SKIPPED, "for Linux only")
        outcome = probes.run(name)
        if outcome.ok:
            return Finding(FINE, str(outcome))
        return Finding(LIMITED, f"{outcome}. {without}", mend)

    return run


def check_seccomp() -> Finding:
    status = read("/proc/self/status")
    if status is None:
        return Finding(SKIPPED, "for Linux only")
    found = re.search(r"^Seccomp:\s*(\d)", status, re.MULTILINE)
    if found is None or found[1] == "0":
        return Finding(FINE, "no filter")
    outcome = probes.run("clone3_allowed")
    if outcome.ok:
        return Finding(FINE, "a filter is on, and lets clone3 pass")
    return Finding(
        LIMITED,
        f"a filter refuses {outcome}. {NEW_IDS}",
        "docker run --security-opt seccomp=unconfined, or a profile that allows clone3",
    )


def check_huge_pages() -> Finding:
    setting = read("/sys/kernel/mm/transparent_hugepage/enabled")
    if setting is None:
        return Finding(SKIPPED, "this system has no transparent huge pages")
    chosen = setting.partition("[")[2].partition("]")[0]
    if chosen in ("always", "madvise"):
        return Finding(FINE, chosen)
    return Finding(
        LIMITED,
        f"{chosen}: a checkpoint of 1 GB takes about 18 ms instead of 1 ms.",
        "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
    )


def check_overcommit() -> Finding:
    mode = read("/proc/sys/vm/overcommit_memory")
    if mode is None:
        return Finding(SKIPPED, "for Linux only")
    if mode != "2":
        return Finding(FINE, f"vm.overcommit_memory = {mode}")
    return Finding(
        LIMITED,
        "vm.overcommit_memory = 2: each frozen process counts in full, although it shares its "
        "memory. Checkpoints of large sessions are refused.",
        "sudo sysctl -w vm.overcommit_memory=0",
    )


def process_limit() -> int | None:
    """How many processes the user may have here: the lowest of the limits, None for no limit."""
    import resource  # not on Windows

    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = [] if soft == resource.RLIM_INFINITY else [soft]
    # of a container, or of a systemd slice with cgroup v1; the root of a hierarchy has no such file
    for path in ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"):
        text = read(path)
        if text is not None and text.isdigit():
            limits.append(int(text))
    return min(limits, default=None)


def check_processes() -> Finding:
    if not is_linux():
        return Finding(SKIPPED, "for Linux only")
    limit = process_limit()
    if limit is None:
        return Finding(FINE, "no limit")
    if limit >= FEW_PROCESSES:
        return Finding(FINE, f"at most {limit}")
    return Finding(
        LIMITED,
        f"at most {limit}: each checkpoint of memory is a process; beyond that they are refused.",
        "Raise `ulimit -u`, or the pids limit of the container.",
    )


def nearest_folder(path: Path) -> Path:
    """The path itself, or the nearest folder above it that exists."""
    while not path.is_dir():
        path = path.parent
    return path


def can_clone(source: Path, target: Path) -> bool:
    """Whether the filesystem shares the blocks of two files (reflink)."""
    import fcntl  # not on Windows

    with source.open("rb") as old, target.open("wb") as new:
        try:
            fcntl.ioctl(new, FICLONE, old.fileno())
        except OSError:
            return False
    return True


def check_store() -> Finding:
    if not is_linux():
        return Finding(SKIPPED, "for Linux only")
    from kernel_runtime.store.paths import store_directory  # of no use on other systems

    wanted = store_directory()
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=nearest_folder(wanted)) as folder:
            source = Path(folder) / "a"
            source.write_bytes(b"x" * 65_536)
            linked = True
            try:
                os.link(source, Path(folder) / "b")
            except OSError:
                linked = False
            cloned = can_clone(source, Path(folder) / "c")
            free = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding(
            MISSING,
            f"{wanted} cannot be written: {error.strerror}",
            "Set JUPYTER_TIMETRAVEL_STORE to a folder of yours.",
        )
    text = f"{wanted}, {free / 1e9:.0f} GB free"
    if cloned:
        return Finding(FINE, f"{text}; changed files are reflinked")
    if linked:
        return Finding(FINE, f"{text}; no reflinks here: changed files are copied")
    return Finding(
        LIMITED,
        f"{text}; neither reflinks nor hard links: large files are not held at all.",
        "Set JUPYTER_TIMETRAVEL_STORE to a folder on the filesystem of your notebooks.",
    )


def check_inotify() -> Finding:
    if not is_linux():
        return Finding(SKIPPED, "for Linux only")
    outcome = probes.run("inotify")
    watches = int(read("/proc/sys/fs/inotify/max_user_watches") or 0)
    if not outcome.ok:
        return Finding(
            LIMITED,
            f"{outcome}. Changed files are found by looking at each one.",
            "sudo sysctl -w fs.inotify.max_user_instances=1024",
        )
    if watches < FEW_WATCHES:
        return Finding(
            LIMITED,
            f"{watches} watches: in larger folders changed files are found by looking at each one.",
            f"sudo sysctl -w fs.inotify.max_user_watches={FEW_WATCHES * 8}",
        )
    return Finding(FINE, f"{watches} watches")


_NEEDED = ("kernel_runtime", "ipykernel", "dill")
"""Packages without which a kernel does not start, or keeps no variables."""


def check_kernelspec() -> Finding:
    try:
        spec = KernelSpecManager().get_kernel_spec(KERNEL_NAME)
    except NoSuchKernel:
        return Finding(
            LIMITED,
            f"{KERNEL_NAME} is not found by this environment's Jupyter.",
            "jupyter timetravel install --sys-prefix",
        )
    interpreter = shutil.which(spec.argv[0])
    if interpreter is None or spec.argv[0] in ("python", "python3"):
        interpreter = sys.executable  # what jupyter_client puts in place of "python"
    lacking = _lacking(interpreter)
    if not lacking:
        return Finding(FINE, f"{KERNEL_NAME} in {spec.resource_dir}")
    return Finding(
        FAULTY if lacking == ["dill"] else MISSING,
        f"{KERNEL_NAME} in {spec.resource_dir} starts {interpreter}, which cannot import "
        f"{', '.join(lacking)}.",
        f"{interpreter} -m pip install jupyter_timetravel",
    )


def _lacking(interpreter: str) -> list[str]:
    """What of the packages that a kernel needs its interpreter does not have."""
    code = (
        "import importlib.util as u; "
        f"print(*[name for name in {_NEEDED} if u.find_spec(name) is None])"
    )
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            [interpreter, "-c", code],
            check=True,
            capture_output=True,
            timeout=30,
            cwd="/",
            text=True,
        )
        return done.stdout.split()
    return list(_NEEDED)


def check_encryption() -> Finding:
    if not is_linux():
        return Finding(SKIPPED, "for Linux only")
    from kernel_runtime.store import encryption
    from kernel_runtime.store.errors import StoreError
    from kernel_runtime.store.paths import store_directory

    directory = store_directory()
    if not encryption.is_encrypted(directory):
        return Finding(FINE, "Not encrypted: whoever can read the store can read the sessions.")
    try:
        encryption.cipher_of(directory)
    except StoreError as error:
        return Finding(LIMITED, str(error), f"Set {encryption.VARIABLE} to the key's file.")
    return Finding(
        FINE, "Variables, files and cells are sealed; layers of the environment are not."
    )


def check_provisioner() -> Finding:
    names = KernelProvisionerFactory.instance().get_provisioner_entries()
    if PROVISIONER in names:
        return Finding(FINE, names[PROVISIONER])
    return Finding(
        LIMITED,
        f"{PROVISIONER} is not registered: kernelspecs that name it are hidden here.",
        "pip install --force-reinstall jupyter_timetravel",
    )


CHECKS: tuple[Check, ...] = (
    Check("platform", "frozen processes", check_platform),
    Check("library", "freezing and waking threads", check_library),
    Check("user namespaces", "a sandbox without root", check_user_namespace),
    Check("pid namespace", "old ids; nothing outlives the kernel", check_pid_namespace),
    Check(
        "set_tid",
        "old process and thread ids",
        probe_check("set_tid", NEW_IDS, "Mend the lines above; it needs Linux 5.9 or later."),
    ),
    Check("seccomp", "threads with chosen ids", check_seccomp),
    Check(
        "kcmp",
        "descriptors that share an offset",
        probe_check(
            "kcmp",
            "Duplicated descriptors come back as separate ones.",
            "A kernel with CONFIG_KCMP, and a seccomp profile that allows kcmp(2).",
        ),
    ),
    Check(
        "sock_diag",
        "socket pairs within the process",
        probe_check(
            "unix_diag",
            "Socket pairs come back closed.",
            "sudo modprobe unix_diag",
        ),
    ),
    Check("huge pages", "fast checkpoints of large sessions", check_huge_pages),
    Check("overcommit", "checkpoints of large sessions", check_overcommit),
    Check("processes", "many checkpoints", check_processes),
    Check("store", "captures of files", check_store),
    Check("encryption", "what a stolen disk tells", check_encryption),
    *checks_images.CHECKS,
    Check("inotify", "large workspaces", check_inotify),
    *checks_environment.CHECKS,
    *checks_dmtcp.CHECKS,
    Check("kernelspec", "the kernel in the picker", check_kernelspec),
    Check("provisioner", "time travel for any kernelspec", check_provisioner),
    *checks_containers.CHECKS,
    *checks_server.CHECKS,
)
