"""The pages agree with one another and with the code: links, commands, settings, limits."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

import pytest

from jupyter_timetravel.cli import COMMANDS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
LIMIT_PARTS = ("*When:*", "*You see:*", "*Why:*", "*Do:*")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not re.match(r"\w+:", target):
            assert (page.parent / target).exists(), target


def test_the_commands_of_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text()
    scripts = re.findall(r"^\./(\S+)", text, re.MULTILINE)
    assert len(scripts) == 2
    for script in scripts:
        assert os.access(ROOT / script, os.X_OK), script


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_documented(name: str) -> None:
    text = "".join((ROOT / "docs" / name).read_text() for name in ("install.md", "cli.md"))
    assert f"jupyter timetravel {name}" in text
    parser = argparse.ArgumentParser(add_help=False)
    COMMANDS[name].add_arguments(parser)
    for action in parser._actions:
        for option in action.option_strings:
            assert option in text, option


def limits() -> list[tuple[str, str]]:
    """The title and the text of each entry of docs/limits.md."""
    text = (ROOT / "docs" / "limits.md").read_text()
    entries = re.split(
        r"^### ", re.sub(r"^## .*", "", text, flags=re.MULTILINE), flags=re.MULTILINE
    )
    parts = [entry.partition("\n") for entry in entries[1:]]
    return [(title, body.strip()) for title, _, body in parts]


@pytest.mark.parametrize(("title", "body"), limits(), ids=[title for title, _ in limits()])
def test_a_limit_says_when_what_why_and_what_to_do(title: str, body: str) -> None:
    places = [body.find(part) for part in LIMIT_PARTS]
    assert places[0] == 0
    assert places == sorted(places)
