"""Stands between a client and `once serve` on Unix sockets, sees each request, and loses what it is told to lose."""
import json
import pathlib
import re
import select
import socket
import threading


def word_of(line):
    """Of a request's first line: begin, renew, complete, fail, release, hold or step."""
    path = line.split(" ")[1]
    if path == "/v1/claims":
        return "begin"
    return "step" if "/steps/" in path else path.rsplit("/", 1)[1]


class Connection:
    """One side of it. Reads whole messages."""

    def __init__(self, sock):
        self.sock, self.buffer = sock, b""

    def message(self, other=None):
        """Its head and body, or None at its end. Ends as well when `other` hangs up meanwhile."""
        while True:
            head, found, rest = self.buffer.partition(b"\r\n\r\n")
            if found:
                length = int((re.search(rb"\r\nContent-Length: *(\d+)", head, re.I) or [0, 0])[1])
                if len(rest) >= length:
                    self.buffer = rest[length:]
                    return head, rest[:length]
            ready, _, _ = select.select([self.sock] + ([other.sock] if other else []), [], [])
            if self.sock not in ready and other and not other.sock.recv(1, socket.MSG_PEEK):
                return None
            if self.sock in ready:
                data = self.sock.recv(65536)
                if not data:
                    return None
                self.buffer += data


class CuttingProxy:
    """`seen` has the words of the requests that arrived, `refused` counts connections that were closed at once.

    `lose` is (n, "request" or "answer"): of the n-th request from now, counted from 1. `is_refusing` closes connections
    at once. `is_hanging` never answers. `stale` says that the next claim's answer reports no time left. Requests of the
    word `refuses` are answered by 400, and are not passed on.
    """

    def __init__(self, path, server):
        self.path, self.server = str(path), str(server)
        self.changed = threading.Condition()
        self.connections = set()
        self.reset()
        self.is_refusing = self.is_hanging = False
        self.refuses = None
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def reset(self):
        with self.changed:
            self.seen, self.refused, self.lose, self.stale = [], 0, None, False

    def close(self):
        self.listener.close()
        self.refuse(True)  # Their threads close them.
        pathlib.Path(self.path).unlink(missing_ok=True)

    def wait(self, condition, deadline_s):
        with self.changed:
            return self.changed.wait_for(condition, deadline_s)

    def refuse(self, is_refusing):
        """Also those that are open."""
        with self.changed:
            self.is_refusing = is_refusing
            for sock in self.connections if is_refusing else []:
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:  # It has just ended.
                    pass

    def _accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:  # Closed.
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock):
        upstream = socket.socket(socket.AF_UNIX)
        with self.changed:
            is_refusing = self.is_refusing
            if is_refusing:
                self._refused()
            else:
                self.connections |= {sock, upstream}
        try:
            if is_refusing:
                return
            try:
                upstream.connect(self.server)
            except OSError:  # The server is dead.
                with self.changed:
                    self._refused()
                return
            self._pass_on(Connection(sock), Connection(upstream))
        except OSError:  # One of them broke: the other one is closed.
            pass
        finally:
            with self.changed:
                self.connections -= {sock, upstream}
            sock.close()
            upstream.close()

    def _refused(self):
        self.refused += 1
        self.changed.notify_all()

    def _pass_on(self, client, server):
        while message := client.message():
            head, body = message
            with self.changed:
                word = word_of(head.split(b"\r\n")[0].decode())
                self.seen.append(word)
                lost = self.lose[1] if self.lose and self.lose[0] == len(self.seen) else None
                is_hanging = self.is_hanging
                self.changed.notify_all()
            if lost == "request":
                return
            if is_hanging:
                while client.sock.recv(65536):
                    pass
                return
            if word == self.refuses:
                body = b'{"type": "urn:once:problem:no-such-claim"}'
                client.sock.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                continue
            server.sock.sendall(head + b"\r\n\r\n" + body)
            answer = server.message(client)
            if answer is None:
                with self.changed:
                    self._refused()
                return
            if lost == "answer":
                return
            head, body = answer
            with self.changed:
                is_stale = self.stale and head.startswith(b"HTTP/1.1 201")
                self.stale = self.stale and not is_stale
            if is_stale:
                body = json.dumps({**json.loads(body), "valid_for_ms": 0}).encode()
                head = re.sub(rb"(?i)Content-Length: *\d+", b"Content-Length: %d" % len(body), head)
            client.sock.sendall(head + b"\r\n\r\n" + body)
