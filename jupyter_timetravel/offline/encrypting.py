"""``jupyter timetravel encrypt``: seal what a store holds, with a key that only the user has.

What is written from then on is sealed. The list of checkpoints is sealed at once; content from
before stays as it was, and readable, until ``--rewrite``. What cannot be sealed is named.
"""

from __future__ import annotations

import argparse
import getpass
import os
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from jupyter_timetravel.command_line.output import tell
from jupyter_timetravel.offline import stored
from kernel_runtime.engines.charges import room_of
from kernel_runtime.store import encryption
from kernel_runtime.store.blobs import BlobStore
from kernel_runtime.store.database import Store, open_store
from kernel_runtime.store.database_file import FILE_NAME
from kernel_runtime.store.documents import DocumentStore
from kernel_runtime.store.encryption import EncryptionRefused, Kdf, Secret
from kernel_runtime.store.images import ImageStore
from kernel_runtime.store.namespaces import NamespaceStore
from kernel_runtime.timeline.text import plural, size_text

SUMMARY = "seal what the store holds with a key, or change that key"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--key-file", metavar="FILE", help="a file of 32 random bytes or more, 0600")
    kinds.add_argument("--passphrase", action="store_true", help="ask for a passphrase")
    kinds.add_argument("--passphrase-file", metavar="FILE", help="a file that holds one, 0600")
    parser.add_argument(
        "--rewrite", action="store_true", help="seal the content from before as well"
    )
    parser.add_argument(
        "--change", action="store_true", help="take another key or passphrase; nothing is rewritten"
    )
    stored.add_store(parser)


def run(args: argparse.Namespace) -> int:
    """Do it, and say what is not sealed. Raises StoreError: what failed left all readable."""
    directory = stored.directory_of(args)
    if args.change:
        return _change(directory, args)
    if encryption.is_encrypted(directory):
        if args.key_file or args.passphrase or args.passphrase_file:
            raise EncryptionRefused(
                f"The store {directory} is encrypted already. Nothing was changed; --change takes "
                "another key."
            )
        stored.unlock(directory)
    else:
        kdf, secret = _new_secret(directory, args)
        if (directory / FILE_NAME).exists():
            with closing(open_store(directory)) as store:
                _refuse_while_used(store)
        encryption.turn_on(directory, secret, kdf)
    lines = [f"the store {directory} is encrypted: what is written from now on is sealed"]
    if (directory / FILE_NAME).exists():
        with closing(open_store(directory)) as store:
            if args.rewrite:
                _refuse_while_used(store)
            if not any(info.in_use for info in store.timelines()):
                lines += _seal(store, rewrite=args.rewrite)
        lines += told(directory)
    if not os.environ.get(encryption.VARIABLE):
        lines += [f"kernels find the key by {encryption.VARIABLE} or Supervisor.encryption"]
    tell(args, "\n".join(lines))
    return 0


def _seal(store: Store, *, rewrite: bool) -> list[str]:
    """Returns what was sealed, in words."""
    lines = []
    if count := store.seal_rows():
        lines.append(f"sealed: {plural(count, 'value')} in the list of checkpoints")
    for index in (store.directory / "journal").glob("index-*.json"):
        index.unlink()  # a cache, which the next kernel makes again
    if not rewrite:
        return lines
    for what, parts in (
        ("files", BlobStore(store.directory).seal_plain()),
        ("variables", NamespaceStore(store.directory).seal_plain()),
        ("notebooks as they were", DocumentStore(store.directory).seal_plain()),
    ):
        sizes = [size for _, size in parts]
        lines.append(f"sealed: {plural(len(sizes), 'piece')} of {what}, {size_text(sum(sizes))}")
    for backup in _backups(store.directory):
        backup.unlink()
        lines.append(f"deleted: {backup.name}, the list of checkpoints of an earlier version")
    return lines


def _refuse_while_used(store: Store) -> None:
    used = [info for info in store.timelines() if info.in_use]
    if used:
        names = ", ".join(stored.name_of(info) for info in used[:3])
        raise EncryptionRefused(
            f"A kernel runs on {names}. Nothing was done; shut it down first. A kernel that had "
            "the store open before it was encrypted could not write into it any more."
        )


def told(directory: Path) -> list[str]:
    """What lies in an encrypted store and is not sealed, with its room on the disk."""
    stores = BlobStore(directory), NamespaceStore(directory), DocumentStore(directory)
    plain = sum(one.plain_bytes() for one in stores)
    rows = [
        (plain, "content from before it was encrypted: encrypt --rewrite seals it"),
        (_room(_backups(directory)), "a list of checkpoints of an earlier version, likewise"),
        (_room([directory / "held"]), "whole files too large to copy, from before: they are links"),
        (
            _room(
                [*ImageStore(directory).plain(), directory / "criu", directory / "criu-libraries"]
            ),
            "processes written before: they go with their checkpoints",
        ),
        (
            _room([directory / "environments"]),
            "layers of the environment, which the system mounts: never sealed. Set "
            "Supervisor.environment to off, or put the store on an encrypted disk",
        ),
    ]
    found = [f"  {size_text(size):>9}  {text}" for size, text in rows if size]
    return ["not sealed:", *found] if found else ["nothing in it is left that could be sealed"]


def _room(paths: Iterable[Path]) -> int:
    """Bytes on the disk of files; directories alone are none."""
    return room_of(
        file for path in paths for file in ([path] if path.is_file() else path.rglob("*"))
        if file.is_symlink() or not file.is_dir()
    )  # fmt: skip


def _backups(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"{FILE_NAME}.v*-backup"))


def _change(directory: Path, args: argparse.Namespace) -> int:
    if not encryption.is_encrypted(directory):
        raise EncryptionRefused(f"The store {directory} is not encrypted. Nothing was changed.")
    old = _old_secret(directory)
    kdf, new = _new_secret(directory, args, named=False)
    encryption.change(directory, old, new, kdf)
    tell(
        args,
        f"the key of {directory} is changed; nothing was rewritten. Whoever has a copy of "
        f"{encryption.FILE_NAME} from before, and the old key, can still open the store.",
    )
    return 0


def _old_secret(directory: Path) -> Secret:
    kdf, file = encryption.kdf_of(directory), encryption.key_file(directory)
    if file is None and kdf == "scrypt":
        secret = Secret(stored.ask("Present passphrase: ", directory))
    else:
        stored.unlock(directory)  # or say that no key was given
        assert file is not None
        secret = encryption.secret_in(file, directory, kdf)
    return secret


def _new_secret(
    directory: Path, args: argparse.Namespace, *, named: bool = True
) -> tuple[Kdf, Secret]:
    """named: the file that the environment names will do."""
    kdf: Kdf = "scrypt" if args.passphrase or args.passphrase_file else "hkdf-sha256"
    if args.passphrase:
        first = stored.ask("Passphrase: ", directory)
        if getpass.getpass("Once more: ").encode() != first or not first:
            raise EncryptionRefused("These are not the same passphrases. Nothing was changed.")
        return kdf, Secret(first)
    file = args.key_file or args.passphrase_file
    path = Path(file) if file else encryption.key_file(directory) if named else None
    if path is None:
        raise EncryptionRefused(
            "No key was given. Nothing was changed; name one with --key-file FILE (make it with "
            "`(umask 077; head -c 32 /dev/urandom > FILE)`), or say --passphrase."
        )
    path = path.expanduser().absolute()
    if path.resolve().is_relative_to(directory.resolve()):
        raise EncryptionRefused(
            f"{path} lies in the store that it is to open. Nothing was changed; keep it elsewhere."
        )
    return kdf, encryption.secret_in(path, directory, kdf)
