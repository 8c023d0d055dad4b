// client.mjs SDK ORDER COMMAND ...: refunds an order by a client of the TypeScript SDKs, and prints the version and the
// result. SDK: v1; or auto or legacy, modes of v2.
const [sdk, order_id, command, ...args] = process.argv.slice(2);
const name = sdk === "v1" ? "@modelcontextprotocol/sdk/client" : "@modelcontextprotocol/client";
const { Client } = await import(sdk === "v1" ? `${name}/index.js` : name);
const { StdioClientTransport } = await import(sdk === "v1" ? `${name}/stdio.js` : `${name}/stdio`);
const options = sdk === "v1" ? {} : { versionNegotiation: { mode: sdk } };
const client = new Client({ name: "test", version: "1" }, options);
await client.connect(new StdioClientTransport({ command, args, env: process.env, stderr: "inherit" }));
await client.listTools();
const result = await client.callTool({ name: "refund", arguments: { order_id } });
console.log(JSON.stringify({ version: client.getNegotiatedProtocolVersion?.() ?? null, result }));
await client.close();
