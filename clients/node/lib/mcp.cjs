'use strict';

// For tools of the MCP SDK: `once.tool(handler, { ..., told: result })`.
function result({ outcome, text, result: value }) {
  const note = { type: 'text', text };
  const _meta = { 'once/outcome': outcome };
  if (value === undefined) return { content: [note], isError: true, _meta };
  return { ...value, content: [...(value.content ?? []), note], _meta: { ...value._meta, ..._meta } };
}

module.exports = { result };
