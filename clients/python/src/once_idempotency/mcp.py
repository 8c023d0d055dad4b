"""For tools of the MCP SDK whose results have a schema: `@once.tool(key="{order_id}", told=once_idempotency.mcp.result)`."""

from __future__ import annotations

from typing import Any

from ._words import Told


def result(told: Told) -> Any:
    """An error that the model reads, as a CallToolResult: a text alone would not fit the schema of the tool's results."""
    from mcp.types import CallToolResult

    return CallToolResult.model_validate(
        {"content": [{"type": "text", "text": str(told)}], "isError": True, "_meta": {"once/outcome": told.outcome}}
    )
