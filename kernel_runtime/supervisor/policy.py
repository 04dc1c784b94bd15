"""Whether a cell may have changed anything, for ``auto = "changed"``; in doubt it may have."""

from __future__ import annotations

import ast

_LOOKS_ONLY = frozenset(
    {"%timeline", "%timetravel", "%whos", "%who", "%pwd", "%lsmagic", "%history"}
)
_PURE_CALLS = frozenset(
    {"print", "len", "repr", "type", "id", "dir", "help", "sorted", "sum", "min", "max"}
)


def is_checkpoint_only(code: str) -> bool:
    """Whether the cell is a single ``%checkpoint`` line: its checkpoint is already made."""
    lines = [line for line in code.strip().splitlines() if line.strip()]
    return len(lines) == 1 and lines[0].split()[0] == "%checkpoint"


def may_change(code: str) -> bool:
    """Whether a cell may have changed the session.

    Only cells that can be seen to change nothing are told apart: empty ones, comments, names,
    attributes and constants that are shown, a few pure calls of builtins on such, and magics
    that only show. A name can still compute something when shown (a lazy object's repr); such a
    change is held by the next checkpoint.
    """
    code = code.strip()
    if not code:
        return False
    lines = [line.strip() for line in code.splitlines() if line.strip()]
    if all(line.split()[0] in _LOOKS_ONLY or line.endswith("?") for line in lines):
        return False
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return True
    return not all(
        isinstance(statement, ast.Expr) and _only_looks(statement.value) for statement in tree.body
    )


def _only_looks(node: ast.expr) -> bool:
    if isinstance(node, (ast.Constant, ast.Name)):
        return True
    if isinstance(node, ast.Attribute):
        return _only_looks(node.value)
    if isinstance(node, ast.Subscript):
        return _only_looks(node.value) and _only_looks(node.slice)
    if isinstance(node, ast.Slice):
        return all(_only_looks(n) for n in (node.lower, node.upper, node.step) if n)
    if isinstance(node, (ast.Tuple, ast.List)):
        return all(map(_only_looks, node.elts))
    if isinstance(node, ast.Call):
        return (
            isinstance(node.func, ast.Name)
            and node.func.id in _PURE_CALLS
            and not node.keywords
            and all(map(_only_looks, node.args))
        )
    return False
