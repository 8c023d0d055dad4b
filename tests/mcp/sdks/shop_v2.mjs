// shop_v2.mjs LEDGER: a shop's tool by the TypeScript SDK of 2026-07-28.
import { appendFileSync } from "node:fs";
import { McpServer } from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";
import { z } from "zod";

serveStdio(() => {
  const server = new McpServer({ name: "shop", version: "1" });
  server.registerTool(
    "refund",
    {
      description: "Refunds an order.",
      inputSchema: z.object({ order_id: z.string(), cents: z.number().int().optional() }),
    },
    async ({ order_id }) => {
      appendFileSync(process.argv[2], order_id + "\n");
      return { content: [{ type: "text", text: `refunded ${order_id}` }] };
    },
  );
  return server;
});
