"""A TCP proxy on a free loopback port that cuts, holds and delays, for tests of a client's faults.

    with CuttingProxy(server.port) as proxy:
        proxy.cut(TO_CLIENT, messages=7)       # the next connection: closed after the server's seventh message
        proxy.cut(TO_SERVER, bytes=130)        # the one after it: the server gets 130 bytes and no more
        ...
        proxy.hold()                           # a partition: nothing passes, no connection is closed
        proxy.let_go()

A cut is for one connection: the first that is made after cut(). What it counted is in `proxy.connections`, so a test
first runs whole and then cuts at each message or byte in turn. A cut by messages knows PostgreSQL's framing (a byte,
then a length of four bytes that counts itself; without the byte at the start), which TLS would hide.

https://www.postgresql.org/docs/15/protocol-overview.html#PROTOCOL-MESSAGE-CONCEPTS
"""
import contextlib
import dataclasses
import socket
import struct
import threading

TO_SERVER = "to_server"
TO_CLIENT = "to_client"
SSL_REQUEST, GSS_REQUEST = 80877103, 80877104  # Answered by one byte without a length; then the start comes again.


class Framing:
    """Finds the ends of messages in what a client and a server say to each other."""

    def __init__(self):
        self._buffers = {TO_SERVER: b"", TO_CLIENT: b""}
        self._starting = True
        self._bare_answers = 0

    def ends(self, direction, data):
        """For each message that ends in this piece: its end's offset in the piece, and its type (b"" at the start)."""
        before = len(self._buffers[direction])
        buffer = self._buffers[direction] + data
        at = 0
        found = []
        while message := self._next(direction, buffer[at:]):
            length, kind = message
            at += length
            found.append((at - before, kind))
        self._buffers[direction] = buffer[at:]
        return found

    def _next(self, direction, buffer):
        if direction == TO_CLIENT and self._bare_answers and buffer:
            self._bare_answers -= 1
            return 1, b""
        bare = direction == TO_SERVER and self._starting
        head = 4 if bare else 5
        if len(buffer) < head:
            return None
        length = head - 4 + struct.unpack_from("!I", buffer, head - 4)[0]
        if len(buffer) < length:
            return None
        if not bare:
            return length, buffer[:1]
        if struct.unpack_from("!I", buffer, 4)[0] in (SSL_REQUEST, GSS_REQUEST):
            self._bare_answers += 1
        else:
            self._starting = False
        return length, b""


@dataclasses.dataclass
class Cut:
    direction: str
    bytes: int = None
    messages: int = None
    kind: bytes = None  # Counts messages of this type only: b"S" to the server is a Sync, b"C" to the client a completion.
    reset: bool = False  # RST in place of an orderly end, to both.
    hold: bool = False  # Stops passing on in both directions, and closes nothing: the peer waits for its time limit.


class Connection:
    """What has passed through, by direction."""

    def __init__(self, client, server, cut, framed):
        self.cut = cut
        self.threads = []
        self.ending = False
        self._sockets = (client, server)
        self._using = {TO_SERVER, TO_CLIENT}
        for each in self._sockets:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.bytes = {TO_SERVER: 0, TO_CLIENT: 0}
        self.messages = {TO_SERVER: [], TO_CLIENT: []}  # Their types.
        self.was_cut = False
        self.lock = threading.Lock()
        self.framing = Framing() if framed else None

    def pass_on(self, direction, data):
        """How much of the piece may pass, and whether the cut is there."""
        with self.lock:
            if self.was_cut:
                return 0, True
            allowed = len(data)
            ends = self.framing.ends(direction, data) if self.framing else []
            cut = self.cut if self.cut and self.cut.direction == direction else None
            if cut and cut.bytes is not None and self.bytes[direction] + allowed >= cut.bytes:
                allowed = cut.bytes - self.bytes[direction]
                self.was_cut = True
            counted = 0
            for end, kind in ends:
                if end > allowed:
                    break
                counted += 1
                self.messages[direction].append(kind)
                if cut and cut.messages is not None:
                    count = sum(cut.kind in (None, passed) for passed in self.messages[direction])
                    if count >= cut.messages:
                        allowed = end
                        self.was_cut = True
                        break
            self.bytes[direction] += allowed
            return allowed, self.was_cut

    def end(self, reset):
        """Wakes both threads; the second of them closes. A close under a thread that reads would reach nobody."""
        with self.lock:
            if not self._using:
                return
            self.ending = True
            for each in self._sockets:
                with contextlib.suppress(OSError):  # The peer may have been first.
                    if reset:
                        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    each.shutdown(socket.SHUT_RD if reset else socket.SHUT_RDWR)

    def wait(self):
        """Until both sides have closed. A client that has ended may have said its last words only to the proxy so far:
        what was counted is all of it from here on."""
        for thread in self.threads:
            thread.join()

    def let_go_of(self, direction):
        with self.lock:
            self._using.discard(direction)
            if not self._using:
                for each in self._sockets:
                    each.close()


class CuttingProxy:
    def __init__(self, server_port, framed=True):
        """framed: the server is PostgreSQL. Before another, cuts are by bytes only."""
        self._server_port = server_port
        self._framed = framed
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.connections = []
        self.delay_s = 0  # How much later each piece arrives.
        self._cuts = []
        self._lock = threading.Lock()
        self._open = threading.Event()
        self._open.set()
        self._refusing = False
        self._ended = threading.Event()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def cut(self, direction, **how):
        """Arms a cut for one connection that is made from now on; see Cut."""
        cut = Cut(direction, **how)
        if (cut.bytes is None) == (cut.messages is None):
            raise ValueError("a cut is after a number of bytes or of messages")
        if cut.messages is not None and not self._framed:
            raise ValueError("only PostgreSQL's messages are known")
        with self._lock:
            self._cuts.append(cut)

    def hold(self):
        """Nothing passes in either direction until let_go(), and new connections hear nothing."""
        self._open.clear()

    def let_go(self):
        self._open.set()

    def lead_to(self, server_port):
        """New connections go to another server, as when a name or a virtual address moves."""
        self._server_port = server_port

    def refuse(self, refusing=True):
        """Closes new connections at once."""
        self._refusing = refusing

    def cut_all(self):
        """Resets all connections that are open now."""
        with self._lock:
            connections = list(self.connections)
        for connection in connections:
            connection.end(reset=True)

    def close(self):
        self._ended.set()
        self._open.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        self.cut_all()
        for connection in self.connections:
            connection.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._server_port))
            except OSError:
                client.close()
                continue
            with self._lock:
                connection = Connection(client, server, self._cuts.pop(0) if self._cuts else None, self._framed)
                self.connections.append(connection)
            connection.threads = [
                threading.Thread(target=self._pass, args=(connection, *way), daemon=True)
                for way in ((TO_SERVER, client, server), (TO_CLIENT, server, client))
            ]
            for thread in connection.threads:
                thread.start()

    def _pass(self, connection, direction, source, target):
        try:
            while data := source.recv(1 << 16):
                self._ended.wait(self.delay_s)
                self._open.wait()
                if connection.ending:
                    return  # What was held is lost.
                allowed, cut = connection.pass_on(direction, data)
                target.sendall(data[:allowed])
                if cut and connection.cut.hold:
                    self._ended.wait()
                if cut:
                    connection.end(connection.cut.reset)
                    return
            self._open.wait()
            if not connection.ending:
                target.shutdown(socket.SHUT_WR)
        except OSError:
            connection.end(reset=True)
        finally:
            connection.let_go_of(direction)
