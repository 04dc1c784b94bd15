"""What is published in a remote: refs and the lists that they name, verified as they are read."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from jupyter_timetravel.remote import layout, listing
from jupyter_timetravel.remote.bucket import PARALLEL, Bucket, Gone
from jupyter_timetravel.remote.errors import RemoteError
from jupyter_timetravel.remote.layout import BadObject, Coder, Ref
from jupyter_timetravel.remote.listing import BadListing, Listing
from jupyter_timetravel.remote.sealing import Seal
from kernel_runtime.store.keys import Keys
from kernel_runtime.timeline.text import one_line

_TRIES = 3


class RemoteDamaged(RemoteError):
    """Something in a remote is missing, or not what was written: nothing of it was used."""

    def __init__(self, what: str, cause: str, mend: str) -> None:
        super().__init__(
            f"{one_line(what, 300)} cannot be used: {cause}. Nothing of it was taken, and nothing "
            f"was changed here or there. {mend}"
        )


@dataclass(frozen=True)
class Sealed:
    """A ref that cannot be read without a key."""

    name: str
    timeline: str
    sealed: str


def refs(
    bucket: Bucket, seals: Iterable[Seal] = (), timeline: str = ""
) -> tuple[list[Ref], list[Sealed], list[str]]:
    """What is published, oldest first; what is sealed with another key; what is damaged, in words.

    timeline: that one's only. Raises RemoteUnreachable.
    """
    known = {seal.id: seal.cipher for seal in seals}
    found: list[Ref] = []
    closed: list[Sealed] = []
    damaged: list[str] = []
    keys = Keys()
    for name, data in _read_all(bucket, f"{layout.REFS}/{timeline}" if timeline else layout.REFS):
        try:
            sealed = layout.sealed_with(data)
            if sealed is not None and sealed not in known:
                closed.append(Sealed(name, name.split("/")[1], sealed))
                continue
            cipher = known[sealed] if sealed is not None else None
            found.append(layout.read_ref(name, data, keys, cipher))
        except BadObject as error:
            damaged.append(f"{one_line(name, 120)}: {error}")
    return sorted(found, key=lambda ref: ref.pushed_at), closed, damaged


def _read_all(bucket: Bucket, folder: str) -> list[tuple[str, bytes]]:
    for left in reversed(range(_TRIES)):
        names = sorted(entry.name for entry in bucket.list(folder))
        with ThreadPoolExecutor(PARALLEL) as pool:
            read = list(pool.map(lambda name: _get(bucket, name), names))
        if None not in read or not left:  # else a push has put one into a ref of its own meanwhile
            break
    return [(name, data) for name, data in zip(names, read) if data is not None]


def _get(bucket: Bucket, name: str) -> bytes | None:
    try:
        return bucket.get(name)
    except Gone:
        return None


def read_list(bucket: Bucket, coder: Coder, ref: Ref) -> Listing:
    """The list that a ref names. Raises RemoteDamaged, RemoteUnreachable."""
    what = f"{bucket.shown}, the list of {ref.notebook}"
    mend = "Push it again from where it came."
    try:
        most = min(ref.list_bytes, listing.LARGEST)
        return listing.read(coder.decode(ref.list, bucket.get(coder.name(ref.list)), most))
    except Gone as error:
        raise RemoteDamaged(what, "it is not there any more", mend) from error
    except (BadObject, BadListing) as error:
        raise RemoteDamaged(what, str(error), mend) from error


def everything(
    bucket: Bucket, coder: Coder, seals: Iterable[Seal], chosen: Ref
) -> tuple[list[Ref], Listing]:
    """All refs of a timeline that were signed and sealed as one of them is, and their lists as one.

    Raises RemoteDamaged, RemoteUnreachable.
    """
    found, _, _ = refs(bucket, seals, chosen.timeline)
    same = [r for r in found if (r.key, r.sealed) == (chosen.key, chosen.sealed)]
    result = listing.merged(read_list(bucket, coder, ref) for ref in same)
    if result is None:
        raise RemoteDamaged(bucket.shown, "what was listed is gone", "Try again.")
    return same, result
