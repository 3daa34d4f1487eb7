"""Claims about dialects end to end: the official SDKs' own objects go in, messages they accept come out."""

import base64
import json
import struct
from datetime import UTC, datetime
from typing import Any

import pytest
from lazily import Lazy

from interpreter.models import JSON, FileChange, Folded, Run, RunError, RunStatus
from interpreter.toolcalls import (
    BadCall,
    Dialect,
    Invocation,
    answer_bad_call,
    answer_run,
    parse_tool_calls,
    read_call,
    tool_definitions,
    tool_messages,
)

anthropic_types, genai_types, mcp_types = (
    Lazy("anthropic.types"),
    Lazy("google.genai.types"),
    Lazy("mcp_types"),
)
chat, responses, pydantic = Lazy("openai.types.chat"), Lazy("openai.types.responses"), Lazy("pydantic")
response_items = Lazy("openai.types.responses.response_input_item_param")

AT = datetime(2026, 1, 2, tzinfo=UTC)
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
GOOD, BROKEN = '{"code": "x = 1\\nx"}', '{"code": "print('


def run(code: str, status: RunStatus = RunStatus.OK, image: str = PNG) -> Run:
    figure = {"output_type": "display_data", "data": {"image/png": image}, "metadata": {}}
    error = None if status is RunStatus.OK else RunError("ValueError", "no")
    folded = Folded(outputs=(figure,), result="1", error=error)
    files = (FileChange("a.csv", 3, "text/csv", "created", "/v1/sessions/s/files/a.csv"),)
    return Run("run_s_1", "s", "t", status, code, AT, 30.0, started_at=AT, folded=folded, files=files)


def answered(value: Any, status: RunStatus = RunStatus.OK, image: str = PNG) -> tuple[Dialect, list[JSON]]:
    """What the API does with a request: find the calls, run what can be read, answer all."""
    dialect, calls = parse_tool_calls(value)
    answers = []
    for call in calls:
        read = read_call(call)
        if isinstance(read, BadCall):
            answers.append(answer_bad_call(call, read))
        else:
            answers.append(answer_run(call, run(read.code, status, image), 4096))
    messages = tool_messages(dialect, answers)
    json.dumps(messages, allow_nan=False).encode()
    return dialect, messages


def valid(kind: Any, value: Any) -> None:
    pydantic.TypeAdapter(kind).validate_python(value, strict=True)


def chat_completion() -> Any:
    calls = [
        {
            "id": f"call_{i}",
            "type": "function",
            "function": {"name": "execute_python", "arguments": arguments},
        }
        for i, arguments in enumerate((GOOD, BROKEN))
    ]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    return chat.ChatCompletion.model_validate(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "finish_reason": "tool_calls", "logprobs": None, "message": message}],
        }
    )


def dumps(value: Any) -> list[Any]:
    """The ways in which people turn an SDK object into JSON."""
    return [
        value.model_dump(),
        value.model_dump(exclude_none=True),
        value.model_dump(exclude_unset=True),
        json.loads(value.model_dump_json(by_alias=True)),
        value.model_dump_json(),
    ]


def test_a_chat_completion_round_trips() -> None:
    completion = chat_completion()
    message = completion.choices[0].message
    assert message.tool_calls is not None
    posts = [
        *dumps(completion),
        *dumps(message),
        [c.model_dump() for c in message.tool_calls],
        completion.to_dict(),
    ]
    for post in posts:
        dialect, messages = answered(post)
        assert dialect is Dialect.OPENAI_CHAT
        assert [m["tool_call_id"] for m in messages] == ["call_0", "call_1"]
        for reply in messages:
            valid(chat.ChatCompletionToolMessageParam, reply)
            assert isinstance(reply["content"], str)
        assert messages[0]["content"].startswith("1\n")
        assert "The code was not run" in messages[1]["content"]
    conversation = [{"role": "user", "content": "go"}, message.model_dump(exclude_none=True), *messages]
    valid(list[chat.ChatCompletionMessageParam], conversation)


def test_a_legacy_function_call_round_trips() -> None:
    completion = chat_completion()
    message = completion.choices[0].message.model_copy(update={"tool_calls": None})
    legacy = {**message.model_dump(), "function_call": {"name": "python", "arguments": GOOD}}
    _, (reply,) = answered(legacy)
    valid(chat.ChatCompletionFunctionMessageParam, reply)
    assert (reply["role"], reply["name"]) == ("function", "python")


def response() -> Any:
    call = {"type": "function_call", "name": "execute_python", "status": "completed"}
    return responses.Response.model_validate(
        {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "model": "m",
            "output": [
                {"type": "reasoning", "id": "rs_1", "summary": []},
                {
                    "type": "message",
                    "id": "msg_1",
                    "role": "assistant",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": "Hm.", "annotations": []}],
                },
                {**call, "id": "fc_1", "call_id": "call_1", "arguments": GOOD},
                {**call, "id": "fc_2", "call_id": "call_2", "arguments": BROKEN},
            ],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }
    )


def test_a_response_round_trips() -> None:
    whole = response()
    output = whole.model_dump(exclude_none=True)["output"]
    calls = [item.model_dump() for item in whole.output if item.type == "function_call"]
    for post in [*dumps(whole), output, calls, whole.to_dict()]:
        dialect, messages = answered(post)
        assert dialect is Dialect.OPENAI_RESPONSES
        assert [m["call_id"] for m in messages] == ["call_1", "call_2"]
        for reply in messages:
            valid(response_items.FunctionCallOutput, reply)
            assert isinstance(reply["output"], str)
    valid(list[responses.ResponseInputItemParam], [{"role": "user", "content": "go"}, *output, *messages])


def test_a_custom_tool_of_responses_is_answered_in_its_own_form() -> None:
    item = {"type": "custom_tool_call", "id": "i", "call_id": "c", "name": "execute_python", "input": "1"}
    _, (reply,) = answered(item)
    assert reply["type"] == "custom_tool_call_output"
    valid(responses.ResponseInputItemParam, reply)


def anthropic_message() -> Any:
    use = {"type": "tool_use", "name": "execute_python"}
    return anthropic_types.Message.model_validate(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [
                {"type": "text", "text": "Let me see."},
                {**use, "id": "toolu_1", "input": {"code": "1"}},
                {**use, "id": "toolu_2", "input": {}},
            ],
            "stop_reason": "tool_use",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
    )


def test_an_anthropic_message_round_trips_into_one_user_message() -> None:
    message = anthropic_message()
    blocks = [block.model_dump() for block in message.content]
    for post in [*dumps(message), blocks, blocks[1:], message.to_dict()]:
        dialect, messages = answered(post)
        assert dialect is Dialect.ANTHROPIC
        assert len(messages) == 1
        valid(anthropic_types.MessageParam, messages[0])
        good, bad = messages[0]["content"]
        assert (good["tool_use_id"], good["is_error"]) == ("toolu_1", False)
        assert [part["type"] for part in good["content"]] == ["text", "image"]
        assert good["content"][1]["source"] == {"type": "base64", "media_type": "image/png", "data": PNG}
        assert (bad["tool_use_id"], bad["is_error"]) == ("toolu_2", True)


def gemini_response(call_id: str | None) -> Any:
    call = genai_types.FunctionCall(name="execute_python", args={"code": "1"}, id=call_id)
    parts = [genai_types.Part(text="Hm."), genai_types.Part(function_call=call)]
    content = genai_types.Content(role="model", parts=parts)
    return genai_types.GenerateContentResponse(candidates=[genai_types.Candidate(content=content)])


@pytest.mark.parametrize("call_id", [None, "g1"])
def test_a_gemini_response_round_trips_into_one_content(call_id: str | None) -> None:
    whole = gemini_response(call_id)
    assert whole.candidates
    content = whole.candidates[0].content
    assert content is not None
    assert whole.function_calls
    call = whole.function_calls[0].model_dump()
    posts = [*dumps(whole), *dumps(content), [p.model_dump() for p in content.parts or ()], call, [call]]
    for post in posts:
        dialect, messages = answered(post)
        assert dialect is Dialect.GEMINI
        (back,) = [genai_types.Content.model_validate(m) for m in messages]
        assert back.role == "user"
        assert back.parts
        function_response = back.parts[0].function_response
        assert function_response is not None
        assert (function_response.id, function_response.name) == (call_id, "execute_python")
        assert function_response.response
        assert function_response.response["output"].startswith("1\n")


def test_a_failed_gemini_call_is_answered_under_error() -> None:
    _, (message,) = answered({"functionCall": {"name": "execute_python", "args": {}}})
    assert "not run" in message["parts"][0]["functionResponse"]["response"]["error"]


def test_an_mcp_call_round_trips() -> None:
    params = mcp_types.CallToolRequestParams(name="execute_python", arguments={"code": "1"})
    request = {
        "jsonrpc": "2.0",
        "id": 3,
        **mcp_types.CallToolRequest(params=params).model_dump(by_alias=True),
    }
    for post in (*dumps(params), request):
        dialect, (message,) = answered(post)
        assert dialect is Dialect.MCP
        result = mcp_types.CallToolResult.model_validate(message)
        assert [part.type for part in result.content] == ["text", "image"]
        assert not result.is_error
        assert message["structuredContent"]["status"] == "ok"
        assert message["structuredContent"]["files"][0]["path"] == "a.csv"


def test_a_run_that_failed_is_an_error_with_text_alone() -> None:
    _, (message,) = answered(anthropic_message().model_dump()["content"][1:2], RunStatus.ERROR)
    block = message["content"][0]
    assert block["is_error"] is True
    assert [part["type"] for part in block["content"]] == ["text"]
    _, (result,) = answered({"name": "execute_python", "arguments": {"code": "1"}}, RunStatus.TIMEOUT)
    assert result["isError"] is True
    assert result["structuredContent"]["status"] == "timeout"


def png(width: int, size: int = 100) -> str:
    content = bytearray(base64.b64decode(PNG))
    content[16:20] = struct.pack(">I", width)
    return base64.b64encode(bytes(content[:33]) + b"\0" * size + bytes(content[-12:])).decode()


BAD_IMAGES = {
    "not base64": "not base64!",
    "not an image": "AAAA",
    "empty": "",
    "cut off": PNG[:64],
    "only the first bytes": PNG[:12],
    "too wide": png(2001),
    "too many bytes": png(100, 1024**2),
}


@pytest.mark.parametrize("image", BAD_IMAGES.values(), ids=BAD_IMAGES)
def test_what_is_no_small_image_is_not_sent_as_one(image: str) -> None:
    for post in (anthropic_message().model_dump(), {"name": "execute_python", "arguments": {"code": "1"}}):
        _, messages = answered(post, image=image)
        assert '"image"' not in json.dumps(messages)


def test_images_of_all_answers_share_one_limit() -> None:
    block = anthropic_message().model_dump()["content"][1]
    post = [{**block, "id": f"toolu_{i}"} for i in range(3)]
    _, (message,) = answered(post, image=png(2000, 300_000))
    assert json.dumps(message).count('"image"') == 2


def test_no_answers_make_no_messages() -> None:
    assert all(tool_messages(dialect, []) == [] for dialect in Dialect)


def test_the_tool_is_defined_in_each_sdks_own_schema() -> None:
    valid(list[chat.ChatCompletionFunctionToolParam], tool_definitions(Dialect.OPENAI_CHAT))
    valid(list[responses.FunctionToolParam], tool_definitions(Dialect.OPENAI_RESPONSES))
    valid(list[anthropic_types.ToolParam], tool_definitions(Dialect.ANTHROPIC))
    for tool in tool_definitions(Dialect.GEMINI):
        declarations = genai_types.Tool.model_validate(tool).function_declarations
        assert declarations
        assert declarations[0].name == "execute_python"
        assert declarations[0].parameters
    for tool in tool_definitions(Dialect.MCP):
        assert mcp_types.Tool.model_validate(tool).name == "execute_python"
    config = genai_types.GenerateContentConfig.model_validate({"tools": tool_definitions(Dialect.GEMINI)})
    assert config.tools


def _schema(dialect: Dialect) -> Any:
    tool = tool_definitions(dialect)[0]
    tool = tool.get("function") or (tool.get("functionDeclarations") or [tool])[0]
    return tool.get("parameters") or tool.get("input_schema") or tool.get("inputSchema")


@pytest.mark.parametrize("dialect", Dialect)
def test_code_is_required_and_timeout_is_not(dialect: Dialect) -> None:
    schema = _schema(dialect)
    assert schema["required"] == ["code"]
    assert schema["properties"]["code"]["type"] == "string"
    assert schema["properties"]["timeout"]["type"] == "number"
    json.dumps(tool_definitions(dialect))


def test_definitions_are_fresh_each_time() -> None:
    tool_definitions(Dialect.ANTHROPIC)[0]["input_schema"]["properties"].clear()
    assert "code" in tool_definitions(Dialect.ANTHROPIC)[0]["input_schema"]["properties"]


def test_a_call_as_its_own_definition_says_is_read_as_it_is() -> None:
    call = parse_tool_calls({"name": "execute_python", "arguments": {"code": "x", "timeout": 2}})[1][0]
    assert read_call(call) == Invocation("x", 2.0)
