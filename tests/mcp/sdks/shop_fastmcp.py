"""shop_fastmcp.py LEDGER: a shop's tool by FastMCP."""
import sys

from fastmcp import FastMCP

server = FastMCP("shop")


@server.tool
def refund(order_id: str, cents: int = 0) -> str:
    """Refunds an order."""
    with open(sys.argv[1], "a") as ledger:
        ledger.write(order_id + "\n")
    return f"refunded {order_id}"


server.run(show_banner=False)
