"""A shop on FastAPI and Celery. An order that is posted twice is charged once, and its mail is sent once, however often
the queue delivers the task.

    pip install once-idempotency fastapi uvicorn 'celery[redis]'
    uvicorn shop:app --port 8000
    celery --app shop:tasks worker
    curl localhost:8000/orders -H 'X-Api-Key: alice' -H 'Idempotency-Key: order-17' --json '{"id": "17", "cents": 4000}'

ONCE_STORE names the store; for several hosts it is PostgreSQL or DynamoDB.
"""

import os

from celery import Celery
from fastapi import FastAPI
from once_idempotency import Once
from once_idempotency.asgi import OnceMiddleware
from once_idempotency.celery import once_task
from pydantic import BaseModel

once = Once(os.environ.get("ONCE_STORE", "sqlite:shop.db"))
tasks = Celery("shop", broker=os.environ.get("CELERY_BROKER", "redis://localhost"))
app = FastAPI()
# In production take the client from its verified token: whoever knows another's header gets that one's answers.
app.add_middleware(OnceMiddleware, once=once, principal="X-Api-Key")


class Order(BaseModel):
    id: str
    cents: int


def act(line: str) -> None:
    """What must not happen twice: a call to the bank, a mail."""
    with open("shop.log", "a") as log:
        log.write(f"{line}\n")


@once_task(tasks, once, key="{order_id}", scope="mail", task={"name": "mail"})
def mail(order_id: str) -> None:
    act(f"mailed the receipt of order {order_id}")


@app.post("/orders", status_code=201)
def place(order: Order) -> dict:
    act(f"charged order {order.id}: {order.cents}")
    mail.delay(order.id)
    return {"order": order.id, "receipt": f"r-{order.id}"}
