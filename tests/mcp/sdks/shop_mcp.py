"""shop_mcp.py LEDGER: a shop's tools by the official Python SDK."""
import asyncio
import sys
from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp_types import ToolAnnotations
from pydantic import BaseModel

server = MCPServer("shop")


class Sure(BaseModel):
    sure: bool


def note(order_id):
    with open(sys.argv[1], "a") as ledger:
        ledger.write(order_id + "\n")


@server.tool()
def refund(order_id: str, cents: int = 0) -> str:
    """Refunds an order."""
    note(order_id)
    return f"refunded {order_id}"


@server.tool()
async def slow_refund(order_id: str, gate: str, context: Context) -> str:
    """Refunds an order, and reports its progress."""
    await context.report_progress(1, 2)
    note(order_id)
    await asyncio.to_thread(lambda: open(gate).read())
    return f"refunded {order_id}"


def ask() -> Elicit[Sure]:
    """By rounds in 2026-07-28, by a request during the call before."""
    return Elicit("Are you sure?", Sure)


@server.tool()
def asking_refund(order_id: str, answer: Annotated[Sure, Resolve(ask)]) -> str:
    """Refunds an order, if the user is sure."""
    if not answer.sure:
        raise ValueError("the user is not sure")
    note(order_id)
    return f"refunded {order_id}"


@server.tool()
def failing_refund(order_id: str) -> str:
    """Refunds an order, and fails afterwards."""
    note(order_id)
    raise RuntimeError("no receipt")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def orders() -> list[str]:
    """Lists what was refunded."""
    with open(sys.argv[1]) as ledger:
        return ledger.read().split()


server.run()
