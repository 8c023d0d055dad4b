// shop_v1.mjs LEDGER: a shop's tool by the TypeScript SDK of 2025-11-25 and earlier.
import { appendFileSync } from "node:fs";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { z } from "zod";

const server = new McpServer({ name: "shop", version: "1" });
server.registerTool(
  "refund",
  { description: "Refunds an order.", inputSchema: { order_id: z.string(), cents: z.number().int().optional() } },
  async ({ order_id }) => {
    appendFileSync(process.argv[2], order_id + "\n");
    return { content: [{ type: "text", text: `refunded ${order_id}` }] };
  },
);
await server.connect(new StdioServerTransport());
