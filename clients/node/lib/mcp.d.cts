import type { Told } from './index.cjs';

/** A result of a tool in MCP. */
export interface McpResult {
  [name: string]: unknown;
  content: { type: 'text'; text: string }[];
  isError?: boolean;
  _meta?: Record<string, unknown>;
}

/**
 * For handlers of the MCP SDK: `server.registerTool(name, config, once.tool(handler, { ..., told: result }))`. What a model
 * is told becomes a result with `isError`; a replayed result gets one more text.
 */
export function result(told: Told): McpResult;
