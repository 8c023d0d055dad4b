"""node_agents_test.py ONCE: once.tool() of the Node package in the frameworks of agents, and with their types."""
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/apps"))

import harness  # noqa: E402

MODULES = subprocess.run([ROOT / "tools/node-tools", "tests/clients/agents"], stdout=subprocess.PIPE, check=True, text=True).stdout.strip()
USE = """
import { Once, type Told } from 'once-idempotency';
import { result } from 'once-idempotency/mcp';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { tool as openai, type RunContext } from '@openai/agents';
import { tool as langchain } from '@langchain/core/tools';
import { betaTool } from '@anthropic-ai/sdk/helpers/beta/json-schema';
import { z } from 'zod';

const once = new Once('sqlite:tools.db');
const schema = { orderId: z.string(), cents: z.number() };
const refund = once.tool(async ({ orderId }: { orderId: string; cents: number }) => `refunded ${orderId}`, { name: 'refund', key: 'orderId' });
const typed: (args: { orderId: string; cents: number }) => Promise<string> = refund;
const counted: (args: { n: number }) => Promise<number | { words: string }> =
  once.tool((args: { n: number }) => args.n, { name: 'count', key: (args) => args.n, told: (told: Told) => ({ words: told.text }) });
new McpServer({ name: 'shop', version: '1' }).registerTool('refund', { inputSchema: schema },
  once.tool(async ({ orderId }: { orderId: string }) => ({ content: [{ type: 'text' as const, text: orderId }] }), { name: 'refund', key: ['orderId'], told: result }));
openai({ name: 'refund', description: '', parameters: z.object(schema), execute: refund });
openai({ name: 'mail', description: '', parameters: z.object(schema), execute: once.tool(
  async (args: { orderId: string }, context?: RunContext<unknown>) => args.orderId, { name: 'mail', run: (args, context) => (context?.context as { thread: string }).thread }) });
langchain(refund, { name: 'refund', description: '', schema: z.object(schema) });
betaTool({ name: 'refund', description: '', inputSchema: { type: 'object', properties: { orderId: { type: 'string' }, cents: { type: 'number' } },
  required: ['orderId', 'cents'] }, run: refund });
export { typed, counted };
"""
WRONG = ["once.tool(async (args: { n: number }) => 1, { name: 'x', key: 'm' });", "once.tool(async () => 1, { key: () => 1 });", "refund({ orderId: 17, cents: 1 });",
         "const n: Promise<number> = once.tool(async () => 1, { name: 'x', key: () => 1 })();"]


class NodeAgents(harness.Case):
    def run_in(self, *command, **env):
        return subprocess.run([os.fspath(word) for word in command], cwd=self.dir, env={**self.env, **env}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False, timeout=harness.DEADLINE_S * 5)

    def test_frameworks(self):
        server = self.start("serve", "--listen", f"unix:{self.path('s')}", "--log", "none")
        self.assertIn(b"listening", server.stderr.readline())
        done = self.run_in("node", "--test", ROOT / "tests/clients/agents_test.mjs", ONCE_SERVER=f"unix:{self.path('s')}",
                           ONCE_PROGRAM=harness.PROGRAM, ONCE_TEST_MODULES=f"{MODULES}/node_modules", LANGSMITH_TRACING="false")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stdout, r"fail 0\n.*cancelled 0\n.*skipped 0\n")

    def test_types(self):
        modules = self.path("node_modules")
        modules.mkdir()
        for one in (pathlib.Path(MODULES) / "node_modules").iterdir():
            (modules / one.name).symlink_to(one)
        (modules / "once-idempotency").symlink_to(ROOT / "clients/node")
        tsc = [modules / ".bin/tsc", "--strict", "--noEmit", "--skipLibCheck", "--module", "nodenext", "--target", "es2022", "--types", "node"]
        self.path("use.mts").write_text(USE)
        done = self.run_in(*tsc, "use.mts")
        self.assertEqual(done.returncode, 0, done.stdout)
        for number, wrong in enumerate(WRONG):
            self.path(f"wrong{number}.mts").write_text(f"{USE}{wrong}\n")
        done = self.run_in(*tsc, *(f"wrong{number}.mts" for number in range(len(WRONG))))
        self.assertEqual([f"wrong{number}.mts" for number in range(len(WRONG)) if f"wrong{number}.mts({len(USE.splitlines()) + 1}," not in done.stdout], [], done.stdout)


if __name__ == "__main__":
    harness.main()
