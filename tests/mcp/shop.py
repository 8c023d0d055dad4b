"""shop.py LEDGER: a server of the Model Context Protocol, without an SDK, for tests. Each refund is a line of the ledger.

What a call does besides is in its arguments: `at` names a fifo that it reads before its answer, `dies`: "before" or
"after" the refund, `says`: an error. It serves 2025-11-25 with a handshake and 2026-07-28 without one. FAULTS in the
environment: a list of what it does wrong.
"""
import json
import os
import sys
import threading

ledger, faults = sys.argv[1], os.environ.get("FAULTS", "").split()
REFUND = {"type": "object", "required": ["order_id"],
          "properties": {"order_id": {"type": "string"}, "cents": {"type": "integer"}, "at": {"type": "string"},
                         "dies": {"type": "string"}, "says": {"type": "string"}, "echo": {"type": "string"}}}
tools = [{"name": "refund", "description": "Refunds an order.", "inputSchema": REFUND},
         {"name": "orders", "annotations": {"readOnlyHint": True}, "inputSchema": {"type": "object"}}]
if "many" in faults:
    tools += [{"name": f"tool{i}", "inputSchema": {"type": "object", "description": "x" * 100}} for i in range(1000)]
writing = threading.Lock()


def send(message):
    with writing:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def refund(arguments):
    if arguments.get("dies") == "before":
        os._exit(3)
    with open(ledger, "a") as lines:  # Appended in one write, as lines of other processes are.
        lines.write(arguments["order_id"] + "\n")
    if arguments.get("at"):
        with open(arguments["at"]) as gate:
            gate.read()
    if arguments.get("dies") == "after":
        os._exit(4)
    if arguments.get("says"):
        return {"content": [{"type": "text", "text": arguments["says"]}], "isError": True}
    return {"content": [{"type": "text", "text": f"refunded {arguments['order_id']}{arguments.get('echo', '')}"}]}


def serve(request):
    params = request.get("params", {})
    result = {}
    if request["method"] == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "shop", "version": "1"}}
    elif request["method"] == "tools/list":
        at = int(params.get("cursor", 0))
        result = {"tools": tools[at:at + 400]} | ({"nextCursor": str(at + 400)} if at + 400 < len(tools) else {})
    elif request["method"] == "tools/call":
        result = refund(params["arguments"]) if params["name"] == "refund" else {"content": [{"type": "text", "text": "none"}]}
    if params.get("_meta", {}).get("io.modelcontextprotocol/protocolVersion"):
        result = {"resultType": "complete", **result}
    send({"id": request["id"], "result": result})


if "greets" in faults:
    print("Starting the shop ...", flush=True)
if "floods" in faults:
    piece = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x" * 10_000}}) + "\n"
    sent = 0
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request and request["method"] != "resources/list":
            serve(request)
        elif "id" in request:
            while True:
                sys.stdout.write(piece)
                sys.stdout.flush()
                sent += len(piece)
                with open(f"{ledger}.sent", "w") as count:
                    count.write(str(sent))
if "deaf" in faults:  # It reads its tools' list, and then nothing.
    for _ in range(3):
        line = sys.stdin.buffer.raw.readline()
        if b'"id"' in line:
            serve(json.loads(line))
    threading.Event().wait()
for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        threading.Thread(target=serve, args=(request,), daemon=True).start()
