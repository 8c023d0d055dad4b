"""Carries the protocol out on sockets that block, and renews claims in one thread for each client and process."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple, TypeVar

from . import _address, _protocol
from ._clock import uptime
from ._wire import MAX_HEAD_BYTES, Pause, Response, Send, Unreachable, parse_head

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")
MAX_IDLE = 16  # Connections that are kept.
MAX_IDLE_S = 60.0  # How long. What forgets a silent connection between here and the server does it later.


class Connection:
    def __init__(self, address: _address.Direct, until: float):
        self.address = address
        self.shown: Optional[str] = None  # The token of the last request.
        self.buffer = b""
        trust: Optional[ssl.SSLContext] = None
        try:
            if isinstance(address, _address.Tcp):
                trust = None if address.trust is None else address.trust.context()
                self.socket = self._connect(address, until)
            else:
                self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except (OSError, ValueError) as error:  # Too many open files, perhaps for a moment only. Or no name of a host.
            raise address.failed(error) from error
        try:
            self._limit(until)
            if isinstance(address, _address.Tcp):
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                if trust is not None:
                    self.socket = trust.wrap_socket(self.socket, server_hostname=address.host)
            else:
                assert isinstance(address, _address.Unix)
                self.socket.connect(address.path)
                address.require_trusted(self.socket)
        except (OSError, ValueError) as error:
            self.socket.close()
            raise address.failed(error) from error
        except Unreachable:
            self.socket.close()
            raise

    def close(self) -> None:
        self.socket.close()

    @classmethod
    def _connect(cls, address: _address.Tcp, until: float) -> socket.socket:
        """A name may have several addresses, and each gets its share of the time: one may lead to a dead host."""
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        for number, (family, kind, protocol, _, where) in enumerate(found, 1):
            share = cls._left(until) / (len(found) + 1 - number)
            opened = socket.socket(family, kind, protocol)
            try:
                opened.settimeout(share)
                opened.connect(where)
                return opened
            except OSError:
                opened.close()
                if number == len(found):
                    raise
        raise OSError("the name has no address")

    @staticmethod
    def _left(until: float) -> float:
        left = until - uptime()
        if left <= 0:
            raise Unreachable("the server did not answer in time")
        return left

    def _limit(self, until: float) -> None:
        self.socket.settimeout(self._left(until))

    def _receive(self, until: float) -> None:
        self._limit(until)
        data = self.socket.recv(65536)
        if not data:
            raise Unreachable("the server closed the connection")
        self.buffer += data

    def exchange(self, send: Send, until: float) -> Tuple[Response, bool]:
        """The answer, and whether the connection can be used again."""
        try:
            self._limit(until)
            self.shown = self.address.shown()
            self.socket.sendall(send.encode(self.address.authority, self.shown))
            while (end := self.buffer.find(b"\r\n\r\n")) < 0:
                if len(self.buffer) > MAX_HEAD_BYTES:
                    raise Unreachable("the answer's head is too large")
                self._receive(until)
            status, headers, length, again = parse_head(self.buffer[:end + 4])
            self.buffer = self.buffer[end + 4:]
            while len(self.buffer) < length:
                self._receive(until)
        except socket.timeout as error:
            raise Unreachable("the server did not answer in time") from error
        except OSError as error:
            raise self.address.broken(error) from error
        body, self.buffer = self.buffer[:length], self.buffer[length:]
        return self.address.response(status, headers, body), again and not self.buffer


class Transport:
    """Connections to one server, for many threads. A child process gets none of its parent's."""

    def __init__(self, where: _address.Where):
        self.where = where
        self.idle: List[Tuple[float, Connection]] = []  # Since when, and which.
        self.reset()

    def reset(self) -> None:
        """In a child process: the parent's connections and threads are not its own."""
        for _, connection in self.idle:
            connection.close()  # Here only: the parent's descriptors are its own.
        self.idle = []
        self.lock = threading.Lock()
        self.claims: Dict[_protocol.Granted, Tuple[float, float]] = {}  # When to renew each, and its timeout.
        self.changed = threading.Condition(threading.Lock())
        self.thread: Optional[threading.Thread] = None

    def close(self) -> None:
        with self.lock:
            idle, self.idle = self.idle, []
        for _, connection in idle:
            connection.close()

    def _kept(self) -> Optional[Connection]:
        with self.lock:
            since, connection = self.idle.pop() if self.idle else (0.0, None)
        if connection is not None and uptime() - since > MAX_IDLE_S:
            connection.close()
            self.close()  # The others were idle for longer.
            return None
        return connection

    @staticmethod
    def _start(address: _address.OnDemand, until: float) -> _address.Unix:
        with _address.Starting(address) as starting:
            # Popen.wait() with a timeout sleeps longer each time, up to 50 ms: a first call took twice as long.
            give_up = max(until, uptime() + _address.START_TIMEOUT_S)
            while (code := starting.process.poll()) is None:
                if uptime() >= give_up:
                    raise starting.late()
                time.sleep(0.001)
            return starting.socket(code)

    def _connect(self, until: float) -> Connection:
        address = self.where.address()
        if isinstance(address, _address.OnDemand):
            return Connection(self._start(address, until), until)
        return Connection(address, until)

    def send(self, send: Send) -> Response:
        until = uptime() + send.timeout_s
        connection = self._kept()
        is_kept = connection is not None
        while True:
            if connection is None:
                connection = self._connect(until)
            keep = False
            try:
                response, keep = connection.exchange(send, until)
                if not connection.address.is_refused(response, connection.shown) or uptime() >= until:
                    return response
            except Unreachable:
                if not is_kept or uptime() >= until:
                    raise
                is_kept = False  # The server may have closed it while it was idle. Every request may be repeated.
            finally:
                if keep:
                    with self.lock:
                        keep = len(self.idle) < MAX_IDLE
                        if keep:
                            self.idle.append((uptime(), connection))
                if not keep:
                    connection.close()
            connection = None

    def run(self, protocol: _protocol.Protocol[T]) -> T:
        try:
            effect = next(protocol)
            while True:
                if isinstance(effect, Pause):
                    time.sleep(effect.seconds)
                    effect = next(protocol)
                    continue
                try:
                    response = self.send(effect)
                except Unreachable as error:
                    effect = protocol.throw(error)
                else:
                    effect = protocol.send(response)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            protocol.close()

    # ---- signs of life

    def add(self, claim: _protocol.Granted, timeout_s: float) -> None:
        with self.changed:
            self.claims[claim] = uptime() + claim.lease_s / 3, timeout_s
            if self.thread is None or not self.thread.is_alive():
                self.thread = threading.Thread(target=self._renew, name="once renewals", daemon=True)
                self.thread.start()
            self.changed.notify()

    def remove(self, claim: _protocol.Granted) -> None:
        with self.changed:
            self.claims.pop(claim, None)
            self.changed.notify()

    def _renew(self) -> None:
        own = self.changed
        while True:
            with own:
                while True:
                    if not self.claims:
                        if not own.wait(10.0) and not self.claims:
                            self.thread = None
                            return
                        continue
                    claim, (due, timeout_s) = min(self.claims.items(), key=lambda item: item[1])
                    left = due - uptime()
                    if left <= 0:
                        break
                    own.wait(left)
            following = self.run(_protocol.renewal(claim, timeout_s))
            with own:
                if claim in self.claims:
                    if following is None:
                        del self.claims[claim]
                    else:
                        self.claims[claim] = uptime() + following, timeout_s
