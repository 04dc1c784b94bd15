"""A session that checkpoints, prunes and is restarted, as a process of its own: the power is cut,
or the disk is full, somewhere in here. What is done is told in the file ``told`` once it is."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from store_world import Session

from kernel_runtime.errors import TimeTravelError

NOISE = random.Random(1).randbytes(20_000)


def version(number: int) -> bytes:
    """Of a variable that changes as a whole: stored as a delta to the one before."""
    return bytes((byte + number) % 256 for byte in NOISE)


def main(base: Path, rounds: int) -> None:
    told = os.open(base / "told", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def tell(text: str) -> None:
        try:
            os.write(told, f"{text}\n".encode())
        except OSError:
            print(text, flush=True)

    for epoch in range(2):
        try:
            session = Session(base)
        except (TimeTravelError, OSError) as error:
            print(f"refused {type(error).__name__}: {error}", flush=True)
            continue
        for turn in range(rounds):
            number = epoch * rounds + turn
            session.write("changes", f"{number}" * 3000)
            session.write(f"new{number}", os.urandom(3000))
            manual = turn % 3 != 1
            try:
                id = session.checkpoint(
                    b"the same" * 50,
                    version(number),
                    reason="manual" if manual else "cell",
                )
                tell(f"made {id}" if manual else "automatic")
            except (TimeTravelError, OSError) as error:
                print(f"refused {type(error).__name__}: {error}", flush=True)
            if turn == rounds - 1 and len(session.timeline) > 1:
                try:
                    prune(session, tell)
                except (TimeTravelError, OSError) as error:
                    print(f"prune refused {type(error).__name__}: {error}", flush=True)
        session.close()


def prune(session: Session, tell) -> None:
    """Delete the oldest and sweep, as the supervisor does."""
    oldest = next(c for c in session.timeline if c.id != session.timeline.state.head)
    tell(f"deleting {oldest.id}")
    gone = session.timeline.delete(oldest.id)
    session.store.save(session.timeline.state, gone.rehung, deleted_ids=[oldest.id])
    ref = oldest.capture("filesystem").ref
    named = session.store.references("filesystem")
    if ref not in named:
        session.engine.release([ref])
        session.engine.collect_garbage()
    session.namespaces.sweep(lambda: session.store.references("namespace"))
    tell("swept")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
