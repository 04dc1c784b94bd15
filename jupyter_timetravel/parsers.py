"""What may stand behind each magic."""

from __future__ import annotations

from jupyter_timetravel.arguments import LineParser
from jupyter_timetravel.going_back import add_replay_options, add_restore_options


def checkpoint_parser() -> LineParser:
    """Of ``%checkpoint``."""
    parser = LineParser(
        "checkpoint", "Keep the present state of the session, to come back to with %restore."
    )
    parser.add_argument("comment", nargs="*", help="What this state is; quotes are optional.")
    parser.add_argument("--label", metavar="L", help="A name to restore it by.")
    parser.add_argument(
        "--pin",
        nargs="?",
        const=True,
        metavar="N",
        help="Never evict or delete it. With a number: pin that one, and make none.",
    )
    parser.add_argument("--unpin", metavar="N", help="Take the pin from a checkpoint away.")
    parser.add_argument("--delete", nargs="+", metavar="N", help="Delete checkpoints.")
    return parser


def restore_parser() -> LineParser:
    """Of ``%restore``."""
    parser = LineParser(
        "restore",
        "Bring the session back to a checkpoint: memory, threads and files. A safety checkpoint of "
        "the present state is made first. The lines of the cell that follow do not run.",
    )
    parser.add_argument(
        "checkpoint",
        nargs="*",
        help="Number, -1 (the newest; default), -2 (the one before), label, comment or id.",
    )
    add_restore_options(parser)
    return parser


def replay_parser() -> LineParser:
    """Of ``%replay``."""
    parser = LineParser(
        "replay",
        "Go back to a checkpoint and run the cells that had run after it once more, in order. The "
        "lines of the cell that follow do not run.",
    )
    parser.add_argument("checkpoint", help="Where to begin: number, label, or id.")
    add_replay_options(parser)
    return parser


def timeline_parser() -> LineParser:
    """Of ``%timeline``."""
    parser = LineParser(
        "timeline", "Show the tree of checkpoints, one of them, or what differs between two."
    )
    parser.add_argument(
        "what",
        nargs="*",
        metavar="N | diff A [B]",
        help="A checkpoint: what it holds. diff: what happened from A to B, or to now.",
    )
    parser.add_argument("--all", action="store_true", help="However many there are.")
    parser.add_argument("--manual", action="store_true", help="Only those that were asked for.")
    return parser


def timetravel_parser() -> LineParser:
    """Of ``%timetravel``."""
    parser = LineParser("timetravel", "Look at time travel itself, and set it up.")
    parser.add_argument(
        "command",
        nargs="*",
        metavar="status | list | config [name=value] | label N [text] | resume [--reseed] "
        "| verify [N] | files | apply [PATH …] | reset | export FILE",
        help="status (default): where the session stands. list: one line for each checkpoint. "
        "config: show or change options. label: name a checkpoint; without text take its name "
        "away. resume: go on with the session of the kernel before this one. verify: load what is "
        "on the disk in a scratch process, and compare. files: what was written outside of the "
        "workspace, where this machine does not see it. apply: copy files and directories of that "
        "to this machine. reset: throw all of it away; a safety checkpoint is made first. export: "
        "write the cells that lead from a fresh kernel to here as a notebook.",
    )
    parser.add_argument("--all", action="store_true", help="files: name each file.")
    parser.add_argument(
        "--dry-run", action="store_true", help="apply: say what would be copied, copy nothing."
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="apply: replace what was changed on this machine too. export: replace the file.",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="export: run it in a stock kernel, with all that its cells do, and compare.",
    )
    parser.add_argument(
        "--process", action="store_true", help="reset: begin a fresh process as well."
    )
    parser.add_argument(
        "--reseed", action="store_true", help="With resume: as with %%restore --reseed."
    )
    return parser


def dryrun_parser() -> LineParser:
    """Of ``%%dryrun``."""
    parser = LineParser(
        "%dryrun",
        "Run the cell, show what it does to variables, files and packages, and take it all back. "
        "It must be the cell's first line.",
    )
    parser.add_argument(
        "comment", nargs="*", help="Of the checkpoint that is made before the cell runs."
    )
    return parser


def transaction_parser() -> LineParser:
    """Of ``%%transaction``."""
    parser = LineParser(
        "%transaction",
        "Run the cell, and take back all that it did if it ends with an error. It must be the "
        "cell's first line.",
    )
    parser.add_argument(
        "comment", nargs="*", help="Of the checkpoint that is made before the cell runs."
    )
    return parser
