"""An agent whose model is a script, and whose tool charges a card. It retries as agents were reported to:

1. The first call takes longer than the agent waits. The model plans again: the same arguments under a new ID.
2. It asks for another sum for the same order.
3. The bank does not answer, so nobody knows whether it has charged. The model tries once more.

    pip install once-idempotency
    ONCE_STORE=sqlite:agent.db python agent.py    # The second time nothing is charged.

`@once.tool` stands below the decorator of a framework. Here is none, so that nothing else needs to be installed.
"""

import concurrent.futures
import json
import threading

from once_idempotency import default_once

once = default_once()
asked, answers = threading.Event(), threading.Event()  # The bank is asked, and it answers.


@once.tool(key="{order_id}", scope="charge", on_error={TimeoutError: "hold"})
def charge(order_id: str, cents: int) -> str:
    """Charge the card of an order."""
    with open("bank.log", "a") as bank:
        print(f"charged {order_id}: {cents}", file=bank)
    asked.set()
    answers.wait(60)
    if order_id == "order-18":
        raise TimeoutError("the bank does not answer")
    return f"charged {cents} cents"


MODEL = [
    {"order_id": "order-17", "cents": 4000},
    {"order_id": "order-17", "cents": 4000},
    {"order_id": "order-17", "cents": 9000},
    {"order_id": "order-18", "cents": 500},
    {"order_id": "order-18", "cents": 500},
]


def main() -> None:
    with concurrent.futures.ThreadPoolExecutor() as threads:
        for number, arguments in enumerate(MODEL, 1):
            called = threads.submit(charge, **arguments)
            if number == 1:  # The agent waits until the bank is asked, and no longer.
                called.add_done_callback(lambda _: asked.set())
                asked.wait()
            else:
                answers.set()
                concurrent.futures.wait([called])
            if not called.done():
                text = "error: the tool takes too long"
            else:
                text = f"error: {called.exception()}" if called.exception() else called.result()
            print(f"call_{number} charge({json.dumps(arguments)})\n{text}\n")


if __name__ == "__main__":
    main()
