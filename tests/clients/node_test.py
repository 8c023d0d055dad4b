"""node_test.py ONCE: the Node package: node_test.mjs with Node, its types with TypeScript, and what npm packs."""
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "clients/node"
sys.path.insert(0, str(ROOT / "tests/apps"))

import harness  # noqa: E402
import stranger  # noqa: E402
from cutting_proxy import CuttingProxy  # noqa: E402

MODULES = subprocess.run([ROOT / "tools/node-tools", "tests/clients"], stdout=subprocess.PIPE, check=True, text=True).stdout.strip()
USE = """
import { Once, InProgress, commit, currentClaim } from 'once-idempotency';
import { onceExpress, SHARED } from 'once-idempotency/express';
import { onceFastify } from 'once-idempotency/fastify';
import { onceRoute } from 'once-idempotency/web';
import { onceProcessor } from 'once-idempotency/bullmq';
import { Job, Worker } from 'bullmq';
import { fastify } from 'fastify';
import { Client, PoolClient } from 'pg';

const once = new Once({ server: 'unix:/run/once.sock' });
const charge = once.makeIdempotent(async (order: { id: string }, cents: number) => ({ receipt: order.id, cents }),
  { key: (order) => order.id, scope: 'charge', onError: (error) => (error instanceof RangeError ? 'hold' : 'release') });
const typed: (order: { id: string }, cents: number) => Promise<{ receipt: string; cents: number }> = charge;
const sync: (n: number) => Promise<string> = once.makeIdempotent((n: number) => String(n), { key: (n) => n, scope: 'sync' });
const step: Promise<number> = currentClaim().step('one', () => 5);
onceExpress({ once, principal: SHARED });
const app = fastify();
app.register(onceFastify, { once, principal: (request) => request.ip });
app.post('/', async (request) => request.onceClaim?.attempt);
const route = onceRoute({ once, principal: 'X-Api-Key' }, async (request: Request, context: { id: number }) => Response.json(context.id));
const answered: Promise<Response> = route(new Request('http://a/'), { id: 5 });
new Worker('emails', onceProcessor(once, { scope: 'emails' }, async (job: Job<{ to: string }>) => job.data.to), { connection: {} });
new Worker<{ to: string }>('emails', onceProcessor(once, { scope: 'signal' }, async (job, token, signal) => signal?.aborted), { connection: {} });
const committed = async (client: Client, pooled: PoolClient): Promise<number[]> => [await commit(client, 1), await commit(pooled, 2)];
class Till {
  @once.idempotent({ key: (order: { id: string }) => order.id, scope: 'till' })
  async charge(order: { id: string }) { return `receipt of ${order.id}`; }
}
const receipt: Promise<string> = new Till().charge({ id: 'a' });
export { committed, receipt, typed, sync, step, answered, InProgress };
"""
TILL = """
import { Once } from 'once-idempotency';

const once = new Once({ server: process.env.ONCE_TEST_SERVER! });
class Till {
  #receipts = 0;
  constructor(readonly name: string) {}
  @once.idempotent({ key: (order: string) => order, scope: 'till' })
  async charge(order: string) { return `${this.name} ${++this.#receipts}`; }
}
console.log(await new Till('a').charge('order-1'), await new Till('b').charge('order-1'));
once.close();
"""
WRONG = ["charge({ id: 17 }, 5);", "once.makeIdempotent((n: number) => n, { scope: 'x' });", "once.makeIdempotent((n: number) => n, { key: (n) => n });",
         "class Wrong { @once.idempotent({ key: (n: number) => n, scope: 'x' }) async charge(order: string) { return order; } }",
         "class Wrong { @once.idempotent({ key: (n: number) => n, scope: 'x' }) charge = 5; }", "onceExpress({ once });", "app.register(onceFastify, { once });", "onceRoute({ once, principal: SHARED }, () => 5);",
         "route(new Request('http://a/'), {});", "onceProcessor(once, {}, async (job: Job) => 1);"]
EXPORTS = {"": "Once", "/express": "onceExpress", "/fastify": "onceFastify", "/web": "onceRoute", "/bullmq": "onceProcessor", "/mcp": "result"}


class Node(harness.Case):
    def run_in(self, folder, *command, **env):
        return subprocess.run([os.fspath(word) for word in command], cwd=folder, env={**self.env, **env}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False, timeout=harness.DEADLINE_S * 10)

    def test_functions_and_express(self):
        server = self.start("serve", "--listen", f"unix:{self.path('s')}", "--log", "none")
        self.assertIn(b"listening", server.stderr.readline())
        proxy = CuttingProxy(self.path("p"), self.path("s"))
        self.addCleanup(proxy.close)
        proxy.refuses = "complete"
        done = self.run_in(self.dir, "node", "--test", ROOT / "tests/clients/node_test.mjs", ONCE_SERVER=f"unix:{self.path('s')}",
                           ONCE_TEST_REFUSING=f"unix:{proxy.path}", ONCE_TEST_STRANGER=stranger.start(self) or "",
                           ONCE_PROGRAM=harness.PROGRAM, ONCE_TEST_MODULES=f"{MODULES}/node_modules", NODE_OPTIONS="--no-warnings")
        self.assertEqual(done.returncode, 0, done.stdout)
        if hasattr(self, "stranger"):
            stranger.check_nothing_was_sent(self)
        self.assertRegex(done.stdout, r"fail 0\n.*cancelled 0\n.*skipped 0\n")

    def test_the_package_is_whole(self):
        """Packed, installed from the file, used by import and require, and its types."""
        packed = self.run_in(PACKAGE, "npm", "pack", "--silent", "--pack-destination", self.dir)
        self.assertEqual(packed.stdout.strip(), "once-idempotency-0.0.0.tgz")
        shop = self.path("shop/node_modules/once-idempotency")
        shop.mkdir(parents=True)
        subprocess.run(["tar", "xzf", self.path("once-idempotency-0.0.0.tgz"), "--strip-components=1", "-C", shop], check=True)
        self.path("shop/node_modules/@types").symlink_to(f"{MODULES}/node_modules/@types")
        for name in ("undici-types", "fastify", "bullmq", "pg", "pg-types", "pg-protocol"):
            self.path(f"shop/node_modules/{name}").symlink_to(f"{MODULES}/node_modules/{name}")
        paths, names = [f"once-idempotency{path}" for path in EXPORTS], list(EXPORTS.values())
        for line in (f"console.log(...{paths}.map((path, at) => typeof require(path)[{names}[at]]))",
                     f"Promise.all({paths}.map((path) => import(path))).then((all) => console.log(...all.map((one, at) => typeof one[{names}[at]])))"):
            done = self.run_in(self.path("shop"), "node", "-e", line)
            self.assertEqual(done.stdout.split(), ["function"] * len(names), done.stdout)
        for extension in ("mts", "cts"):
            self.path(f"shop/use.{extension}").write_text(USE)
        tsc = [f"{MODULES}/node_modules/.bin/tsc", "--noEmit", "--strict", "--target", "es2022", "--module", "nodenext", "--types", "node"]
        self.path("shop/till.mts").write_text(TILL)  # Compiled, as no Node has decorators yet.
        done = self.run_in(self.path("shop"), *(word for word in tsc if word != "--noEmit"), "till.mts")
        self.assertEqual((done.returncode, done.stdout), (0, ""))
        server = self.start("serve", "--listen", f"unix:{self.path('s')}", "--log", "none")
        self.assertIn(b"listening", server.stderr.readline())
        done = self.run_in(self.path("shop"), "node", "till.mjs", ONCE_TEST_SERVER=f"unix:{self.path('s')}")
        self.assertEqual(done.stdout, "a 1 a 1\n")
        for number, wrong in enumerate(WRONG):
            self.path(f"shop/wrong{number}.mts").write_text(f"{USE}\n{wrong}\n")
        done = self.run_in(self.path("shop"), *tsc, "use.mts", "use.cts", *(f"wrong{number}.mts" for number in range(len(WRONG))))
        errors = set(re.findall(r"^(\S+)\(\d+,\d+\): error TS", done.stdout, re.M))
        self.assertEqual(errors, {f"wrong{number}.mts" for number in range(len(WRONG))}, done.stdout)


if __name__ == "__main__":
    harness.main()
