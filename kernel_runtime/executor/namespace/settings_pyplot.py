"""The group of settings (see ``settings``) that says which figures pyplot knows, by number."""

from __future__ import annotations

import importlib
from typing import Any


def figures() -> dict[str, Any] | None:
    """The figures in the order in which they were current, the last one is."""
    helpers: Any = importlib.import_module("matplotlib._pylab_helpers")
    found = [
        (number, manager.canvas.figure.get_label(), manager.canvas.figure)
        for number, manager in helpers.Gcf.figs.items()
    ]
    return {"figures": found} if found else None


def show_figures(value: dict[str, Any]) -> None:
    """Make pyplot know them again. Nothing is drawn: that would show each figure below the cell."""
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    helpers: Any = importlib.import_module("matplotlib._pylab_helpers")
    backend = pyplot._get_backend_mod()
    with pyplot.ioff():
        for number, label, figure in value["figures"]:
            manager = backend.new_figure_manager_given_figure(number, figure)
            if label:
                manager.set_window_title(label)
            figure.set_label(label)
            helpers.Gcf._set_new_active_manager(manager)
