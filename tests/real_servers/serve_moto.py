"""Serves moto on a free loopback port, prints the endpoint, ends when standard input does. See emulator.py."""
import logging
import sys

import moto.server

logging.getLogger("werkzeug").setLevel(logging.ERROR)  # A line for every request otherwise.
server = moto.server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("http://{}:{}".format(*server.get_host_and_port()), flush=True)
sys.stdin.read()
server.stop()
