"""Carries the protocol out in asyncio, without a thread: connections and renewals belong to the running loop."""

from __future__ import annotations

import asyncio
import socket
import weakref
from typing import Any, Coroutine, List, Optional, Set, Tuple, TypeVar

from . import _address, _protocol
from ._blocking import MAX_IDLE_S
from ._clock import uptime
from ._wire import MAX_HEAD_BYTES, Pause, Response, Send, Unreachable, parse_head

T = TypeVar("T")
MAX_IDLE = 16  # Connections that are kept for each loop.
NEXT_ADDRESS_S = 0.25  # Between attempts where a name has several: one may lead to a dead host.


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: _address.Direct):
        self.reader, self.writer, self.address = reader, writer, address
        self.shown: Optional[str] = None  # The token of the last request.
        self.is_late = False
        self.idle_since = 0.0

    @classmethod
    async def open(cls, address: _address.Direct, until: float) -> "Connection":
        opening: Coroutine[Any, Any, Tuple[asyncio.StreamReader, asyncio.StreamWriter]]
        if isinstance(address, _address.Tcp):
            trust = None if address.trust is None else address.trust.context()
            opening = asyncio.open_connection(
                address.host, address.port, limit=MAX_HEAD_BYTES, ssl=trust, happy_eyeballs_delay=NEXT_ADDRESS_S)
        else:
            assert isinstance(address, _address.Unix)
            opening = asyncio.open_unix_connection(address.path, limit=MAX_HEAD_BYTES)
        task = asyncio.ensure_future(opening)
        try:
            await asyncio.wait({task}, timeout=max(until - uptime(), 0))
            if not task.done():
                raise Unreachable("the server did not accept a connection in time")
            reader, writer = task.result()
            connected = writer.get_extra_info("socket")
            if connected is None:
                raise reader.exception() or OSError("the server closed it at once")
            try:
                if isinstance(address, _address.Unix):
                    address.require_trusted(connected)
                else:
                    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            except (Unreachable, OSError):
                writer.close()
                raise
        except (OSError, ValueError) as error:
            raise address.failed(error) from error
        finally:
            task.cancel()
        return cls(reader, writer, address)

    def close(self) -> None:
        if isinstance(self.address, _address.Tcp):
            self.writer.transport.abort()  # To say good-bye in TLS takes longer than a loop may run.
        else:
            self.writer.close()

    def _expire(self) -> None:
        self.is_late = True
        self.writer.transport.abort()

    async def exchange(self, send: Send, until: float) -> Tuple[Response, bool]:
        # A timer that breaks the connection: asyncio.wait_for() costs a task, and may swallow a cancellation.
        timer = asyncio.get_running_loop().call_later(max(until - uptime(), 0), self._expire)
        try:
            self.shown = self.address.shown()
            self.writer.write(send.encode(self.address.authority, self.shown))
            await self.writer.drain()
            head = await self.reader.readuntil(b"\r\n\r\n")
            status, headers, length, again = parse_head(head)
            body = await self.reader.readexactly(length)
        except asyncio.LimitOverrunError as error:
            raise Unreachable("the answer's head is too large") from error
        except (asyncio.IncompleteReadError, OSError) as error:
            raise (Unreachable("the server did not answer in time") if self.is_late else self.address.broken(error)) from error
        finally:
            timer.cancel()
        return self.address.response(status, headers, body), again and not self.is_late


class Transport:
    """Connections to one server, for each loop its own. A child process gets none of its parent's."""

    def __init__(self, where: _address.Where):
        self.where = where
        self.reset()

    def reset(self) -> None:
        self.pools: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, List[Connection]]" = weakref.WeakKeyDictionary()
        self.tasks: Set["asyncio.Task[Any]"] = set()

    def renewed(self, granted: _protocol.Granted, timeout_s: float) -> Renewed:
        return Renewed(self, granted, timeout_s)

    def close(self) -> None:
        """Those of the running loop."""
        for connection in self.pools.pop(asyncio.get_running_loop(), []):
            connection.close()

    @staticmethod
    async def _start(address: _address.OnDemand, until: float) -> _address.Unix:
        # asyncio's own way waits for a child in a thread, before Python 3.12.
        with _address.Starting(address) as starting:
            give_up = max(until, uptime() + _address.START_TIMEOUT_S)
            while (code := starting.process.poll()) is None:
                if uptime() >= give_up:
                    raise starting.late()
                await asyncio.sleep(0.002)
            return starting.socket(code)

    async def _connect(self, until: float) -> Connection:
        address = self.where.address()
        if isinstance(address, _address.OnDemand):
            return await Connection.open(await self._start(address, until), until)
        return await Connection.open(address, until)

    async def send(self, send: Send) -> Response:
        until = uptime() + send.timeout_s
        pool = self.pools.setdefault(asyncio.get_running_loop(), [])
        connection = pool.pop() if pool else None
        if connection is not None and uptime() - connection.idle_since > MAX_IDLE_S:
            for one in (connection, *pool):  # The others were idle for longer.
                one.close()
            pool.clear()
            connection = None
        is_kept = connection is not None
        while True:
            if connection is None:
                connection = await self._connect(until)
            keep = False
            try:
                response, keep = await connection.exchange(send, until)
                if not connection.address.is_refused(response, connection.shown) or uptime() >= until:
                    return response
            except Unreachable:
                if not is_kept or uptime() >= until:
                    raise
                is_kept = False  # The server may have closed it while it was idle. Every request may be repeated.
            finally:
                if keep and len(pool) < MAX_IDLE:
                    connection.idle_since = uptime()
                    pool.append(connection)
                else:
                    connection.close()
            connection = None

    async def run(self, protocol: _protocol.Protocol[T]) -> T:
        try:
            effect = next(protocol)
            while True:
                if isinstance(effect, Pause):
                    await asyncio.sleep(effect.seconds)
                    effect = next(protocol)
                    continue
                try:
                    response = await self.send(effect)
                except Unreachable as error:
                    effect = protocol.throw(error)
                else:
                    effect = protocol.send(response)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            protocol.close()

    async def run_to_its_end(self, protocol: _protocol.Protocol[T]) -> T:
        """Even if the caller is cancelled meanwhile: a finish that the work has earned."""
        task = asyncio.ensure_future(self.run(protocol))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return await asyncio.shield(task)


class Renewed:
    """A claim that is kept alive. No task waits for the next renewal: it would be left over where a loop ends early."""

    def __init__(self, transport: Transport, granted: _protocol.Granted, timeout_s: float):
        self.transport, self.granted, self.timeout_s = transport, granted, timeout_s
        self.timer: Optional[asyncio.TimerHandle] = None
        self.task: Optional["asyncio.Task[None]"] = None

    def start(self) -> None:
        self._after(self.granted.lease_s / 3)

    def _after(self, seconds: float) -> None:
        self.timer = asyncio.get_running_loop().call_later(seconds, self._begin)

    def _begin(self) -> None:
        self.task = asyncio.ensure_future(self._renew())

    async def _renew(self) -> None:
        following = await self.transport.run(_protocol.renewal(self.granted, self.timeout_s))
        self.task = None
        if following is not None and self.timer is not None:
            self._after(following)

    def stop(self) -> None:
        for one in (self.timer, self.task):
            if one is not None:
                one.cancel()
        self.timer = self.task = None
