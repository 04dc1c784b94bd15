"""docs/errors.md says what the classes say."""

from __future__ import annotations

import inspect
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "errorlist.py"))


def test_the_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "errors.md").read_text() == SCRIPT["page"]()


def test_every_error_has_a_name_of_its_own_and_says_what_it_means() -> None:
    classes = SCRIPT["error_classes"]()
    assert len({cls.__name__ for cls in classes}) == len(classes)
    for cls in classes:
        assert len(inspect.cleandoc(cls.__dict__.get("__doc__") or "")) > 20, cls
