"""The words of a restore."""

from __future__ import annotations

import unicodedata

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kernel_runtime.timeline.report import diff_text, restore_text, trial_text
from kernel_runtime.timeline.text import columns, one_line, pad, size_text

INT = {"type": "int", "size": None, "shape": None, "value": "7"}
FRAME = {"type": "DataFrame", "size": 24_000, "shape": "1000 x 3", "value": None}


def result(timeline, add, **changes):
    target = timeline.record(add(timeline, comment="before the join"))
    safety = timeline.record(add(timeline, reason="safety"))
    return {
        "checkpoint": target,
        "safety": safety,
        "dry_run": False,
        "variables": {"added": [], "removed": [], "changed": []},
        "files": [],
        "kept_aside": [],
        "threads": {"brought_back": 0, "ids_kept": True},
        "warnings": [],
        "took_ms": 18.23,
        **changes,
    }


VARIABLES = {
    "added": [{"name": f"v{n}", **INT} for n in range(6)],
    "removed": [{"name": "oops", **INT}],
    "changed": [{"name": "df", "before": {**FRAME, "shape": "0 x 3"}, "after": FRAME}],
}
FILES = [
    {"path": "data/a.csv", "root": "/w", "kind": "created", "size_before": None, "size_after": 9},
    {"path": "b\\xff", "root": "/w", "kind": "changed", "size_before": 1, "size_after": 2_000},
]


def test_a_restore_is_told_in_sums_and_first_names(timeline, add):
    told = restore_text(
        result(
            timeline,
            add,
            variables=VARIABLES,
            files=FILES,
            threads={"brought_back": 14, "ids_kept": True},
            warnings=["child process 1234 (sleep 60) was not brought back"],
            kept_aside=[{"path": "b\\xff", "saved_as": "0-b\\xff", "reason": "changed by another"}],
        )
    )
    assert told.splitlines() == [
        'restored #1 "before the join": 8 variables, 2 files, 14 threads (18.2 ms)',
        "  variables back: v0, v1, v2, v3 and 2 more; gone: oops; as before: df",
        "  files back: data/a.csv; as before: b\\xff",
        "  kept aside: b\\xff: changed by another; it is in the store as 0-b\\xff",
        "warning: child process 1234 (sleep 60) was not brought back",
        "%restore --undo goes back to where you were (#2).",
    ]


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ("fork", "(18.2 ms)"),
        ("image", "(18.2 ms, the process from its image on the disk)"),
        ("criu", "(18.2 ms, the process from CRIU's image on the disk)"),
        ("dill", "(18.2 ms, the variables from their copy on the disk)"),
        (None, "(18.2 ms)"),
    ],
)
def test_a_restore_says_which_capture_it_took(timeline, add, engine, told):
    assert restore_text(result(timeline, add, process=engine)).splitlines()[0].endswith(told)


def test_a_restore_without_effect_names_the_one_that_has(timeline, add):
    told = restore_text(result(timeline, add))
    assert "nothing differed" in told
    assert told.splitlines()[-1] == "%restore -2 takes back the last cell."


def test_a_dry_run_lists_types_and_sizes(timeline, add):
    told = restore_text(
        result(timeline, add, dry_run=True, safety=None, variables=VARIABLES, files=FILES)
    )
    assert "  + v0  int 7" in told
    assert "  ~ df  DataFrame 0 x 3, 24.0 kB → DataFrame 1000 x 3, 24.0 kB" in told
    assert "  ~ b\\xff  1 B → 2.0 kB" in told
    assert told.endswith("Nothing was changed.")


def test_a_dry_run_is_no_longer_than_a_screen(timeline, add):
    many = [{"name": f"v{n}", **INT} for n in range(5000)]
    files = [{**FILES[0], "path": f"f{n}"} for n in range(5000)]
    told = restore_text(
        result(
            timeline,
            add,
            dry_run=True,
            variables={"added": many, "removed": [], "changed": []},
            files=files,
        )
    )
    assert len(told.splitlines()) < 50
    assert "and 4,980 variables more" in told


def test_a_diff_names_both_ends(timeline, add):
    assert diff_text("#1", "#2", result(timeline, add)).startswith("no difference from #1 to #2")
    assert "from #1 to now: 8 variables" in diff_text(
        "#1", "now", result(timeline, add, variables=VARIABLES)
    )


PACKAGES = [
    {"manager": "pip", "name": "numpy", "before": "2.4.6", "after": "1.26.4", "where": "/s"},
    {"manager": "pip", "name": "pandas", "before": None, "after": "2.2", "where": "/s"},
    {"manager": "pip", "name": "requests", "before": "2.31", "after": None, "where": "/s"},
]
ENVIRON = [
    {"name": "PLACE", "before": "here", "after": None},
    {"name": "TOKEN", "before": "(not shown)", "after": "(not shown)"},
]


def outside(*paths, kind="created"):
    return [
        {"path": path, "root": "/home", "kind": kind, "size_before": None, "size_after": 1}
        for path in paths
    ]


def test_packages_and_files_outside_are_told(timeline, add):
    told = restore_text(
        result(
            timeline,
            add,
            packages=PACKAGES,
            environment=[
                *outside(*(f"u/s/numpy/{n}.py" for n in range(1995))),
                *outside("u/s/numpy/__pycache__/a.pyc", "u/.cache/pip/x"),
                *outside("u/run.csv", kind="deleted"),
            ],
            environment_complete=False,
            environ=ENVIRON,
        )
    )
    assert told.splitlines() == [
        'restored #1 "before the join": 3 packages, 1,996 or more files outside of the workspace, '
        "2 cache files, 2 environment variables (18.2 ms)",
        "  packages numpy 2.4.6 → 1.26.4, + pandas 2.2, - requests 2.31",
        "  outside of the workspace + /home/u/s/numpy/0.py, /home/u/s/numpy/1.py, "
        "/home/u/s/numpy/10.py, /home/u/s/numpy/100.py and 1,991 more; - /home/u/run.csv",
        "  environment variables as before: PLACE, TOKEN",
        "%restore --undo goes back to where you were (#2).",
    ]


def test_what_no_package_brought_is_named_first(timeline, add):
    packages = [{**PACKAGES[1], "where": "/home/a/site-packages"}]
    files = outside("a/site-packages/x.py", "a/site-packages/y.py", "b/result.csv")
    told = restore_text(result(timeline, add, packages=packages, environment=files))
    assert "  outside of the workspace + /home/b/result.csv, /home/a/site-packages/x.py" in told


@pytest.mark.parametrize(
    "changes",
    [
        {"packages": PACKAGES[:1]},
        {"environment": outside("u/a")},
        {"environment": outside("u/.cache/a")},
        {"environ": ENVIRON[:1]},
        {"environment_differs": True},
    ],
)
def test_nothing_differed_only_where_nothing_did(timeline, add, changes):
    assert "nothing differed" not in restore_text(result(timeline, add, **changes))
    told = restore_text(result(timeline, add, dry_run=True, safety=None, **changes))
    assert "would change nothing" not in told
    assert "no difference" not in diff_text("#1", "#2", result(timeline, add, **changes))


def test_a_difference_names_environment_variables(timeline, add):
    told = diff_text("#1", "now", result(timeline, add, environ=ENVIRON))
    assert told.splitlines() == [
        "from #1 to now: 2 environment variables",
        "  ~ $PLACE  here → not set",
        "  ~ $TOKEN  changed (not shown)",
    ]


def test_what_was_taken_back_is_told_as_it_was_done(timeline, add):
    told = trial_text(
        "%%dryrun: the cell changed",
        result(timeline, add, variables=VARIABLES, files=FILES, packages=PACKAGES[:2]),
    )
    lines = told.splitlines()
    assert lines[0] == "%%dryrun: the cell changed 8 variables, 2 files, 2 packages:"
    assert "  - v0  int 7" in lines and "  + oops  int 7" in lines
    assert "  - data/a.csv  9 B" in lines and "  ~ b\\xff  2.0 kB → 1 B" in lines
    assert "  packages numpy 1.26.4 → 2.4.6, - pandas 2.2" in lines
    assert lines[-1] == "All of it was taken back (18.2 ms); %restore --undo brings it again."


def test_hostile_names_cannot_move_the_cursor(timeline, add):
    hostile = "\x1b]0;owned\x07\x1b[2J\n\u202eevil"
    told = restore_text(
        result(
            timeline,
            add,
            files=[{**FILES[0], "path": hostile}],
            warnings=[hostile],
            kept_aside=[{"path": hostile, "saved_as": hostile, "reason": hostile}],
        )
    )
    lines = told.splitlines()
    assert not any(unicodedata.category(c) in ("Cc", "Cf") for line in lines for c in line)
    assert len(lines) == 5


@given(st.text(), st.integers(4, 80))
def test_one_line_is_one_line(text, width):
    line = one_line(text, width)
    assert columns(line) <= width
    assert all(c.isprintable() or c in "\u200c\u200d" for c in line)
    assert "\n" not in line


def test_one_line_keeps_what_fits():
    assert one_line("  日本語 👩\u200d👩  e\u0301 ", 40) == "日本語 👩\u200d👩 e\u0301"
    assert one_line("日本語", 5) == "日本…"
    assert one_line("x" * 1_000_000, 10) == "x" * 9 + "…"
    assert pad("日本", 6) == "日本  "


def test_sizes():
    assert [size_text(n) for n in (0, 999, 1000, 1_500_000, 999_999_999, 3 * 10**12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "1.5 MB",
        "1.0 GB",
        "3.0 TB",
    ]
