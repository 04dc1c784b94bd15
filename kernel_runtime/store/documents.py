"""Where notebooks as they were are kept: cells by content, each once.

Layout below ``<store>/documents/``: that of ``namespaces``, with its invariants. A blob is one cell
in canonical JSON; a manifest lists the cells of a notebook in order: ``[digest, trusted]``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from kernel_runtime.store.digests import digest_of
from kernel_runtime.store.namespaces import VERSION, NamespaceStore

FOLDER: Final = "documents"


class DocumentStore(NamespaceStore):
    """The notebooks of one store directory. Thread safe; several processes may use it at once."""

    folder = FOLDER
    purpose = "document manifest 1"

    def put_cell(self, cell: dict[str, Any]) -> str:
        """Store a cell; return its name. Raises BlobStoreFull, BlobNotStored."""
        text = json.dumps(cell, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        # half of a surrogate pair, as programs print it now and then, could not be sent back
        data = text.encode("utf-8", "replace")
        digest = digest_of(data)
        if self.missing([digest]):
            self.put(digest, data)
        return digest

    def cell(self, digest: str) -> dict[str, Any]:
        """A cell, verified. Raises BlobMissing, BlobDamaged, NamespaceUnusable, ValueError."""
        cell: dict[str, Any] = json.loads(self.get(digest))
        return cell

    def save(self, cells: Iterable[tuple[str, bool]]) -> str:
        """Store a notebook's list of cells, signed; return its name. Raises as save_manifest."""
        rows = [[digest, trusted] for digest, trusted in cells]
        return self.save_manifest({"version": VERSION, "cells": rows})

    @staticmethod
    def _names_in(manifest: dict[str, Any]) -> Iterable[str]:
        return [digest for digest, _ in manifest["cells"]]
