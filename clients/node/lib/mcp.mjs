import mcp from './mcp.cjs';

export const { result } = mcp;
export * from './mcp.cjs';
