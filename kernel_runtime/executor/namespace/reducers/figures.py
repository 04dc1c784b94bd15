"""matplotlib figures. Which of them pyplot knows is a setting (settings.py), not part of a figure.

matplotlib's own way would open a pyplot window for each figure that is loaded, under a new number.
"""

from __future__ import annotations

from typing import Any

from kernel_runtime.executor.namespace.registry import Context, NotKept, reducer


@reducer("matplotlib.figure.Figure")
def reduce_figure(obj: Any, context: Context) -> Any:
    made, arguments, state, *rest = obj.__reduce_ex__(2)
    if isinstance(state, dict):
        state = {k: v for k, v in state.items() if k != "_restore_to_pylab"}
    return (made, arguments, state, *rest)


@reducer("matplotlib.backend_bases.FigureCanvasBase", "matplotlib.backend_bases.FigureManagerBase")
def reduce_canvas(obj: Any, context: Context) -> Any:
    """A canvas is its figure's: a new one is made with the figure."""
    figure = obj.canvas.figure if hasattr(obj, "canvas") else obj.figure
    if hasattr(obj, "canvas"):
        raise NotKept("a figure's window manager cannot be kept: it belongs to the old process")
    return canvas_of, (figure,)


def canvas_of(figure: Any) -> Any:
    return figure.canvas


@reducer("matplotlib.animation.Animation")
def reduce_animation(obj: Any, context: Context) -> Any:
    raise NotKept("an animation cannot be kept: it is driven by the old process's timer")


@reducer("matplotlib.RcParams")
def reduce_settings(obj: Any, context: Context) -> Any:
    """The one in use is a setting; a variable that is it is it again."""
    import matplotlib

    return (settings_in_use, ()) if obj is matplotlib.rcParams else NotImplemented


def settings_in_use() -> Any:
    import matplotlib

    return matplotlib.rcParams


@reducer("matplotlib.cbook.CallbackRegistry")
def reduce_callbacks(obj: Any, context: Context) -> Any:
    """As matplotlib pickles it, and with what keeps its own objects in step: a colorbar follows its
    image, an image its norm."""
    made, arguments, state, *rest = obj.__reduce_ex__(2)
    changed = state["callbacks"].setdefault("changed", {}) if "callbacks" in state else {}
    for number, reference in obj.callbacks.get("changed", {}).items():
        function = reference()
        if type(getattr(function, "__self__", None)).__module__.startswith("matplotlib."):
            changed[number] = function
    return (made, arguments, state, *rest)
