"""A double of a model server that speaks Chat Completions, Responses and Anthropic Messages.

It asks for one tool call after another from its script, and answers with the last tool result that
it was shown once the script is over. It checks what real servers check: every call has its result,
in order, and tools are in the dialect's form.
"""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

JSON = dict[str, Any]
Script = list[list[str]]
"""The arguments, as the model wrote them, of the tool calls of each turn."""


class _Handler(RequestHandler):
    def initialize(self, script: Script) -> None:
        self.script = script

    def refuse(self, message: str) -> None:
        self.set_status(400)
        self.finish({"error": {"message": message, "type": "invalid_request_error"}, "type": "error"})


class ChatHandler(_Handler):
    def post(self) -> None:
        body = json.loads(self.request.body)
        names = [tool["function"]["name"] for tool in body["tools"] if tool["type"] == "function"]
        turns, open_calls, last = 0, [], ""
        for message in body["messages"]:
            if message["role"] == "assistant" and message.get("tool_calls"):
                turns += 1
                open_calls = [call["id"] for call in message["tool_calls"]]
            elif message["role"] == "tool":
                if message["tool_call_id"] not in open_calls:
                    return self.refuse("a tool message must follow its tool call")
                open_calls.remove(message["tool_call_id"])
                last = message["content"]
            elif open_calls:
                return self.refuse("a tool call has no answer")
        if open_calls or "execute_python" not in names:
            return self.refuse("tool calls without an answer, or no tool")
        message: JSON = {"role": "assistant", "content": None, "refusal": None}
        if turns < len(self.script):
            message["tool_calls"] = [
                {
                    "id": f"call_{turns}_{i}",
                    "type": "function",
                    "function": {"name": "execute_python", "arguments": a},
                }
                for i, a in enumerate(self.script[turns])
            ]
        else:
            message["content"] = f"final: {last}"
        reason = "tool_calls" if "tool_calls" in message else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
        self.finish(
            {
                "id": "c",
                "object": "chat.completion",
                "created": 1,
                "model": body["model"],
                "choices": [choice],
            }
        )
        return None


class ResponsesHandler(_Handler):
    def post(self) -> None:
        body = json.loads(self.request.body)
        names = [tool["name"] for tool in body["tools"] if tool["type"] == "function"]
        items = [item for item in body["input"] if isinstance(item, dict)]
        calls = [item["call_id"] for item in items if item.get("type") == "function_call"]
        results = {i["call_id"]: i["output"] for i in items if i.get("type") == "function_call_output"}
        if "execute_python" not in names or set(calls) != set(results):
            return self.refuse("a function call has no output")
        turns = len({call.split("_")[1] for call in calls})
        output: list[JSON]
        if turns < len(self.script):
            output = [
                {"type": "function_call", "id": f"fc_{turns}_{i}", "call_id": f"call_{turns}_{i}", "name": "execute_python",
                 "arguments": arguments, "status": "completed"}
                for i, arguments in enumerate(self.script[turns])
            ]  # fmt: skip
        else:
            text = f"final: {results[calls[-1]]}"
            part = {"type": "output_text", "text": text, "annotations": []}
            output = [
                {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}
            ]
        answer = {"id": "r", "object": "response", "created_at": 1, "model": body["model"], "output": output}
        rest = {
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": body["tools"],
            "status": "completed",
        }
        self.finish({**answer, **rest})
        return None


class MessagesHandler(_Handler):
    def post(self) -> None:
        body = json.loads(self.request.body)
        names = [tool["name"] for tool in body["tools"] if "input_schema" in tool]
        turns, open_calls, last = 0, [], ""
        for message in body["messages"]:
            blocks = message["content"] if isinstance(message["content"], list) else []
            if message["role"] == "assistant":
                open_calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
                turns += bool(open_calls)
                continue
            given = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
            if sorted(given) != sorted(open_calls):
                return self.refuse("tool_use ids without a tool_result right after")
            last = json.dumps(blocks[-1]["content"]) if given else last
            open_calls = []
        if open_calls or "execute_python" not in names:
            return self.refuse("tool_use without tool_result")
        if turns < len(self.script):
            content = [
                {
                    "type": "tool_use",
                    "id": f"toolu_{turns}_{i}",
                    "name": "execute_python",
                    "input": json.loads(a),
                }
                for i, a in enumerate(self.script[turns])
            ]
        else:
            content = [{"type": "text", "text": f"final: {last}"}]
        reason = "tool_use" if content[0]["type"] == "tool_use" else "end_turn"
        usage = {"input_tokens": 1, "output_tokens": 1}
        head = {"id": "msg", "type": "message", "role": "assistant", "model": body["model"], "usage": usage}
        self.finish({**head, "content": content, "stop_reason": reason, "stop_sequence": None})
        return None


@contextmanager
def model_server(script: Script) -> Iterator[str]:
    """The base URL of a running server, without ``/v1``."""
    ready: threading.Event = threading.Event()
    shared: JSON = {}

    async def serve() -> None:
        options = {"script": script}
        application = Application(
            [
                ("/v1/chat/completions", ChatHandler, options),
                ("/v1/responses", ResponsesHandler, options),
                ("/v1/messages", MessagesHandler, options),
            ]
        )
        server = HTTPServer(application)
        sockets = bind_sockets(0, "127.0.0.1")
        server.add_sockets(sockets)
        shared.update(port=sockets[0].getsockname()[1], stop=asyncio.Event(), loop=asyncio.get_running_loop())
        ready.set()
        await shared["stop"].wait()
        server.stop()
        await server.close_all_connections()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(10)
    try:
        yield f"http://127.0.0.1:{shared['port']}"
    finally:
        shared["loop"].call_soon_threadsafe(shared["stop"].set)
        thread.join(10)
