"""Variables that could not be loaded, carried as they are stored from one manifest into the next.

A restore in part leaves variables out: their module is missing here, or another Python compiled
them. What they are made of stays in the store, and later checkpoints name it too, until the name is
used again. So nothing is lost on the way through a machine that cannot load it.

A manifest with such variables has ``carried`` ([name, why]); their units have ``python``, the
version of the process that wrote them, and come last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from kernel_runtime.engines.dill.engine import Loaded
from kernel_runtime.later import dataclass

_OF_VARIABLES: Final = ("variables", "definitions")
_GONE: Final = "what was stored of it is not in the store any more"


@dataclass(frozen=True)
class Unloaded:
    """Variables of a manifest that are not in the process which was made from it."""

    manifest: Mapping[str, Any]
    reasons: Mapping[str, str]
    """Why each of them could not be loaded."""

    def without(self, names: Collection[str]) -> Unloaded | None:
        """Those that are not named; None if that leaves nothing."""
        left = {name: why for name, why in self.reasons.items() if name not in names}
        return Unloaded(self.manifest, left) if left else None

    def digests(self) -> set[str]:
        """The blobs that they are made of."""
        units = _needed(self.manifest["units"], self.reasons)
        return {
            str(digest)
            for unit in units
            for pieces in (unit["stream"], *unit["buffers"])
            for digest, _ in pieces
        }


def unloaded(manifest: Mapping[str, Any], loaded: Loaded) -> Unloaded | None:
    """What a load has left out although it is stored; None if that is nothing."""
    reasons = {name: why for name, why in loaded.lost if name not in dict(manifest["lost"])}
    return Unloaded(manifest, reasons) if reasons else None


def carried_in(manifest: Mapping[str, Any]) -> Unloaded | None:
    """What the process had not loaded that a manifest was written from."""
    reasons = dict(manifest.get("carried", ()))
    return Unloaded(manifest, reasons) if reasons else None


def may_be_missing(manifest: Mapping[str, Any]) -> set[str]:
    """Names without which a load is whole: the process that was written had none of them."""
    return {name for name, _ in (*manifest["lost"], *manifest.get("carried", ()))}


def carry(
    manifest: Mapping[str, Any], held: Unloaded, missing: Collection[str] = ()
) -> dict[str, Any]:
    """A manifest with what its process had not loaded.

    A name that the process has by now is its own. missing: blobs that are not in the store, so that
    what is made of them is lost.
    """
    present = _names(manifest)
    reasons = {name: why for name, why in held.reasons.items() if name not in present}
    gone = [name for name in reasons if missing and not _digests_of(held, name).isdisjoint(missing)]
    lost = [*manifest["lost"], *([name, _GONE] for name in gone)]
    reasons = {name: why for name, why in reasons.items() if name not in gone}
    if not reasons:
        return {**manifest, "lost": lost}
    state = manifest["state"]
    imports = [one for one in held.manifest["state"]["imports"] if one[0] in reasons]
    return {
        **manifest,
        "lost": lost,
        "carried": [list(pair) for pair in reasons.items()],
        "units": _Carrier(manifest, held, reasons).units,
        "state": {
            **state,
            "imports": [*state["imports"], *imports],
            "order": [*state["order"], *reasons],
        },
    }


class _Carrier:
    """Puts units of one manifest behind those of another."""

    def __init__(self, manifest: Mapping[str, Any], held: Unloaded, names: Collection[str]) -> None:
        self.units: list[dict[str, Any]] = list(manifest["units"])
        self._old = held.manifest["units"]
        self._python = held.manifest["python"]
        self._names = names
        # an instance is one of the class as the session has it now
        self._defined = {key: unit["id"] for unit in self.units for key in unit["defines"]}
        self._placed: dict[int, list[int]] = {}
        for unit in self._old:
            if _has(unit, names):
                self._place(unit)

    def _place(self, unit: Mapping[str, Any]) -> list[int]:
        """The ids under which a unit is there, after what it needs."""
        id = unit["id"]
        if id not in self._placed:
            keys = unit["defines"]
            if keys and not _has(unit, self._names) and self._defined.keys() >= set(keys):
                self._placed[id] = sorted({self._defined[key] for key in keys})
            else:
                needs = {one for need in unit["needs"] for one in self._place(self._old[need])}
                number = len(self.units)
                self.units.append(
                    {
                        **unit,
                        "id": number,
                        "names": [name for name in unit["names"] if name in self._names],
                        "needs": sorted(needs),
                        "python": unit.get("python", self._python),
                    }
                )
                self._placed[id] = [number]
        return self._placed[id]


def _has(unit: Mapping[str, Any], names: Collection[str]) -> bool:
    return unit["kind"] in _OF_VARIABLES and any(name in names for name in unit["names"])


def _digests_of(held: Unloaded, name: str) -> set[str]:
    return Unloaded(held.manifest, {name: ""}).digests()


def _needed(units: list[dict[str, Any]], names: Collection[str]) -> Iterable[dict[str, Any]]:
    """The units of these names and all that they need."""
    found: dict[int, dict[str, Any]] = {}
    todo = [unit["id"] for unit in units if _has(unit, names)]
    while todo:
        unit = units[todo.pop()]
        if unit["id"] not in found:
            found[unit["id"]] = unit
            todo += unit["needs"]
    return found.values()


def _names(manifest: Mapping[str, Any]) -> set[str]:
    """Of all variables that the process had, kept or not."""
    return {*manifest["state"]["order"], *(name for name, _ in manifest["lost"])}
