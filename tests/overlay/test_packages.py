"""Which packages differ, from the names that layers touch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from layers import GONE, Made, Opaque

from kernel_runtime.engines.overlay import index as indexing
from kernel_runtime.engines.overlay.changes import summary
from kernel_runtime.engines.overlay.packages import (
    PackageChange,
    build_index,
    load_index,
    package_changes,
)

SITE = "/home/u/lib/python3.11/site-packages"


def dist(name: str, version: str, **more: str) -> dict[str, Any]:
    """What an installer leaves behind."""
    info = {"METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nVersion: 0\n"}
    return {f"{name}-{version}.dist-info": {**info, **more}, name: {"__init__.py": ""}}


def site(tree: dict[str, Any]) -> dict[str, Any]:
    return {"u": {"lib": {"python3.11": {"site-packages": tree}}}}


def told(made: Made, before: int, after: int, root: str = "/home") -> list[PackageChange]:
    """The same with notes on the disk and without, and backwards the other way round."""
    stacks = {root: made.stack(before)}, {root: made.stack(after)}
    found = package_changes(*stacks)
    back = package_changes(*reversed(stacks))
    assert [p._replace(before=p.after, after=p.before) for p in back] == found
    for layer in made.layers:
        build_index(layer.parent, made.markers)
    assert package_changes(*stacks) == found
    for layer in made.layers:
        (layer.parent / "index.json").unlink()
    return found


def pip(name: str, before: str | None, after: str | None, where: str = SITE) -> PackageChange:
    return PackageChange("pip", name, before, after, where)


def test_installed_upgraded_removed(made: Made) -> None:
    made.base(site({**dist("old", "1.0"), **dist("gone", "3")}))
    made.layer(
        site(
            {
                **dist("New_Name", "2.0"), **dist("old", "1.1"), "old-1.0.dist-info": GONE,
                "gone-3.dist-info": GONE, "~one-1.dist-info": {"METADATA": "Name: one"},
            }
        )
    )  # fmt: skip
    assert told(made, 0, 1) == [
        pip("gone", "3", None),
        pip("New_Name", None, "2.0"),
        pip("old", "1.0", "1.1"),
    ]
    assert told(made, 1, 1) == []


def test_a_reinstallation_is_no_change_but_other_content_is(made: Made) -> None:
    made.base(site(dist("one", "1.0")))
    made.layer(site({"one-1.0.dist-info": Opaque(dist("one", "1.0")["one-1.0.dist-info"])}))
    assert told(made, 0, 1) == []


def test_names_are_compared_as_python_does(made: Made) -> None:
    made.base(site(dist("Foo.Bar", "1")))
    made.layer(site({"Foo.Bar-1.dist-info": GONE, **dist("foo_bar", "2")}))
    found = package_changes({"/home": made.stack(0)}, {"/home": made.stack(1)})
    assert found == [pip("foo_bar", "1", "2")]


@pytest.mark.parametrize("where", ["u", "u/lib/python3.11", "u/lib/python3.11/site-packages"])
def test_a_whole_environment_that_goes_away(made: Made, where: str) -> None:
    made.base(site({**dist("one", "1"), **dist("two", "2")}))
    tree: Any = GONE
    for name in reversed(where.split("/")):
        tree = {name: tree}
    made.layer(tree)
    both = [pip("one", "1", None), pip("two", "2", None)]
    assert told(made, 0, 1) == both
    # made again on top of the whiteout, and opaque
    made.layer(site(dist("two", "2")))
    assert told(made, 0, 2) == [pip("one", "1", None)]
    assert told(made, 1, 2) == [pip("two", None, "2")]


def test_an_environment_replaced_by_a_symlink(made: Made) -> None:
    made.base({"venv": {"lib": {"site-packages": dist("one", "1")}}})
    made.layer({"venv": Path("elsewhere")})
    assert told(made, 0, 1) == [pip("one", "1", None, "/home/venv/lib/site-packages")]


def test_what_a_package_brings_along_does_not_count(made: Made) -> None:
    made.base({})
    made.layer(
        site({**dist("setuptools", "70"), "setuptools": {"_vendor": dist("jaraco.text", "3")}})
    )
    assert told(made, 0, 1) == [pip("setuptools", None, "70")]
    made.layer({"u": GONE})
    assert told(made, 0, 2) == []
    assert told(made, 1, 2) == [pip("setuptools", "70", None)]


def test_target_directories_and_eggs(made: Made) -> None:
    made.base({})
    made.layer(
        {
            "vendored": dist("tinynum", "2.0"),
            "eggs": {
                "a-1.0-py3.11.egg-info": "Name: A\nVersion: 1.0\n",
                "b.egg-info": {"PKG-INFO": "Name: b\nVersion: 2\n"},
                "dev.egg-link": "/src/dev\n.",
                "left-1.dist-info": {"RECORD": ""},
            },
        }
    )
    assert told(made, 0, 1, "/opt") == [
        pip("A", None, "1.0", "/opt/eggs"),
        pip("b", None, "2", "/opt/eggs"),
        pip("dev", None, "(development)", "/opt/eggs"),
        pip("tinynum", None, "2.0", "/opt/vendored"),
    ]


def test_conda_tells_once(made: Made) -> None:
    made.base({"env": {"conda-meta": {"numpy-1.26.0-py311_0.json": "{}", "history": ""}}})
    made.layer(
        {
            "env": {
                "conda-meta": {"numpy-1.26.0-py311_0.json": GONE, "numpy-2.0-py311_1.json": "{}"},
                "lib": {"site-packages": dist("numpy", "2.0", INSTALLER="conda\n")},
            }
        }
    )
    assert told(made, 0, 1, "/opt") == [
        PackageChange("conda", "numpy", "1.26.0 (py311_0)", "2.0 (py311_1)", "/opt/env/conda-meta")
    ]


def status(*packages: tuple[str, str, str, str]) -> dict[str, Any]:
    text = "\n".join(
        f"Package: {name}\nStatus: {state}\nArchitecture: {kind}\nVersion: {version}\n"
        f"Description: some\n more\n"
        for name, state, kind, version in packages
    )
    return {"lib": {"dpkg": {"status": text}}}


def test_debian(made: Made) -> None:
    fine = "install ok installed"
    made.base(
        status(
            ("a", fine, "amd64", "1"), ("b", fine, "all", "1"), ("c", fine, "amd64", "1"),
            ("d", "deinstall ok config-files", "amd64", "1"),
        )
    )  # fmt: skip
    made.layer(
        status(
            ("a", fine, "amd64", "2"), ("b", fine, "all", "1"),
            ("c", "deinstall ok config-files", "amd64", "1"), ("d", fine, "amd64", "1"),
            ("e", fine, "amd64", "1"), ("e", fine, "i386", "1"),
        )
    )  # fmt: skip
    assert told(made, 0, 1, "/var") == [
        PackageChange("dpkg", "a", "1", "2", ""),
        PackageChange("dpkg", "c", "1", None, ""),
        PackageChange("dpkg", "d", None, "1", ""),
        PackageChange("dpkg", "e:amd64", None, "1", ""),
        PackageChange("dpkg", "e:i386", None, "1", ""),
    ]
    assert told(made, 0, 1, "/srv") == []


def test_notes_are_written_whole_and_a_bad_one_is_none(made: Made) -> None:
    layer = made.layer({**site(dist("one", "1")), os.fsdecode(b"odd\xff.egg-info"): {}, "g": GONE})
    built = build_index(layer.parent, made.markers)
    assert load_index(layer.parent) == built
    assert built.summary == summary(layer, made.markers)
    assert b"odd\xff.egg-info" in built.info and built.hiding == (b"g",)
    assert sorted(p.name for p in layer.parent.iterdir()) == ["files", "index.json"]
    for bad in ("", "{}", "[]", '{"version": 0}', '{"version": 1, "info": 5}', "\xff"):
        (layer.parent / "index.json").write_text(bad, encoding="latin-1")
        assert load_index(layer.parent) is None
    assert indexing.index_of(layer, made.markers).info == built.info
    (layer.parent / "index.json").unlink()
    assert load_index(layer.parent) is None


def test_versions_of_a_real_environment_are_those_that_python_says(made: Made) -> None:
    """The packages beside pytest, as if one layer had brought them."""
    import importlib.metadata

    where = Path(pytest.__file__).parents[1]
    made.base({})
    target = made.layer({}) / "site-packages"
    target.mkdir()
    expected = {}
    for found in where.glob("*.dist-info"):
        (target / found.name).mkdir()
        for name in ("METADATA", "INSTALLER"):
            if (found / name).exists():
                (target / found.name / name).write_bytes((found / name).read_bytes())
        one = importlib.metadata.PathDistribution(found)
        expected[one.metadata["Name"]] = one.version
    told_of = {p.name: p.after for p in told(made, 0, 1, "/opt")}
    assert told_of == expected and len(expected) > 10
