"""agents_test.py ONCE: `@once.tool` in the frameworks of agents, called as a model calls that plans again."""
import asyncio
import json
import os
import pathlib
import subprocess
import sys
from typing import Annotated, TypedDict

ROOT = pathlib.Path(__file__).resolve().parents[2]
AGENTS_PYTHON = subprocess.run([ROOT / "tools/python-tools", "agents"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
if sys.executable != AGENTS_PYTHON:  # Which has the frameworks.
    os.execv(AGENTS_PYTHON, [AGENTS_PYTHON, *sys.argv])
os.environ.update(OPENAI_AGENTS_DISABLE_TRACING="1", LANGSMITH_TRACING="false")
sys.path[:0] = [str(ROOT / folder) for folder in ("clients/python/src", "tests/apps")]

import agents  # noqa: E402
import anthropic  # noqa: E402
import harness  # noqa: E402
import httpx2  # noqa: E402
import langchain_core.messages  # noqa: E402
import langchain_core.runnables  # noqa: E402
import langchain_core.tools  # noqa: E402
import langgraph.checkpoint.memory  # noqa: E402
import langgraph.graph  # noqa: E402
import langgraph.prebuilt  # noqa: E402
import langgraph.types  # noqa: E402
import mcp  # noqa: E402
import mcp.server.mcpserver  # noqa: E402
import once_idempotency as oi  # noqa: E402
import once_idempotency.mcp  # noqa: E402
import openai.types.responses as openai_types  # noqa: E402
import pydantic  # noqa: E402
import tools_test  # noqa: E402
from once_idempotency import _words  # noqa: E402

# What a model sends that plans again: the same call under another id, then the same order with another sum.
CALLS = [{"order_id": "order-17", "cents": 4000}, {"order_id": "order-17", "cents": 4000}, {"order_id": "order-17", "cents": 9000}]
AGAIN = "refunded 4000\n\n" + _words.Words("refund", "order_id").text("replayed")
OTHER = _words.Words("refund", "order_id").text("mismatch")
TOLD = ["refunded 4000", AGAIN, OTHER]


class Receipt(pydantic.BaseModel):
    order: str
    cents: int


class Context(pydantic.BaseModel):
    thread: str


class Case(tools_test.Case):
    def setUp(self):
        super().setUp()
        self.other = oi.Once(server=f"unix:{self.path('s')}", timeout=harness.DEADLINE_S)  # As of another process.
        self.asyncio = asyncio.Runner()
        self.addCleanup(self.asyncio.close)

    def await_(self, coroutine):
        async def closing():
            try:
                return await coroutine
            finally:
                await self.client.aclose()
                await self.other.aclose()

        return self.asyncio.run(closing())

    def refund_async(self):
        @self.other.tool(key="{order_id}", scope="refund")
        async def refund(order_id: str, cents: int = 100) -> str:
            """Refund an order."""
            self.ledger.append((order_id, cents))
            return f"refunded {cents}"

        return refund


class Mcp(Case):
    def calls(self, server, name, calls, **more):
        async def run():
            async with mcp.Client(server) as client:
                return [await client.call_tool(name, arguments, **more) for arguments in calls]

        return self.await_(run())

    def test_texts(self):
        for tool, first in ((self.refund()[0], TOLD[0]), (self.refund_async(), AGAIN)):
            server = mcp.server.mcpserver.MCPServer("shop")
            server.tool()(tool)
            got = self.calls(server, "refund", CALLS)
            self.assertEqual([(one.content[0].text, one.is_error) for one in got], [(text, False) for text in (first, *TOLD[1:])])
            self.assertEqual(got[1].structured_content, {"result": AGAIN})
            self.assertEqual(self.ledger, [("order-17", 4000)])

    def test_the_schema_is_the_functions(self):
        protected, plain = self.refund()
        tools = [mcp.server.mcpserver.tools.Tool.from_function(one) for one in (protected, plain)]
        made = [(tool.name, tool.description, tool.parameters, tool.output_schema, tool.is_async) for tool in tools]
        self.assertEqual(made[0], made[1])
        self.assertEqual(set(made[0][2]["properties"]), {"order_id", "cents"})

    def test_results_with_a_schema(self):
        server = mcp.server.mcpserver.MCPServer("shop")

        @server.tool()
        @self.client.tool(key="{order_id}", scope="charge", told=once_idempotency.mcp.result)
        def charge(order_id: str, cents: int, ctx: mcp.server.mcpserver.Context) -> Receipt:
            self.ledger.append(ctx.request_id)
            return Receipt(order=order_id, cents=cents)

        got = self.calls(server, "charge", CALLS)
        self.assertEqual([one.structured_content for one in got], [{"order": "order-17", "cents": 4000}] * 2 + [None])
        self.assertEqual([one.is_error for one in got], [False, False, True])
        self.assertEqual((got[2].content[0].text, got[2].meta["once/outcome"]), (OTHER.replace("refund", "charge"), "mismatch"))
        self.assertEqual(len(self.ledger), 1)

    def test_a_tool_that_asks_is_not_over(self):
        server = mcp.server.mcpserver.MCPServer("shop")

        @server.tool()
        @self.client.tool(key="{order_id}", scope="ask")
        async def refund(order_id: str, ctx: mcp.server.mcpserver.Context) -> str:
            self.ledger.append(order_id)
            if len(self.ledger) == 1:
                raise mcp.UrlElicitationRequiredError([])
            return "done"

        async def run():
            async with mcp.Client(server) as client:
                with self.assertRaises(mcp.MCPError):
                    await client.call_tool("refund", {"order_id": "1"})
                return await client.call_tool("refund", {"order_id": "1"})

        self.assertEqual(self.await_(run()).content[0].text, "done")


class OpenAi(Case):
    def run_agent(self, tool, calls, context=None):
        class Scripted(agents.Model):
            async def get_response(model, input, **more):
                number = sum(isinstance(one, dict) and one.get("type") == "function_call_output" for one in input)
                if number < len(calls):
                    output = openai_types.ResponseFunctionToolCall(
                        arguments=json.dumps(calls[number]), call_id=f"call-{number}", name=tool.name, type="function_call")
                else:
                    text = openai_types.ResponseOutputText(annotations=[], text="ended", type="output_text")
                    output = openai_types.ResponseOutputMessage(id="1", content=[text], role="assistant", status="completed", type="message")
                return agents.ModelResponse(output=[output], usage=agents.Usage(), response_id=None)

            def stream_response(model, *rest, **more):
                raise NotImplementedError

        agent = agents.Agent(name="clerk", model=Scripted(), tools=[tool])
        ran = self.await_(agents.Runner.run(agent, "refund order 17", context=context))
        self.assertEqual(ran.final_output, "ended")
        return [one.output for one in ran.new_items if one.type == "tool_call_output_item"]

    def test_texts(self):
        protected, plain = self.refund()
        tool, unprotected = agents.function_tool(protected), agents.function_tool(plain)
        self.assertEqual((tool.params_json_schema, tool.description, tool.name),
                         (unprotected.params_json_schema, unprotected.description, unprotected.name))
        self.assertEqual(self.run_agent(tool, CALLS), TOLD)
        self.assertEqual(self.ledger, [("order-17", 4000)])

    def test_the_run_of_a_context(self):
        @agents.function_tool
        @self.client.tool(run="{ctx.context.thread}", scope="mail")
        async def mail(ctx: agents.RunContextWrapper[Context], to: str) -> str:
            """Send a mail."""
            self.ledger.append((ctx.context.thread, to))
            return "sent"

        again = "sent\n\n" + _words.Words("mail", _words.RUN_KEY).text("replayed")
        for thread in ("one", "two"):
            self.assertEqual(self.run_agent(mail, [{"to": "a"}, {"to": "a"}, {"to": "b"}], Context(thread=thread)), ["sent", again, "sent"])
        self.assertEqual(self.ledger, [("one", "a"), ("one", "b"), ("two", "a"), ("two", "b")])
        (refused,) = self.run_agent(mail, [{"to": "a"}], Context(thread=""))
        self.assertEqual(refused, _words.Words("mail", _words.RUN_KEY).text("refused", _words.NO_RUN))
        self.assertEqual(len(self.ledger), 4)

    def test_an_error_is_not_tried_again(self):
        @agents.function_tool
        @self.client.tool(key="{order_id}", scope="fails")
        def refund(order_id: str) -> str:
            self.ledger.append(order_id)
            raise RuntimeError("the bank is closed")

        first, again = self.run_agent(refund, [{"order_id": "1"}] * 2)
        self.assertIn("Please try again", first)  # The framework's words.
        self.assertEqual((again, self.ledger), (_words.Words("refund", "order_id").text("failed", "the bank is closed"), ["1"]))


class LangGraph(Case):
    def run_graph(self, tool, calls, **config):
        """Calls of a model that plans again, each in a turn of its own."""
        class State(TypedDict):
            messages: Annotated[list, langgraph.graph.message.add_messages]

        def model(state):
            number = sum(isinstance(one, langchain_core.messages.ToolMessage) for one in state["messages"])
            if number == len(calls):
                return {"messages": [langchain_core.messages.AIMessage("ended")]}
            call = {"name": tool.name, "args": calls[number], "id": f"call-{number}", "type": "tool_call"}
            return {"messages": [langchain_core.messages.AIMessage("", tool_calls=[call])]}

        graph = langgraph.graph.StateGraph(State)
        graph.add_node("model", model)
        graph.add_node("tools", langgraph.prebuilt.ToolNode([tool]), retry_policy=langgraph.types.RetryPolicy(initial_interval=0.01))
        graph.add_edge(langgraph.graph.START, "model")
        graph.add_conditional_edges("model", langgraph.prebuilt.tools_condition)
        graph.add_edge("tools", "model")
        return graph.compile(checkpointer=langgraph.checkpoint.memory.InMemorySaver())

    @staticmethod
    def texts(state):
        return [one.content for one in state["messages"] if isinstance(one, langchain_core.messages.ToolMessage)]

    def test_texts(self):
        protected, plain = self.refund()
        tool, unprotected = langchain_core.tools.tool(protected), langchain_core.tools.tool(plain)
        self.assertEqual((tool.name, tool.description, tool.args), (unprotected.name, unprotected.description, unprotected.args))
        config = {"configurable": {"thread_id": "1"}}
        graph = self.run_graph(tool, CALLS)
        self.assertEqual(self.texts(graph.invoke({"messages": ["refund order 17"]}, config)), TOLD)
        self.assertEqual(self.ledger, [("order-17", 4000)])
        awaited = self.await_(self.run_graph(langchain_core.tools.tool(self.refund_async()), CALLS[2:]).ainvoke({"messages": ["again"]}, config))
        self.assertEqual(self.texts(awaited), [OTHER])

    def test_the_run_of_a_thread(self):
        @langchain_core.tools.tool
        @self.client.tool(run="{config[configurable][thread_id]}", scope="mail")
        def mail(to: str, config: langchain_core.runnables.RunnableConfig) -> str:
            """Send a mail."""
            self.ledger.append(to)
            return "sent"

        for thread in ("1", "2"):
            self.run_graph(mail, [{"to": "a"}, {"to": "a"}]).invoke({"messages": ["mail"]}, {"configurable": {"thread_id": thread}})
        self.assertEqual(self.ledger, ["a", "a"])

    def test_an_interrupted_tool_goes_on(self):
        @langchain_core.tools.tool
        @self.client.tool(key="{order_id}", scope="approved")
        def refund(order_id: str, state: Annotated[dict, langgraph.prebuilt.InjectedState]) -> str:
            """Refund an order."""
            self.ledger.append(langgraph.types.interrupt("may I?"))
            return "done"

        graph, config = self.run_graph(refund, [{"order_id": "1"}, {"order_id": "1"}]), {"configurable": {"thread_id": "1"}}
        self.assertIn("__interrupt__", graph.invoke({"messages": ["refund"]}, config))
        self.assertEqual(self.texts(graph.invoke(langgraph.types.Command(resume="yes"), config))[0], "done")
        self.assertEqual(self.ledger, ["yes"])

    def test_an_error_is_not_tried_again(self):
        """The graph retries a node that failed, and the tool does not act again."""
        @langchain_core.tools.tool
        @self.client.tool(key="{order_id}", scope="fails")
        def refund(order_id: str) -> str:
            """Refund an order."""
            self.ledger.append(order_id)
            raise ConnectionError("the bank is closed")

        state = self.run_graph(refund, [{"order_id": "1"}]).invoke({"messages": ["refund"]}, {"configurable": {"thread_id": "1"}})
        self.assertEqual(self.texts(state), [_words.Words("refund", "order_id").text("failed", "the bank is closed")])
        self.assertEqual(self.ledger, ["1"])


class Anthropic(Case):
    def run_model(self, tool, kind, transport):
        self.results = []

        def answer(request):
            number = len(self.results)
            self.results.append(json.loads(request.content)["messages"][-1]["content"])
            content = {"type": "text", "text": "ended"}
            if number < len(CALLS):
                content = {"type": "tool_use", "id": f"toolu_{number}", "name": "refund", "input": CALLS[number]}
            return httpx2.Response(200, json={
                "id": "msg_1", "type": "message", "role": "assistant", "model": "scripted", "content": [content], "stop_sequence": None,
                "stop_reason": "tool_use" if number < len(CALLS) else "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}})

        client = kind(api_key="none", http_client=transport(transport=httpx2.MockTransport(answer)), max_retries=0)
        return client.beta.messages.tool_runner(
            max_tokens=10, model="scripted", tools=[tool], messages=[{"role": "user", "content": "refund order 17"}])

    def texts(self):
        return [blocks[0]["content"] for blocks in self.results[1:]]

    def test_texts(self):
        protected, plain = self.refund()
        tool = anthropic.beta_tool(protected)
        self.assertEqual(tool.to_dict(), anthropic.beta_tool(plain).to_dict())
        self.run_model(tool, anthropic.Anthropic, httpx2.Client).until_done()
        self.assertEqual((self.texts(), self.ledger), (TOLD, [("order-17", 4000)]))
        tool = anthropic.beta_async_tool(self.refund_async())
        self.await_(self.run_model(tool, anthropic.AsyncAnthropic, httpx2.AsyncClient).until_done())
        self.assertEqual((self.texts()[2], self.ledger), (OTHER, [("order-17", 4000)]))


class Others(Case):
    def test_a_model_as_a_result(self):
        @self.client.tool(key="{order_id}", scope="refund")
        def refund(order_id: str) -> Receipt:
            return Receipt(order=order_id, cents=1)

        self.assertEqual([refund("1"), refund("1")], [Receipt(order="1", cents=1)] * 2)

    def test_arguments_that_a_framework_adds_do_not_count(self):
        def tool(kind):
            def mail(to: str, added: kind) -> str:
                self.ledger.append(to)
                return "sent"

            return self.client.tool(run="one", scope=str(len(self.client._scopes)))(mail)

        for kind in (mcp.server.mcpserver.Context, Annotated[str, mcp.server.mcpserver.Resolve(lambda: "yes")], agents.RunContextWrapper[str],
                     agents.tool_context.ToolContext, langchain_core.runnables.RunnableConfig, langgraph.prebuilt.ToolRuntime,
                     Annotated[dict, langgraph.prebuilt.InjectedState], Annotated[str, langchain_core.tools.InjectedToolCallId]):
            self.ledger.clear()
            mail = tool(kind)
            mail("a", object())
            mail("a", object())
            mail("b", object())
            self.assertEqual(self.ledger, ["a", "b"], kind)
        self.ledger.clear()
        mail = tool(type("Mail", (pydantic.BaseModel,), {"__module__": "agents.models", "__annotations__": {"n": int}}))  # One's own.
        for n in (1, 1, 2):
            mail("a", Receipt(order="a", cents=n))
        self.assertEqual(self.ledger, ["a", "a"])

    def test_a_tool_of_a_framework_is_no_function(self):
        _, plain = self.refund()
        for made in (agents.function_tool(plain), langchain_core.tools.tool(plain), anthropic.beta_tool(plain)):
            with self.assertRaisesRegex(TypeError, "below the framework's"):
                self.client.tool(key="{order_id}", scope="x")(made)


if __name__ == "__main__":
    harness.main()
