"""serve_moto.py ADDRESS: serves moto on a free port of it, prints the endpoint, ends when standard input does. See emulator.py."""
import logging
import sys
import threading

import moto.server
from moto.dynamodb.responses import DynamoHandler
from moto.sqs.models import Queue


def one_at_a_time(delete):
    """moto writes the list of messages anew for each that is deleted. So of two at one time, one came back."""

    def locked(queue, *arguments):
        with queue._messages_lock:  # noqa: SLF001: moto's own, for messages that are added
            return delete(queue, *arguments)

    return locked


Queue.delete_message = one_at_a_time(Queue.delete_message)

one_request = threading.Lock()


def one_after_another(act):
    """moto compares an item with the condition, and then writes it. So of two writes at one time, both were done."""

    def locked(handler):
        with one_request:
            return act(handler)

    return locked


DynamoHandler.call_action = one_after_another(DynamoHandler.call_action)

logging.getLogger("werkzeug").setLevel(logging.ERROR)  # A line for every request otherwise.
server = moto.server.ThreadedMotoServer(ip_address=sys.argv[1], port=0, verbose=False)
server.start()
print("http://{}:{}".format(*server.get_host_and_port()), flush=True)
sys.stdin.read()
server.stop()
