export * from './mcp.cjs';
