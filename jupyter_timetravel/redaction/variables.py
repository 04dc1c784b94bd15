"""Secrets in namespaces: which units hold one, and the namespace without them.

A unit is the smallest thing that can be taken out, so what shares objects with a secret goes with
it. A unit of plain values (numbers, texts, what cells said) is written anew without it instead: it
is read by an unpickler that knows no class and no function but ``list`` and ``complex``, so that
nothing of the session's runs here.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from jupyter_timetravel.redaction.needle import Needle
from kernel_runtime.engines.dill.engine import without
from kernel_runtime.store.digests import digest_of
from kernel_runtime.store.namespaces import NamespaceStore

REASON: Final = "it was redacted"
_PLAIN: Final = {("builtins", "list"): list, ("builtins", "complex"): complex}
_PLAIN_MOST: Final = 64 << 20
"""Bytes of a unit that is looked into."""
_CONTAINERS: Final = (list, tuple, dict, set, frozenset)
_OF_VARIABLES: Final = ("variables", "definitions")


@dataclass
class Found:
    """What of one namespace has to go."""

    lost: dict[str, str] = field(default_factory=dict)
    """Variables, and why."""
    gone: list[int] = field(default_factory=list)
    """Units that are taken out."""
    rewritten: dict[int, bytes] = field(default_factory=dict)
    """Units that are written anew."""
    told: list[str] = field(default_factory=list)
    """What else was found, in words."""

    def __bool__(self) -> bool:
        return bool(self.gone or self.rewritten or self.told)


def look(store: NamespaceStore, manifest: Mapping[str, Any], needle: Needle) -> Found:
    """Find it; writes nothing. Raises StoreError where a blob cannot be read."""
    found = Found()
    for unit in manifest["units"]:
        named = sorted(needle.variables.intersection(unit["names"]))
        named = named if unit["kind"] in _OF_VARIABLES else []
        holds = bool(needle.texts) and any(
            needle.is_in(_pieces(store, pieces)) for pieces in (unit["stream"], *unit["buffers"])
        )
        if not named and not holds:
            continue
        data = _rewritten(store, unit, needle, found)
        if data is not None:
            found.rewritten[unit["id"]] = data
            continue
        found.gone.append(unit["id"])
        if unit["kind"] not in _OF_VARIABLES:
            found.told += [in_words(name) for name in unit["names"]]
            continue
        for name in unit["names"]:
            shared = f"{REASON}: it shared objects with {', '.join(named)}"
            found.lost[name] = REASON if holds or name in named else shared
    _dependents(manifest, found)
    rest = {key: value for key, value in manifest.items() if key != "units"}
    if needle.texts and needle.cleaned_fields(rest) != rest:
        found.told.append("what was noted of it")
    imports = manifest.get("state", {}).get("imports", [])
    found.lost |= {entry[0]: REASON for entry in imports if entry[0] in needle.variables}
    if found.lost and not found:
        found.told.append("imports")
    return found


def rewrite(
    store: NamespaceStore, manifest: Mapping[str, Any], found: Found, needle: Needle
) -> dict[str, Any]:
    """The manifest without it; the units that are new are stored. Raises StoreError."""
    new = {id: _stored(store, data) for id, data in found.rewritten.items()}
    units = [
        {**unit, **new[unit["id"]], "names": _left(unit["names"], found)}
        if unit["id"] in new
        else unit
        for unit in manifest["units"]
    ]
    emptied = {name for unit in units if unit["id"] in found.gone for name in unit["names"]}
    made = without({**manifest, "units": units}, [(name, "") for name in emptied])
    lost = [*manifest["lost"], *([name, why] for name, why in found.lost.items())]
    rest = needle.cleaned_fields({k: v for k, v in made.items() if k != "units"} | {"lost": lost})
    if "carried" in rest:
        rest["carried"] = [one for one in rest["carried"] if one[0] not in found.lost]
    if "state" in rest:
        imports = [one for one in rest["state"].get("imports", []) if one[0] not in found.lost]
        rest["state"] = {**rest["state"], "imports": imports}
    return {**rest, "units": made["units"]}


def _dependents(manifest: Mapping[str, Any], found: Found) -> None:
    """What is made of a class or function that goes."""
    gone = set(found.gone)
    grew = True
    while grew:
        grew = False
        for unit in manifest["units"]:
            if unit["id"] in gone or gone.isdisjoint(unit["needs"]):
                continue
            gone.add(unit["id"])
            grew = True
            found.gone.append(unit["id"])
            if unit["kind"] in _OF_VARIABLES:
                found.lost |= dict.fromkeys(unit["names"], f"{REASON}: what it is made of")


def _left(names: list[str], found: Found) -> list[str]:
    return [name for name in names if name not in found.lost]


def _stored(store: NamespaceStore, data: bytes) -> dict[str, Any]:
    digest = digest_of(data)
    if store.missing([digest]):
        store.put(digest, data)
    return {"stream": [[digest, len(data)]], "bytes": len(data)}


def _pieces(store: NamespaceStore, pieces: list[Any]) -> Iterator[bytes]:
    for digest, _ in pieces:
        yield store.get(digest)


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Two that are harmless."""
        try:
            return _PLAIN[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is not plain") from None


def _rewritten(
    store: NamespaceStore, unit: Mapping[str, Any], needle: Needle, found: Found
) -> bytes | None:
    """A unit of plain values without what has to go; None for one that is not plain."""
    if unit["buffers"] or unit["needs"] or sum(n for _, n in unit["stream"]) > _PLAIN_MOST:
        return None
    data = b"".join(_pieces(store, unit["stream"]))
    try:
        classes, values, placements = _PlainUnpickler(io.BytesIO(data)).load()
        values = [(str(name), value) for name, value in values]
    except Exception:  # a pickle may raise anything
        return None
    if classes or placements:
        return None
    if unit["kind"] in _OF_VARIABLES and any(isinstance(v, _CONTAINERS) for _, v in values):
        return None  # what they share may be what has to go
    kept, lost, told = [], {}, []
    for name, value in values:
        if unit["kind"] not in _OF_VARIABLES:
            clean = (needle.cleaned_fields if _is_ours(name) else needle.cleaned_all)(value)
            if clean != value:
                told.append(in_words(name))
            kept.append((name, clean))
        elif name in needle.variables or needle.is_in([pickle.dumps(value, 5)]):
            lost[name] = REASON
        else:
            kept.append((name, value))
    made = pickle.dumps(((), tuple(kept), []), protocol=5)
    if needle.is_in([made]):
        return None  # bytes of an odd kind: it goes as a whole
    found.lost |= lost
    found.told += told
    return made


def _is_ours(name: str) -> bool:
    """Whether names of fields in it are those of this program: without them it cannot be loaded."""
    return name.startswith("settings:") and name != "settings:environment"


def in_words(name: str) -> str:
    """A name of a unit as a person would say it."""
    if name == "In":
        return "the list of inputs (In)"
    if name.startswith("settings:"):
        return f"settings of the session ({name.removeprefix('settings:')})"
    return name.removeprefix("module:")
