"""IPython's names in the user's namespace: which are the user's, and how the rest comes back."""

from __future__ import annotations

import re
from typing import Any, Final

from kernel_runtime.executor.namespace.session import SessionState

_PYTHONS: Final = frozenset(
    {
        *("__name__", "__doc__", "__package__", "__loader__", "__spec__", "__builtins__"),
        *(
            "__builtin__",
            "__file__",
            "__cached__",
            "__warningregistry__",
            "__conditional_annotations__",
        ),
    }
)
_OWN: Final = frozenset({"In", "Out", "_ih", "_oh", "_dh", "_i", "_ii", "_iii", "get_ipython"})
_OUTPUT: Final = re.compile(r"_(\d+)\Z")
_INPUT: Final = re.compile(r"_i\d+\Z")
_LAST: Final = ("_", "__", "___")


def split(session: SessionState, keeper: Any) -> tuple[list[tuple[str, Any]], dict[str, Any]]:
    """The user's variables, and a description of IPython's names for ``put_back``."""
    numbers = {id(value): number for number, value in session.outputs.items()}
    variables: list[tuple[str, Any]] = []
    last: dict[str, int] = {}
    outputs: list[str] = []
    inputs: list[str] = []
    for name, value in list(session.namespace.items()):
        if type(name) is not str or name in _PYTHONS or (name == "__annotations__" and not value):
            continue
        is_hidden = name in session.hidden and session.hidden[name] is value
        output = _OUTPUT.match(name)
        if name in _OWN and (is_hidden or session.shell is not None or name in session.hidden):
            continue
        if name in _LAST and (id(value) in numbers or (value == "" and type(value) is str)):
            if id(value) in numbers:
                last[name] = numbers[id(value)]
        elif output and session.outputs.get(int(output[1]), keeper) is value:
            outputs.append(name)
        elif _INPUT.match(name) and type(value) is str:
            inputs.append(name)
        elif not is_hidden:
            variables.append((name, value))
    state = {
        "execution_count": session.execution_count,
        "last_outputs": last,
        "output_names": outputs,
        "input_names": inputs,
    }
    return variables, state


def put_inputs(session: SessionState, inputs: list[str], names: list[str]) -> None:
    """``In`` and what goes by it."""
    session.inputs[:] = inputs
    for name in names:
        number = int(name[2:])
        if number < len(inputs):
            session.namespace[name] = inputs[number]
    recent = [*inputs[:0:-1][:3], "", "", ""]
    history = getattr(session.shell, "history_manager", None)
    if history is None:
        return
    for name, text in zip(("_i", "_ii", "_iii"), recent):
        session.namespace[name] = text
        setattr(history, name, text)
    history._i00 = recent[0]
    raw = getattr(history, "input_hist_raw", None)
    if type(raw) is list and raw is not session.inputs:
        raw[:] = inputs


def put_outputs(session: SessionState, values: dict[int, Any], state: dict[str, Any]) -> None:
    """``Out`` and what goes by it."""
    session.outputs.update(values)
    for name in state["output_names"]:
        number = int(name[1:])
        if number in values:
            session.namespace[name] = values[number]
    hook = getattr(session.shell, "displayhook", None)
    for name, number in state["last_outputs"].items():
        if number in values:
            session.namespace[name] = values[number]
            if hook is not None:
                setattr(hook, name, values[number])
