"""What the user can set, as traitlets; ``%timetravel config`` changes it in a running kernel."""

from __future__ import annotations

from typing import Any

from traitlets import Bool, Enum, Float, Integer, List, Unicode
from traitlets.config import Configurable

from kernel_runtime.errors import BadRequest

AUTO = "auto"
"""For a size: what fits the machine."""


class _Size(Integer[Any, Any]):
    """Bytes, or ``auto``."""

    default_value = AUTO  # type: ignore[assignment]
    info_text = "an int, or auto,"

    def validate(self, obj: Any, value: Any) -> Any:
        return value if value == AUTO else super().validate(obj, value)

    def from_string(self, s: str) -> Any:
        return s if s == AUTO else super().from_string(s)


class Supervisor(Configurable):
    """Options of the time-travel kernel (``--Supervisor.auto=changed`` or a config file)."""

    auto = Enum(
        ("cell", "changed", "off"),
        "cell",
        help="Make a checkpoint after each cell, after cells that may have changed something, "
        "or never.",
    ).tag(config=True, live=True)
    durability = Enum(
        ("every", "idle", "manual"),
        "every",
        help="Write the variables of checkpoints to the disk, in the background: of every one "
        "(those between are skipped while one is written), of the newest when no cell runs, or "
        "of manual and pinned ones only; without a notebook file always the last.",
    ).tag(config=True, live=True)
    durability_interval = Float(
        5.0, min=0.0, help="Seconds between two automatic ones that are written."
    ).tag(config=True, live=True)
    durability_at_end = Float(
        3.0,
        min=0.0,
        help="Seconds that the end of the kernel waits for the last cell's checkpoint, and again "
        "for what is being written. A server kills a kernel that takes longer than five "
        "(KernelManager.shutdown_wait_time).",
    ).tag(config=True)
    images = Bool(
        True,
        help="Write the whole process too, with its threads and open files, for the next kernel on "
        "this machine.",
    ).tag(config=True, live=True)
    images_by = Enum(
        ("image", "criu", "both"),
        "image",
        help="What writes it: time travel itself, CRIU (needs root and CRIU 4; outlives an update "
        "of the system), or one after the other.",
    ).tag(config=True, live=True)
    children = Enum(
        ("ignore", "capture"),
        "ignore",
        help="Child processes. capture: where a checkpoint is written to the disk, CRIU dumps the "
        "executor with all processes below it, which stand still meanwhile; a restore brings them "
        "back (needs root, CRIU 4, process_engine fork).",
    ).tag(config=True, live=True)
    criu = Unicode("criu", help="The program CRIU: a name or a path.").tag(config=True)
    images_last = Integer(
        10,
        min=1,
        help="Automatic checkpoints of which the image is kept; variables stay longer. Of large "
        "ones fewer: they may take a quarter of budget_bytes, but for the newest two.",
    ).tag(config=True, live=True)
    verify_every = Float(
        0.0,
        min=0.0,
        help="Hours after which the newest state on the disk is loaded for real again, in a "
        "scratch process, while no cell runs. 0: when it is asked for only.",
    ).tag(config=True, live=True)
    resume = Enum(
        ("ask", "auto"),
        "ask",
        help="When a notebook with a timeline gets a new kernel: say what can be resumed, or "
        "resume the newest state that was written.",
    ).tag(config=True)
    visit = Bool(
        False, help="Look at a timeline: no first checkpoint, nothing is resumed or offered."
    ).tag(config=True)
    on_death = Enum(
        ("restore", "restart"),
        "restore",
        help="When the executor dies: back to the newest checkpoint, or a fresh process.",
    ).tag(config=True, live=True)
    files_on_death = Enum(
        ("restore", "keep"),
        "restore",
        help="Whether the workspace goes back too when the executor dies in a cell.",
    ).tag(config=True, live=True)
    sandbox = Unicode(
        "auto",
        help="auto: namespaces where they are allowed, else none. namespaces, or the name of "
        "another installed sandbox: refuse to start without.",
    ).tag(config=True)
    process_engine = Unicode(
        "fork",
        help="What freezes processes (an entry point's name). dmtcp: the session runs under DMTCP, "
        "child processes come back too, each checkpoint is a whole image and takes a pause.",
    ).tag(config=True)
    environment = Enum(
        ("auto", "required", "off"),
        "auto",
        help="Roll back files outside of the workspace too (site-packages, the home directory, "
        "/etc). auto: where this machine can. required: refuse to start where it cannot.",
    ).tag(config=True)
    workspace = List(
        Unicode(),
        help="Directories captured beside the one that the kernel starts in. The word isolated: "
        "what cells write to the workspace stays inside, until `%timetravel apply`.",
    ).tag(config=True)
    host_paths = List(
        Unicode(), help="Directories that are the host's own inside too, beside /tmp and /run."
    ).tag(config=True)
    sockets = Enum(
        ("auto", "host", "none"),
        "auto",
        help="Sockets of agents and of the desktop: the host's, or none; auto: none where the "
        "workspace is isolated.",
    ).tag(config=True)
    docker_socket = Bool(
        False, help="Let cells reach Docker, whose users are root on the host."
    ).tag(config=True)
    root_capabilities = Enum(
        ("limited", "all"),
        "limited",
        help="What root's cells may do. limited: no mounts, no look into the sandbox's init.",
    ).tag(config=True)
    workspace_exclude = List(
        Unicode(), help="Patterns of paths that are neither captured nor touched by a restore."
    ).tag(config=True)
    files = Bool(True, help="Capture and restore the workspace's files.").tag(config=True)
    files_most = Integer(
        200_000, help="Files that a workspace may hold to be captured at all."
    ).tag(config=True)
    bytes_most = Integer(10 << 30, help="Bytes, likewise.").tag(config=True)
    store = Unicode("", help="Directory of the store; empty: the user's data directory.").tag(
        config=True
    )
    encryption = Unicode(
        "",
        help="File that holds the key, or the passphrase, of an encrypted store (empty: "
        "$JUPYTER_TIMETRAVEL_ENCRYPTION). A store that is not there yet is made an encrypted one; "
        "`jupyter timetravel encrypt` turns one over that is.",
    ).tag(config=True)
    kernel_name = Unicode(
        "python3-timetravel", help="A notebook has one timeline for each kernel name."
    ).tag(config=True)
    memory_fraction = Float(
        0.25,
        min=0.0,
        max=1.0,
        help="Part of the memory (the cgroup's or the machine's) that checkpoints may hold.",
    ).tag(config=True, live=True)
    memory_reserve = Float(
        0.05,
        min=0.0,
        max=1.0,
        help="Part of the memory that is to stay free, whoever took the rest: with less the oldest "
        "checkpoints give theirs back, down to an eighth of what they may hold.",
    ).tag(config=True, live=True)
    keep_last = Integer(
        1000,
        min=0,
        help="Automatic checkpoints that stay: the newest so many (0: all of them). What is "
        "labelled, pinned or made by hand stays, whatever its age.",
    ).tag(config=True, live=True)
    keep_hourly = Integer(
        48, min=0, help="And the last of each of the newest so many hours that have one."
    ).tag(config=True, live=True)
    keep_daily = Integer(
        60, min=0, help="And the last of each of the newest so many days that have one."
    ).tag(config=True, live=True)
    budget_bytes = _Size(
        min=0,
        help="Bytes of the disk that the checkpoints of this notebook may take (0: any number; "
        "auto: a quarter of what is free without them when the kernel starts, at least 256 MiB). "
        "Over it the oldest automatic ones go, and a cell says so; never where the session is, the "
        "last safety checkpoint, or what was labelled, pinned or made by hand.",
    ).tag(config=True, live=True)
    show_timeout = Float(
        30.0,
        min=0.1,
        max=600.0,
        help="Seconds that a copy of a process, at low priority, may take for variables.",
    ).tag(config=True, live=True)
    documents_most = Integer(
        256 << 20,
        min=0,
        help="Bytes of notebooks as they were, cells and outputs, that a timeline keeps; the "
        "oldest go first.",
    ).tag(config=True, live=True)
    max_processes = Integer(2000, min=2, help="Most frozen processes that are kept.").tag(
        config=True, live=True
    )
    stop_timeout = Float(
        2.0, min=0.01, max=600.0, help="Seconds within which all threads must stop."
    ).tag(config=True, live=True)
    aside_limit = Integer(
        1 << 30,
        min=0,
        max=1 << 48,
        help="Bytes of shared memory and deleted files that one checkpoint copies.",
    ).tag(config=True, live=True)
    differences = Integer(
        16,
        min=0,
        max=1 << 10,
        help="MiB: where cells have written no more since the last frozen process, a checkpoint "
        "notes that in place of making another one, and the next cell pays no copy-on-write. A "
        "process is made of it when it is needed. 0: each checkpoint is a process at once.",
    ).tag(config=True, live=True)
    unshare = Bool(
        True,
        help="Let idle frozen processes copy what the next cell is likely to write, so that the "
        "cell does not pay for it.",
    ).tag(config=True, live=True)
    twins = Bool(
        True,
        help="Keep a clone of the likeliest targets ready: waking then costs the same at any size.",
    ).tag(config=True, live=True)

    @property
    def is_isolated(self) -> bool:
        """Whether the workspace is layered like the environment."""
        return "isolated" in self.workspace

    @property
    def more_workspace(self) -> list[str]:
        """Further directories of the workspace."""
        return [path for path in self.workspace if path != "isolated"]

    def live_options(self) -> dict[str, Any]:
        """The options that can be changed in a running kernel, with their values."""
        return {name: getattr(self, name) for name in self.trait_names(live=True)}

    def change(self, settings: dict[str, Any]) -> None:
        """Set options. Raises BadRequest naming those that can be set; then nothing is changed."""
        traits = self.traits(live=True)
        checked = {}
        for name, value in settings.items():
            if name not in traits:
                raise BadRequest(
                    f"There is no option {name!r} that can be changed now. "
                    f"There are: {', '.join(sorted(traits))}."
                )
            try:
                checked[name] = traits[name]._validate(self, _typed(value, traits[name]))
            except Exception:
                least = getattr(traits[name], "min", None)
                is_bound = least is not None and least > float("-inf")
                beyond = f" of {least:g} or more" if is_bound else ""
                raise BadRequest(
                    f"{name} cannot be {value!r}. It takes {traits[name].info()}{beyond}. "
                    "Nothing was changed."
                ) from None
        for name, value in checked.items():
            setattr(self, name, value)


def _typed(value: Any, trait: Any) -> Any:
    """Values come as text from a magic, as JSON values from a client."""
    if isinstance(value, str) and not isinstance(trait, (Enum, Unicode)):
        return trait.from_string(value)
    if isinstance(value, bool) and isinstance(trait, (Integer, Float)):
        raise ValueError("true is no number")  # for Python it is 1
    return value
