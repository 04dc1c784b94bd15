"""The shape of every answer: that of ``--json`` on the command line, and words beside it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, ParamSpec

from mcp.types import CallToolResult, ContentBlock, ImageContent, TextContent

from jupyter_timetravel.command_line.output import done, failed
from kernel_runtime.engines.workspace.errors import WorkspaceError
from kernel_runtime.errors import TimeTravelError

P = ParamSpec("P")

IMAGES_MOST: Final = 4
IMAGE_BYTES_MOST: Final = 1_500_000


class Told:
    """What a tool answers: words for whoever reads, the result for programs, pictures."""

    def __init__(
        self, text: str, result: Mapping[str, Any], images: list[tuple[str, str]] | None = None
    ) -> None:
        self.text = text
        self.result = result
        self.images = images or []

    def content(self) -> list[ContentBlock]:
        """As the protocol has it."""
        shown: list[ContentBlock] = [TextContent(type="text", text=self.text)]
        for kind, data in self.images[:IMAGES_MOST]:
            if len(data) <= IMAGE_BYTES_MOST:
                shown.append(ImageContent(type="image", data=data, mime_type=kind))
        return shown


def refusal(name: str, error: TimeTravelError | WorkspaceError) -> CallToolResult:
    """What a tool answers that did not do it."""
    text = f"{type(error).__name__}: {error}"
    return CallToolResult(
        content=[TextContent(type="text", text=text)],
        structured_content=failed(name, error),
        is_error=True,
    )


def answered(tool: Callable[P, Awaitable[Told]]) -> Callable[P, Awaitable[CallToolResult]]:
    """Give a tool's answer, or its error, the shape that ``--json`` has on the command line."""

    @functools.wraps(tool)
    async def answer(*args: P.args, **kwargs: P.kwargs) -> CallToolResult:
        name = tool.__name__
        try:
            told = await tool(*args, **kwargs)
        except (TimeTravelError, WorkspaceError) as error:
            return refusal(name, error)
        return CallToolResult(content=told.content(), structured_content=done(name, told.result))

    # the SDK makes the schema of the arguments of it
    signature = inspect.signature(tool, eval_str=True).replace(return_annotation=CallToolResult)
    answer.__signature__ = signature  # type: ignore[attr-defined]
    return answer
