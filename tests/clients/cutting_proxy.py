"""Stands between a client and `once serve`, sees each request, and loses what it is told to lose."""
import json
import pathlib
import re
import select
import socket
import ssl
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
            others = [other] if other else []
            ready = {one.sock for one in (self, *others) if one.is_decrypted()}
            if not ready:
                ready = set(select.select([one.sock for one in (self, *others)], [], [])[0])
            for one in others:  # It waits for its answer: all that it can send is its end.
                if one.sock in ready and not one.receive():
                    return None
            if self.sock in ready and not self.receive():
                return None

    def is_decrypted(self):
        """Whether TLS has bytes that select() does not see."""
        return isinstance(self.sock, ssl.SSLSocket) and self.sock.pending() > 0

    def receive(self):
        """Whether it goes on. What is readable may be a message of TLS itself, so it does not wait for more."""
        self.sock.setblocking(False)
        try:
            data = self.sock.recv(65536)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        finally:
            self.sock.setblocking(True)
        self.buffer += data
        return bool(data)


class CuttingProxy:
    """`seen` has the words of the requests that arrived, `refused` counts connections that were closed at once.

    `lose` is (n, "request", "answer" or "half of the answer"): of the n-th request from now, counted from 1.
    `is_refusing` closes connections at once. `is_hanging` never answers. `stale` says that the next claim's answer reports
    no time left. Requests of the word `refuses` are answered by 400, and are not passed on. `instead` is (n, status): so
    many requests are answered as a gateway does, whose server is away, and a redirection leads back here. `unframed` says
    that the next answer has no length, and is cut.

    `path` is of its Unix socket, `server` the path of the server's. With `tls`, contexts for its own side and the
    server's, both are TLS: `port` is its own then, at `host`, and `server` the server's.

    `swap` is (n, m): requests about the n-th claim, counted from 1, are sent with the ID of the m-th; 0 is none.
    """

    def __init__(self, path, server, tls=None, host="127.0.0.1"):
        self.path, self.server, self.tls, self.host = str(path), server, tls, host
        self.changed = threading.Condition()
        self.connections = set()
        self.reset()
        self.is_refusing = self.is_hanging = False
        self.refuses = None
        self.family = socket.AF_INET if tls else socket.AF_UNIX
        self.listener = socket.socket(socket.AF_INET6 if ":" in host else self.family)
        self.listener.bind((host, 0) if tls else self.path)
        self.listener.listen(64)
        self.port = self.listener.getsockname()[1] if tls else None
        threading.Thread(target=self._accept, daemon=True).start()

    def reset(self):
        with self.changed:
            self.seen, self.refused, self.lose, self.stale = [], 0, None, False
            self.claims, self.swap = [], None
            self.instead, self.unframed = (0, None), False

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
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)  # Not that of TLS: another thread uses it.
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
        upstream = socket.socket(self.family)
        with self.changed:
            is_refusing = self.is_refusing
            if is_refusing:
                self._refused()
            else:
                self.connections |= {sock, upstream}
        try:
            if is_refusing:
                return
            if self.tls:
                sock = self._encrypted(sock, lambda: self.tls[0].wrap_socket(sock, server_side=True))
            try:
                upstream.connect(("127.0.0.1", self.server) if self.tls else str(self.server))
                if self.tls:
                    upstream = self._encrypted(upstream, lambda: self.tls[1].wrap_socket(upstream, server_hostname="localhost"))
            except OSError:  # The server is dead.
                with self.changed:
                    self._refused()
                return
            self._pass_on(Connection(sock), Connection(upstream))
        except OSError:  # One of them broke, or does not accept a certificate: the other one is closed.
            pass
        finally:
            with self.changed:
                self.connections -= {sock, upstream}
            sock.close()
            upstream.close()

    def _encrypted(self, sock, wrap):
        """It takes the place of the socket."""
        try:
            made = wrap()
        finally:
            with self.changed:
                self.connections.discard(sock)
        with self.changed:
            self.connections.add(made)
            if self.is_refusing:
                raise OSError("refused meanwhile")
        return made

    def _swapped(self, head):
        """With another claim's ID, as `swap` says."""
        for number, claim in enumerate(self.claims, 1):
            if self.swap and number == self.swap[0] and f"/v1/claims/{claim}/".encode() in head:
                # One of nobody has another owner, which follows the version of two digits.
                other = self.claims[self.swap[1] - 1] if self.swap[1] else claim[:2] + "00" * 16 + claim[34:]
                return head.replace(claim.encode(), other.encode(), 1)
        return head

    def _instead(self):
        count, status = self.instead
        if count == 0:
            return None
        self.instead = count - 1, status
        address = f"[{self.host}]" if ":" in self.host else self.host
        location = f"Location: https://{address}:{self.port}/v1/claims\r\n" if 300 <= status < 400 and self.tls else ""
        return f"HTTP/1.1 {status} No\r\n{location}Content-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>".encode()

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
                head = self._swapped(head)
                instead = self._instead()
                self.changed.notify_all()
            if lost == "request":
                return
            if is_hanging:
                while client.sock.recv(65536):
                    pass
                return
            if instead:
                client.sock.sendall(instead)
                continue
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
            if lost:
                whole = head + b"\r\n\r\n" + body
                client.sock.sendall(whole[:len(whole) - (len(body) + 1) // 2])
                return
            if self.unframed:
                self.unframed = False
                head = re.sub(rb"(?i)\r\nContent-Length: *\d+", b"\r\nConnection: close", head)
                client.sock.sendall(head + b"\r\n\r\n" + body[:len(body) // 2])
                return
            with self.changed:
                is_stale = self.stale and head.startswith(b"HTTP/1.1 201")
                self.stale = self.stale and not is_stale
                if head.startswith(b"HTTP/1.1 201"):
                    self.claims.append(json.loads(body)["claim"])
            if is_stale:
                body = json.dumps({**json.loads(body), "valid_for_ms": 0}).encode()
                head = re.sub(rb"(?i)Content-Length: *\d+", b"Content-Length: %d" % len(body), head)
            client.sock.sendall(head + b"\r\n\r\n" + body)
