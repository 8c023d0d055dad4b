"""Spans of the program's commands, as a collector gets them. What they are made of is in tests/engine and tests/tracing."""
import http.server
import json
import re
import signal
import threading
import urllib.request

import harness
from harness import Case

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(http.server.ThreadingHTTPServer):
    """It also is the service behind the proxy: it answers with the request's traceparent."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answers)
        self.spans = []
        self.status = 200
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = (self.headers.get("traceparent") or "").encode()
        status = 200
        if self.path == "/v1/traces":
            answer, status = b"{}", self.server.status
            for part in json.loads(body)["resourceSpans"]:
                self.server.spans += part["scopeSpans"][0]["spans"]
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


class Traces(Case):
    def setUp(self):
        super().setUp()
        self.collector = Collector()
        self.addCleanup(self.collector.server_close)
        self.addCleanup(self.collector.shutdown)
        self.env.update(OTEL_EXPORTER_OTLP_ENDPOINT=self.collector.url(), TRACEPARENT=CALLER)

    def spans(self):
        spans, self.collector.spans = self.collector.spans, []
        return spans

    def test_a_run_and_its_replay(self):
        command = ["run", "--key", "k", "--", "sh", "-c", "echo $TRACEPARENT; exit 3"]
        done = self.once(*command)
        self.expect(done, 3)
        work, call = self.spans()
        self.assertEqual((work["name"], call["name"]), ("once.work", "once.call"))
        self.assertEqual((call["traceId"], call["parentSpanId"]), (CALLER[3:35], CALLER[36:52]))
        self.assertEqual(work["parentSpanId"], call["spanId"])
        self.assertEqual(done.stdout.decode(), f"00-{work['traceId']}-{work['spanId']}-01\n")
        self.assertEqual(self.show("k")["span_id"], work["spanId"])
        self.expect(self.once(*command), 3, done.stdout)
        replay, = self.spans()
        self.assertEqual([(link["traceId"], link["spanId"]) for link in replay["links"]], [(work["traceId"], work["spanId"])])

    def test_a_collector_that_fails_changes_nothing(self):
        self.collector.status = 500
        self.expect(self.once("run", "--key", "k", "--", "sh", "-c", "exit 3"), 3)
        self.env["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:1"
        self.expect(self.once("run", "--key", "l", "--", "echo", "x"), 0, b"x\n")

    def test_a_wrong_url_is_refused_before_anything_runs(self):
        self.env["OTEL_EXPORTER_OTLP_ENDPOINT"] = "collector:4318"
        done = self.once("run", "--key", "k", "--", "touch", "ran")
        self.expect(done, 64, b"")
        self.assertIn(b"OTEL_EXPORTER_OTLP_ENDPOINT", done.stderr)
        self.assertFalse(self.path("ran").exists())

    def test_the_service_is_below_the_proxy(self):
        proxy = self.start("proxy", "--listen", "127.0.0.1:0", "--upstream", self.collector.url(), "--no-principal")
        for line in proxy.stderr:
            listening = re.search(rb"listening on port (\d+)", line)
            if listening:
                break
        request = urllib.request.Request(f"http://127.0.0.1:{int(listening[1])}/pay", b"x",
                                         {"Idempotency-Key": "k", "traceparent": CALLER})
        with urllib.request.urlopen(request, timeout=harness.DEADLINE_S) as answer:
            got = answer.read().decode()
        proxy.send_signal(signal.SIGTERM)
        proxy.communicate(timeout=harness.DEADLINE_S)
        self.assertEqual(proxy.returncode, 0)
        work, call = self.spans()
        self.assertEqual(got, f"00-{CALLER[3:35]}-{work['spanId']}-01")
        self.assertEqual((work["kind"], call["kind"]), (3, 2))
        self.assertEqual((call["parentSpanId"], work["parentSpanId"]), (CALLER[36:52], call["spanId"]))
        self.assertNotIn("once.scope", [attribute["key"] for attribute in call["attributes"]])


if __name__ == "__main__":
    harness.main()
