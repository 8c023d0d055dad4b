"""charges.py BANK PORT, behind `once proxy --service-finish`: POST /charges writes a row, once for each Idempotency-Key.
The row and the response to store commit together in PostgreSQL, whatever is killed, lost or taken over meanwhile."""
import http.server
import json
import sys

import psycopg

BANK, PORT = sys.argv[1], int(sys.argv[2])


# [charge]
def stored_form(status, content_type, body):
    """A response as `once` keeps it: docs/http.md says more."""
    return f"once-http/1 {status} body {len(body)}\nContent-Type: {content_type}\n\n".encode() + body


class Charges(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with psycopg.connect(BANK) as connection:  # Commits at its end, or rolls back.
            [charge] = connection.execute("INSERT INTO charges (order_id, cents) VALUES (%s, %s) RETURNING id",
                                          (order["order"], order["cents"])).fetchone()
            body = json.dumps({"charge": charge}, separators=(",", ":")).encode()
            connection.execute("SELECT once.finish_or_raise(%s, %s, %s, 'application/vnd.once.http', '24 hours')",
                               (self.headers["Once-Stored-Key"], self.headers["Once-Owner"],
                                stored_form(201, "application/json", body)))
        self.send_response(201)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
# [/charge]


server = http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Charges)
print("listening on", server.server_port, flush=True)
server.serve_forever()
