"""sdk_test.py ONCE: `once mcp` between servers and clients of the SDKs that people use, from PyPI and npm."""
import asyncio
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PYTHON = subprocess.run([ROOT / "tools/python-tools", "mcp"], stdout=subprocess.PIPE, check=True, text=True).stdout.strip()
if sys.executable != PYTHON:
    os.execv(PYTHON, [PYTHON, *sys.argv])
sys.path.insert(0, str(HERE.parent / "apps"))


def installed(*words):
    done = subprocess.run([ROOT / "tools/node-tools", *words], stdout=subprocess.PIPE, check=True, text=True)
    return pathlib.Path(done.stdout.strip()) / "node_modules"


NODE, MODULES = installed() / ".bin/node", installed("tests/mcp")

import fastmcp  # noqa: E402
from fastmcp.client.transports import StdioTransport  # noqa: E402
from mcp import Client, StdioServerParameters  # noqa: E402
from mcp_types import ElicitResult  # noqa: E402

import harness  # noqa: E402
from harness import wait_until  # noqa: E402


class SdkCase(harness.Case):
    def setUp(self):
        super().setUp()
        for script in (HERE / "sdks").glob("*"):
            shutil.copy(script, self.dir)
        self.path("node_modules").symlink_to(MODULES)

    def server(self, script):
        program = PYTHON if script.endswith(".py") else str(NODE)
        return [program, str(self.path(script)), str(self.path("ledger"))]

    def rules(self, script, keys, top=""):
        """The suggested file, with these choices: tool -> lines."""
        done = self.once("mcp", "--suggest", "--", *self.server(script))
        self.expect(done, 0)
        text = re.sub(r"^scope = .*$", f'scope = "shop"\n{top}', done.stdout.decode(), flags=re.M)
        for tool, lines in keys.items():
            self.assertIn(f'name = "{tool}"\n', text)
            text = text.replace(f'name = "{tool}"\n', f'name = "{tool}"\n{lines}\n')
        self.path("shop.toml").write_text(text)
        return ["mcp", "--config", str(self.path("shop.toml")), "--log", "none", "--", *self.server(script)]

    def connect(self, arguments, **options):
        return Client(StdioServerParameters(command=harness.PROGRAM, args=arguments, env=self.env, cwd=self.dir), **options)

    def by_node(self, sdk, order, arguments):
        done = subprocess.run([NODE, "client.mjs", sdk, order, harness.PROGRAM, *arguments], cwd=self.dir, env=self.env,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=harness.DEADLINE_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def refunded(self):
        path = self.path("ledger")
        return path.read_text().split() if path.exists() else []


def told(result):
    return [block.text for block in result.content], (result.meta or {}).get("once/outcome")


class Sdks(SdkCase):
    def check(self, script):
        """Each client refunds the same order, as an agent that lost the answer: the first one's call is the only one."""
        arguments = self.rules(script, {"refund": 'key = "order_id"'})
        found = []

        async def by_python(mode):
            async with self.connect(arguments, mode=mode) as client:
                tools = {tool.name: tool for tool in (await client.list_tools()).tools}
                self.assertTrue(tools["refund"].annotations.idempotent_hint)
                return told(await client.call_tool("refund", {"order_id": "17"}))

        async def by_fastmcp():
            async with fastmcp.Client(StdioTransport(harness.PROGRAM, arguments, env=self.env, cwd=str(self.dir))) as client:
                return told(await client.call_tool("refund", {"order_id": "17"}))

        for mode in ("auto", "legacy"):
            found.append(asyncio.run(by_python(mode)))
        found.append(asyncio.run(by_fastmcp()))
        versions = []
        for sdk in ("v1", "auto", "legacy"):
            done = self.by_node(sdk, "17", arguments)
            versions.append(done["version"])
            found.append(([block["text"] for block in done["result"]["content"]], done["result"].get("_meta", {}).get("once/outcome")))
        self.assertEqual(found[0], (["refunded 17"], None))
        for texts, outcome in found[1:]:
            self.assertEqual((texts[0], outcome), ("refunded 17", "replayed"))
        self.assertEqual(self.refunded(), ["17"])
        return versions

    def test_official_python(self):
        self.assertEqual(self.check("shop_mcp.py"), [None, "2026-07-28", "2025-11-25"])

    def test_fastmcp(self):
        self.check("shop_fastmcp.py")

    def test_typescript_v1(self):
        self.assertEqual(self.check("shop_v1.mjs"), [None, "2025-11-25", "2025-11-25"])

    def test_typescript_v2(self):
        self.assertEqual(self.check("shop_v2.mjs"), [None, "2026-07-28", "2025-11-25"])


class Cases(SdkCase):
    def test_a_tool_that_asks_the_user(self):
        """In 2026-07-28 by rounds, before by a request during the call. A decline is an error, and may be tried again."""
        arguments = self.rules("shop_mcp.py", {"asking_refund": 'key = "order_id"\non-error = "release"'})

        async def run(mode, order):
            asked = []

            async def answer(context, params):
                asked.append(params.message)
                return ElicitResult(action="accept", content={"sure": len(asked) > 1})

            async with self.connect(arguments, mode=mode, elicitation_callback=answer) as client:
                results = [await client.call_tool("asking_refund", {"order_id": order}) for _ in range(3)]
            self.assertEqual([bool(result.is_error) for result in results], [True, False, False])
            self.assertEqual([told(result)[1] for result in results], [None, None, "replayed"])
            self.assertEqual(len(asked), 2)

        for mode in ("auto", "legacy"):
            asyncio.run(run(mode, mode))
        self.assertEqual(self.refunded(), ["auto", "legacy"])

    def test_a_client_that_gives_up(self):
        """It stops waiting for a call that runs, and calls again: the result is that of the call that ran on."""
        arguments = self.rules("shop_mcp.py", {"slow_refund": 'key = "order_id"'})

        async def run(mode):
            gate = self.fifo(f"gate-{mode}")
            heard = asyncio.Event()

            async def note(done, total, message):
                heard.set()

            call = {"order_id": mode, "gate": str(gate)}
            async with self.connect(arguments, mode=mode) as client:
                first = asyncio.create_task(client.call_tool("slow_refund", call, progress_callback=note))
                await asyncio.wait_for(heard.wait(), harness.DEADLINE_S)
                await asyncio.to_thread(wait_until, lambda: mode in self.refunded(), "the call runs")
                first.cancel()
                again = asyncio.create_task(client.call_tool("slow_refund", call))
                await asyncio.to_thread(self.open_gate, gate.name)
                self.assertEqual(told(await again)[1], "replayed")

        for mode in ("auto", "legacy"):
            asyncio.run(run(mode))
        self.assertEqual(self.refunded(), ["auto", "legacy"])

    def test_a_tool_that_fails_after_it_has_acted(self):
        for rule, outcomes in (("store", [None, "replayed"]), ("hold", ["unknown", "unknown"])):
            self.path("ledger").unlink(missing_ok=True)
            arguments = self.rules("shop_mcp.py", {"failing_refund": f'key = "order_id"\non-error = "{rule}"'}, f'principal = "{rule}"')

            async def run():
                async with self.connect(arguments) as client:
                    return [told(await client.call_tool("failing_refund", {"order_id": "1"}))[1] for _ in range(2)]

            self.assertEqual(asyncio.run(run()), outcomes)
            self.assertEqual(len(self.refunded()), 1)

    def test_a_server_that_is_asked(self):
        """The outcome is unknown, and another tool of the server knows it."""
        rule = ('key = "order_id"\non-error = "hold"\nreconcile = "orders"\nreconcile-arguments = "`{}`"\n'
                'reconcile-done = "contains(result.structuredContent.result, arguments.order_id)"\nreconcile-settle = "0s"')
        arguments = self.rules("shop_mcp.py", {"failing_refund": rule, "refund": rule})

        async def run():
            async with self.connect(arguments) as client:
                return [told(await client.call_tool("failing_refund", {"order_id": order})) for order in ("1", "1", "2", "1")]

        told_of = asyncio.run(run())
        self.assertEqual([outcome for _, outcome in told_of], ["unknown", "replayed", "unknown", "replayed"])
        self.assertIn("was carried out", told_of[1][0][0])
        self.assertIn("1", told_of[1][0][1])
        self.assertEqual(self.refunded(), ["1", "2"])

    def test_the_usual_value_of_an_argument(self):
        arguments = self.rules("shop_mcp.py", {"refund": 'key = "order_id"'})

        async def run():
            async with self.connect(arguments) as client:
                return [told(await client.call_tool("refund", call))[1]
                        for call in ({"order_id": "1"}, {"order_id": "1", "cents": 0}, {"order_id": "1", "cents": 5})]

        self.assertEqual(asyncio.run(run()), [None, "replayed", "mismatch"])
        self.assertEqual(self.refunded(), ["1"])


if __name__ == "__main__":
    harness.main()
