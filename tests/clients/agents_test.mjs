// Run by node_agents_test.py: once.tool() in the frameworks of agents, called as a model calls that plans again.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { test } from 'node:test';
import { pathToFileURL } from 'node:url';

import { Once } from '../../clients/node/lib/index.mjs';
import { result } from '../../clients/node/lib/mcp.mjs';

const there = createRequire(`${process.env.ONCE_TEST_MODULES}/x.js`);
const installed = async (name) => import(pathToFileURL(there.resolve(name)).href);
const { Words, BEGAN, NO_KEY, NO_RUN, RUN_KEY } = createRequire(import.meta.url)('../../clients/node/lib/words.cjs');

const once = new Once({ timeout: '60s' });
test.after(() => once.close());

const CALLS = [{ orderId: 'order-17', cents: 4000 }, { orderId: 'order-17', cents: 4000 }, { orderId: 'order-17', cents: 9000 }];
const words = new Words('refund', 'orderId');
const AGAIN = words.text('replayed');
const OTHER = words.text('mismatch');
const TOLD = ['refunded 4000', `refunded 4000\n\n${AGAIN}`, OTHER];

// A tool's function, which writes to a ledger, and counts its framework in its scope.
function refundIn(scope, more = {}, makes = (text) => text) {
  const ledger = [];
  const refund = async ({ orderId, cents }) => makes(`refunded ${ledger.push([orderId, cents]) && cents}`);
  return [once.tool(refund, { name: 'refund', scope, key: 'orderId', ...more }), ledger];
}
const ONE = [['order-17', 4000]];

test('the SDK of MCP', async () => {
  const { McpServer } = await installed('@modelcontextprotocol/sdk/server/mcp.js');
  const { Client } = await installed('@modelcontextprotocol/sdk/client/index.js');
  const { InMemoryTransport } = await installed('@modelcontextprotocol/sdk/inMemory.js');
  const { UrlElicitationRequiredError } = await installed('@modelcontextprotocol/sdk/types.js');
  const { z } = await installed('zod');
  const inputSchema = { orderId: z.string(), cents: z.number() };
  const server = new McpServer({ name: 'shop', version: '1' });
  const [refund, ledger] = refundIn('mcp', { told: result }, (text) => ({ content: [{ type: 'text', text }] }));
  server.registerTool('refund', { inputSchema }, refund);
  const [structured] = refundIn('mcp-structured', { told: result }, (text) => ({ content: [], structuredContent: { text } }));
  server.registerTool('structured', { inputSchema, outputSchema: { text: z.string() } }, structured);
  const asked = [];
  const asking = async ({ orderId }) => {
    if (asked.push(orderId) === 1) throw new UrlElicitationRequiredError([]);
    return { content: [{ type: 'text', text: 'done' }] };
  };
  server.registerTool('asking', { inputSchema }, once.tool(asking, { name: 'asking', key: 'orderId', told: result }));
  const client = new Client({ name: 'test', version: '1' });
  const [here, far] = InMemoryTransport.createLinkedPair();
  await Promise.all([server.connect(far), client.connect(here)]);
  const called = async (name, all = CALLS) => {
    const got = [];
    for (const one of all) got.push(await client.callTool({ name, arguments: one }));
    return got;
  };

  const got = await called('refund');
  assert.deepEqual(got.map(({ content }) => content.map(({ text }) => text)), [[TOLD[0]], [TOLD[0], AGAIN], [OTHER]]);
  assert.deepEqual(got.map(({ isError = false, _meta }) => [isError, _meta?.['once/outcome']]), [[false, undefined], [false, 'replayed'], [true, 'mismatch']]);
  assert.deepEqual(ledger, ONE);
  assert.deepEqual((await called('structured')).map(({ structuredContent }) => structuredContent?.text), [TOLD[0], TOLD[0], undefined]);
  await assert.rejects(called('asking', CALLS.slice(0, 1)), { code: -32042 });
  assert.equal((await called('asking', CALLS.slice(0, 1)))[0].content[0].text, 'done'); // It was not over.
  await client.close();
});

async function withOpenAi(tool, calls, context) {
  const { Agent, Runner, Usage, setTracingDisabled } = await installed('@openai/agents');
  setTracingDisabled(true);
  const outputs = [];
  const model = {
    async getResponse({ input }) {
      const done = input.filter((one) => one.type === 'function_call_result');
      outputs.splice(0, outputs.length, ...done.map(({ output }) => output.text ?? output));
      const output = done.length < calls.length
        ? { type: 'function_call', callId: `call-${done.length}`, name: tool.name, arguments: JSON.stringify(calls[done.length]), status: 'completed' }
        : { type: 'message', id: '1', role: 'assistant', status: 'completed', content: [{ type: 'output_text', text: 'ended' }] };
      return { usage: new Usage(), output: [output] };
    },
  };
  const ran = await new Runner({ modelProvider: { getModel: () => model }, tracingDisabled: true }).run(new Agent({ name: 'clerk', model, tools: [tool] }), 'refund', { context });
  assert.equal(ran.finalOutput, 'ended');
  return outputs;
}

test('the OpenAI Agents SDK', async () => {
  const { tool } = await installed('@openai/agents');
  const { z } = await installed('zod');
  const [execute, ledger] = refundIn('openai');
  const parameters = z.object({ orderId: z.string(), cents: z.number() });
  assert.deepEqual(await withOpenAi(tool({ name: 'refund', description: 'Refund.', parameters, execute }), CALLS), TOLD);
  assert.deepEqual(ledger, ONE);

  const sent = [];
  const mail = once.tool(async ({ to }, context) => `sent ${sent.push([context.context.thread, to])}`, {
    name: 'mail', run: (args, context) => context.context.thread,
  });
  const mailing = tool({ name: 'mail', description: 'Mail.', parameters: z.object({ to: z.string() }), execute: mail });
  const again = new Words('mail', RUN_KEY).text('replayed');
  for (const [thread, n] of [['one', 1], ['two', 2]]) {
    assert.deepEqual(await withOpenAi(mailing, [{ to: 'a' }, { to: 'a' }], { thread }), [`sent ${n}`, `sent ${n}\n\n${again}`]);
  }
  assert.deepEqual(await withOpenAi(mailing, [{ to: 'a' }], {}), [new Words('mail', RUN_KEY).text('refused', NO_RUN)]);
  assert.deepEqual(sent, [['one', 'a'], ['two', 'a']]);
});

test('LangGraph', async () => {
  const { tool } = await installed('@langchain/core/tools');
  const { AIMessage, ToolMessage } = await installed('@langchain/core/messages');
  const { Command, END, MemorySaver, MessagesAnnotation, START, StateGraph, interrupt } = await installed('@langchain/langgraph');
  const { ToolNode } = await installed('@langchain/langgraph/prebuilt');
  const { z } = await installed('zod');
  const graph = (made, calls) => new StateGraph(MessagesAnnotation)
    .addNode('model', ({ messages }) => {
      const done = messages.filter((one) => ToolMessage.isInstance(one)).length;
      if (done === calls.length) return { messages: [new AIMessage('ended')] };
      return { messages: [new AIMessage({ content: '', tool_calls: [{ name: made.name, args: calls[done], id: `call-${done}`, type: 'tool_call' }] })] };
    })
    .addNode('tools', new ToolNode([made]))
    .addEdge(START, 'model')
    .addConditionalEdges('model', ({ messages }) => (messages.at(-1).tool_calls?.length ? 'tools' : END))
    .addEdge('tools', 'model')
    .compile({ checkpointer: new MemorySaver() });
  const texts = ({ messages }) => messages.filter((one) => ToolMessage.isInstance(one)).map(({ content }) => content);
  const schema = z.object({ orderId: z.string(), cents: z.number() });
  const thread = (id) => ({ configurable: { thread_id: id } });

  const [refund, ledger] = refundIn('langgraph');
  const ran = await graph(tool(refund, { name: 'refund', description: 'Refund.', schema }), CALLS).invoke({ messages: ['refund'] }, thread('1'));
  assert.deepEqual(texts(ran), TOLD);
  assert.deepEqual(ledger, ONE);

  const sent = [];
  const mail = once.tool(async ({ orderId }) => `sent ${sent.push(orderId)}`, { name: 'mail', scope: 'mail-2', run: (args, config) => config.configurable.thread_id });
  const mailing = tool(mail, { name: 'mail', description: 'Mail.', schema });
  for (const id of ['1', '2']) await graph(mailing, CALLS.slice(0, 2)).invoke({ messages: ['mail'] }, thread(id));
  assert.equal(sent.length, 2);

  const approved = [];
  const approving = tool(once.tool(async () => `done ${approved.push(interrupt('may I?'))}`, { name: 'approve', key: 'orderId' }), { name: 'approve', description: 'Ask.', schema });
  const asking = graph(approving, CALLS.slice(0, 2));
  await asking.invoke({ messages: ['refund'] }, thread('3'));
  assert.equal(texts(await asking.invoke(new Command({ resume: 'yes' }), thread('3')))[0], 'done 1'); // It was not over.
});

test('the tool runner of Anthropic', async () => {
  const { default: Anthropic } = await installed('@anthropic-ai/sdk');
  const { betaTool } = await installed('@anthropic-ai/sdk/helpers/beta/json-schema');
  const results = [];
  const fetch = async (url, { body }) => {
    const turn = results.length;
    results.push(JSON.parse(body).messages.at(-1).content);
    const content = turn < CALLS.length ? { type: 'tool_use', id: `toolu_${turn}`, name: 'refund', input: CALLS[turn] } : { type: 'text', text: 'ended' };
    return Response.json({
      id: 'msg_1', type: 'message', role: 'assistant', model: 'scripted', content: [content], stop_sequence: null,
      stop_reason: turn < CALLS.length ? 'tool_use' : 'end_turn', usage: { input_tokens: 1, output_tokens: 1 },
    });
  };
  const client = new Anthropic({ apiKey: 'none', fetch, maxRetries: 0 });
  const [run, ledger] = refundIn('anthropic');
  const inputSchema = { type: 'object', properties: { orderId: { type: 'string' }, cents: { type: 'integer' } } };
  await client.beta.messages.toolRunner({
    model: 'scripted', max_tokens: 10, messages: [{ role: 'user', content: 'refund' }],
    tools: [betaTool({ name: 'refund', description: 'Refund.', inputSchema, run })],
  }).runUntilDone();
  assert.deepEqual(results.map((blocks) => blocks[0].content ?? blocks), ['refund', ...TOLD]);
  assert.deepEqual(ledger, ONE);
});

test('in progress, and an outcome that is not known', async () => {
  const tool = (fn) => once.tool(fn, { name: 'refund', scope: 'busy', key: 'orderId', wait: 0, onError: 'hold' });
  let fail;
  const refund = tool(() => new Promise((_, reject) => { fail = reject; }));
  const first = refund({ orderId: '1' });
  while (fail === undefined) await new Promise((resume) => { setTimeout(resume, 5); });
  assert.equal(await refund({ orderId: '1' }), words.text('in-progress'));
  fail(new RangeError('the bank does not answer'));
  await assert.rejects(first, RangeError);
  assert.equal(await refund({ orderId: '1' }), words.text('unknown', BEGAN));
});

test('what else does not run', async () => {
  const [refund, ledger] = refundIn('else');
  assert.equal(await refund({ cents: 1 }), words.text('refused', NO_KEY.replace('{key}', '"orderId"')));
  const lost = new Once({ server: 'unix:/nowhere/s', timeout: 0 });
  assert.equal(await lost.tool(async () => 'x', { name: 'refund', key: 'orderId', wait: 0 })({ orderId: '1' }), words.text('unavailable'));
  assert.deepEqual(ledger, []);
  const failing = once.tool(async ({ orderId }) => { ledger.push(orderId); throw new Error('the  bank\nis closed'); }, { name: 'refund', scope: 'failing', key: 'orderId' });
  await assert.rejects(failing({ orderId: '1' }), /closed/);
  assert.equal(await failing({ orderId: '1' }), words.text('failed', 'the bank is closed'));
  const odd = once.tool(async () => 5n, { name: 'refund', scope: 'odd', key: ['orderId', 'cents'] });
  assert.equal(await odd(CALLS[0]), 5n);
  assert.equal(await odd(CALLS[0]), new Words('refund', '[orderId, cents]').text('not-kept'));
  assert.deepEqual(ledger, ['1']);
});

test('a claim that is lost', async () => {
  const { execFileSync } = await import('node:child_process');
  const refund = once.tool(async ({ orderId }) => {
    execFileSync(process.env.ONCE_PROGRAM, ['release', '--scope', 'lost', '--key', orderId, '--force', '--reason', 'by hand']);
    return 'refunded';
  }, { name: 'refund', scope: 'lost', key: 'orderId' });
  assert.equal(await refund({ orderId: '1' }), `refunded\n\n${words.text('lost')}`);
});

test('mistakes', () => {
  const fn = async () => 1;
  for (const [of, options, message] of [
    [{ execute: fn }, { name: 'x', key: 'a' }, /takes the function/], [fn, { key: 'a' }, /name is missing/], [fn, { name: 'x' }, /needs key/],
    [fn, { name: 'x', key: 'a', run: fn }, /needs key/], [fn, { name: 'x', key: [] .concat('') }, /key is the name/], [fn, { name: 'x', run: 'r' }, /run is a function/],
    [fn, { name: 'x', run: fn, payload: null }, /payload is a function/], [fn, { name: 'x', key: 'a', lapse: 1 }, /no option lapse/],
  ]) assert.throws(() => once.tool(of, options), { name: 'TypeError', message });
});
