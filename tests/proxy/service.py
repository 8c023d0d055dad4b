"""A service that charges, and `once proxy` in front of it, for the tests of the built program."""
import collections
import http.server
import json
import pathlib
import socket
import socketserver
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "apps"))
import harness  # noqa: E402
import metrics_page  # noqa: E402, F401
from harness import Case, wait_until  # noqa: E402, F401


class Service(http.server.ThreadingHTTPServer):
    """Charges, and keeps books on it.

    hold          charges wait for `go` with their answer
    honours_keys  a second charge with a key is none, and gets the answer of the first
    status, says  of the next answers: no status means that it breaks off; headers to add
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, honours_keys=False, port=0):
        self.ledger = []  # The body of each charge, in their order.
        self.effects = collections.Counter()  # Charges by key, as it was sent.
        self.heads = []  # The headers of each POST.
        self.status, self.says = 201, {}
        self.hold = False
        self.go = threading.Event()
        self.honours_keys = honours_keys
        self.books = threading.Lock()
        self.answers = {}
        self.paths = []  # The target of each POST.
        self.bind(port)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def bind(self, port):
        super().__init__(("127.0.0.1", port), Handler)
        self.port = self.server_address[1]

    def answer(self, key, body):
        """Status and body; no status: it breaks off."""
        charged = self.charge(key, body)
        if self.hold:
            self.go.wait(harness.DEADLINE_S)
        return self.status, charged

    def charge(self, key, body):
        with self.books:
            if self.honours_keys and key in self.answers:
                return self.answers[key]
            self.ledger.append(body)
            self.effects[key] += 1
            self.answers[key] = f"charge {len(self.ledger)}\n".encode()
            return self.answers[key]

    def end(self):
        self.go.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request, address):
        if not isinstance(sys.exc_info()[1], OSError):  # That is what it sees of a proxy that is killed.
            super().handle_error(request, address)


class UnixService(Service):
    """The same on a Unix socket."""

    address_family = socket.AF_UNIX

    def bind(self, port):
        http.server.ThreadingHTTPServer.__init__(self, port, UnixHandler)
        self.port = port

    def server_bind(self):  # That of HTTPServer looks up a name.
        socketserver.TCPServer.server_bind(self)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # An answer goes out in one piece.

    def do_POST(self):
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        if len(body) != length:  # Half a request is none.
            self.close_connection = True
            return
        self.server.heads.append(self.headers)
        self.server.paths.append(self.path)
        status, answer = self.server.answer(self.headers["Idempotency-Key"], body.decode("utf-8", "replace"))
        if status is None:
            self.close_connection = True
        else:
            self.give(status, answer)

    def do_GET(self):
        """The keys that were charged, a line each."""
        self.give(200, "".join(f"{key}\n" for key in list(self.server.effects)).encode())

    def give(self, status, answer):
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        for name, value in self.server.says.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


class UnixHandler(Handler):
    disable_nagle_algorithm = False  # An option of TCP.


class ProxyCase(Case):
    def setUp(self):
        super().setUp()
        self.service = self.serve(Service())
        self.port = None

    def serve(self, service):
        self.addCleanup(service.end)
        return service

    def start_proxy(self, *arguments, **options):
        """Starts the program in front of self.service, and waits until it listens: (process, port)."""
        return self.start_alone("--listen", "127.0.0.1:0", "--upstream", f"http://127.0.0.1:{self.service.port}",
                                "--no-principal", *arguments, **options)

    def start_alone(self, *arguments, **options):
        """The same with these flags and no others."""
        if "--log" not in arguments:
            arguments = (*arguments, "--log", "none")  # Most tests read standard error line by line.
        if "--watch-interval" not in arguments:
            arguments = (*arguments, "--watch-interval", "off")  # A busy machine may be slow between a file and SIGHUP.
        process = self.start("proxy", *arguments, **options)
        line = process.stderr.readline().decode()
        if line.startswith("{"):
            [line] = [f"once: {note['why']}" for note in self.json_log(line)]
        self.assertRegex(line, r"^once: listening on (port \d+|unix:/\S+), ")
        port = line.split("port ")[1].split(",")[0] if " port " in line else 0
        return process, int(port)

    def json_log(self, text):
        """The lines of a JSON log. Each has the time and a level."""
        lines = [json.loads(line) for line in text.splitlines()]
        for line in lines:
            self.assertRegex(line["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
            self.assertIn(line["level"], ("err", "warning", "notice", "info", "debug"))
        return lines

    def proxy(self, *arguments, **options):
        """The same with an access log, for self.curl()."""
        process, self.port = self.start_proxy("--access-log", self.path("access.log"), *arguments, **options)
        return process

    def curl_command(self, key, body, *arguments):
        headers = ["-H", f"Idempotency-Key: {key}"] if key else []
        return ["curl", "-sS", "-i", "--max-time", "60", *headers, "-d", body, *arguments,
                f"http://127.0.0.1:{self.port}/charges?secret=query"]

    def curl(self, key, body="cents=500", *arguments):
        done = self.until_logged(lambda: subprocess.run(self.curl_command(key, body, *arguments), stdout=subprocess.PIPE,
                                                        check=True, timeout=90))
        return done.stdout.decode().replace("\r\n", "\n")

    def until_logged(self, ask):
        """What asking gives, when it is in the access log too, which comes after the answer: so the log has the order of
        these calls."""
        def lines():
            log = self.path("access.log")
            return log.read_text().count("\n") if log.exists() else 0
        before = lines()
        answer = ask()
        wait_until(lambda: lines() > before, "the request is in the access log")
        return answer

    def log(self, count):
        def lines():
            text = self.path("access.log").read_text()
            return text.splitlines() if text.count("\n") >= count else None
        return [json.loads(line) for line in wait_until(lines, f"{count} lines in the access log")]
