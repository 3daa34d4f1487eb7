"""Claims about finding calls: every form that SDKs give or people paste, and what is refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interpreter.errors import InvalidRequestError
from interpreter.toolcalls import CallKind, Dialect, ToolCall, parse_tool_calls

ARGS = '{"code": "1 + 1"}'
CHAT = {"id": "call_a", "type": "function", "function": {"name": "execute_python", "arguments": ARGS}}
CHAT_MESSAGE = {
    "role": "assistant",
    "content": None,
    "refusal": None,
    "function_call": None,
    "tool_calls": [CHAT],
}
RESPONSES = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_a",
    "name": "execute_python",
    "arguments": ARGS,
    "status": "completed",
    "caller": None,
}
ANTHROPIC = {
    "type": "tool_use",
    "id": "toolu_1",
    "name": "execute_python",
    "input": {"code": "1"},
    "caller": None,
}
GEMINI = {"functionCall": {"name": "execute_python", "args": {"code": "1"}, "id": "g1"}}
GEMINI_SNAKE: dict[str, Any] = {
    "text": None,
    "thought": None,
    "function_call": {"id": None, "name": "execute_python", "args": {}},
}
MCP = {"name": "execute_python", "arguments": {"code": "1"}}
LEGACY = {
    "role": "assistant",
    "content": None,
    "function_call": {"name": "execute_python", "arguments": ARGS},
}

FORMS: dict[str, tuple[Any, Dialect]] = {
    "chat call": (CHAT, Dialect.OPENAI_CHAT),
    "chat call without type": ({"id": "a", "function": CHAT["function"]}, Dialect.OPENAI_CHAT),
    "chat call with index and nulls": ({**CHAT, "index": 0, "custom": None}, Dialect.OPENAI_CHAT),
    "chat message": (CHAT_MESSAGE, Dialect.OPENAI_CHAT),
    "chat completion": (
        {"object": "chat.completion", "choices": [{"index": 0, "message": CHAT_MESSAGE}], "usage": None},
        Dialect.OPENAI_CHAT,
    ),
    "choice": ({"finish_reason": "tool_calls", "index": 0, "message": CHAT_MESSAGE}, Dialect.OPENAI_CHAT),
    "only the key": ({"tool_calls": [CHAT]}, Dialect.OPENAI_CHAT),
    "legacy": (LEGACY, Dialect.OPENAI_CHAT),
    "responses item": (RESPONSES, Dialect.OPENAI_RESPONSES),
    "output list": (
        [
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hm."}]},
            RESPONSES,
        ],
        Dialect.OPENAI_RESPONSES,
    ),
    "response": ({"object": "response", "error": None, "output": [RESPONSES]}, Dialect.OPENAI_RESPONSES),
    "tool_use": (ANTHROPIC, Dialect.ANTHROPIC),
    "content list": ([{"type": "text", "text": "Let me"}, ANTHROPIC], Dialect.ANTHROPIC),
    "anthropic message": (
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": ""}, ANTHROPIC],
        },
        Dialect.ANTHROPIC,
    ),
    "part": (GEMINI, Dialect.GEMINI),
    "snake_case part": (GEMINI_SNAKE, Dialect.GEMINI),
    "bare gemini call": (GEMINI["functionCall"], Dialect.GEMINI),
    "parts": ([{"text": "Hm", "thoughtSignature": "x"}, GEMINI], Dialect.GEMINI),
    "gemini content": ({"role": "model", "parts": [{"text": "Hm"}, GEMINI]}, Dialect.GEMINI),
    "gemini response": (
        {"candidates": [{"content": {"role": "model", "parts": [GEMINI]}}], "usageMetadata": {}},
        Dialect.GEMINI,
    ),
    "mcp params": (MCP, Dialect.MCP),
    "mcp params with nulls": ({**MCP, "_meta": None, "task": None}, Dialect.MCP),
    "mcp params without arguments": ({"name": "execute_python"}, Dialect.MCP),
    "mcp request": ({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": MCP}, Dialect.MCP),
    "custom chat tool": (
        {"id": "c", "type": "custom", "custom": {"name": "execute_python", "input": "1"}},
        Dialect.OPENAI_CHAT,
    ),
    "custom responses tool": (
        {"type": "custom_tool_call", "call_id": "c", "name": "execute_python", "input": "1"},
        Dialect.OPENAI_RESPONSES,
    ),
}


@pytest.mark.parametrize(("value", "dialect"), FORMS.values(), ids=FORMS)
def test_every_form_is_found_alone_in_a_list_and_as_text(value: Any, dialect: Dialect) -> None:
    for posted in (value, [value], json.dumps(value)):
        found, (call,) = parse_tool_calls(posted)
        assert found is dialect
        assert (call.dialect, call.name, call.index) == (dialect, "execute_python", 0)
        assert call.call_id


def test_calls_keep_their_order_ids_and_arguments() -> None:
    second = {**CHAT, "id": "call_b", "function": {"name": "other", "arguments": {"code": "2"}}}
    _, calls = parse_tool_calls({"role": "assistant", "tool_calls": [CHAT, second]})
    assert calls == (
        ToolCall(Dialect.OPENAI_CHAT, "call_a", "execute_python", ARGS, 0),
        ToolCall(Dialect.OPENAI_CHAT, "call_b", "other", {"code": "2"}, 1),
    )


def test_responses_calls_are_answered_by_call_id_not_item_id() -> None:
    assert parse_tool_calls(RESPONSES)[1][0].call_id == "call_a"
    assert parse_tool_calls({**RESPONSES, "call_id": None})[1][0].call_id == "fc_1"


def test_a_missing_id_is_made_and_the_same_each_time() -> None:
    call = {"id": None, "function": CHAT["function"]}
    _, first = parse_tool_calls([call, call])
    _, again = parse_tool_calls([call, {**call, "id": ""}])
    assert first == again
    assert first[0].call_id != first[1].call_id
    assert not first[0].id_given


def test_a_numeric_request_id_becomes_text() -> None:
    request = {"jsonrpc": "2.0", "id": 0, "method": "tools/call", "params": MCP}
    (call,) = parse_tool_calls(request)[1]
    assert (call.call_id, call.id_given) == ("0", True)


def test_legacy_and_custom_calls_are_marked() -> None:
    assert parse_tool_calls(LEGACY)[1][0].kind is CallKind.LEGACY
    custom = parse_tool_calls(FORMS["custom chat tool"][0])[1][0]
    assert (custom.kind, custom.arguments) == (CallKind.CUSTOM, "1")


def test_only_the_first_choice_counts() -> None:
    other = {"message": {"role": "assistant", "tool_calls": [{**CHAT, "id": "call_b"}]}}
    _, calls = parse_tool_calls({"choices": [{"message": CHAT_MESSAGE}, other]})
    assert [call.call_id for call in calls] == ["call_a"]


REFUSED: dict[str, tuple[Any, str]] = {
    "empty list": ([], "no tool call"),
    "null": (None, "no object"),
    "number": (7, "no object"),
    "text": ("run it", "not JSON"),
    "list of text": (["print(1)"], "`tool_calls[0]` is no object"),
    "empty object": ({}, "no tool call of a known form"),
    "message without calls": ({"role": "assistant", "content": "Hello"}, "no tool call"),
    "empty tool_calls": ({"role": "assistant", "content": "Hello", "tool_calls": []}, "no tool call"),
    "response without calls": ({"object": "response", "output": []}, "no tool call"),
    "only text parts": ([{"type": "text", "text": "a"}], "no tool call"),
    "mixed": ([CHAT, ANTHROPIC], "mixes dialects (anthropic, openai-chat)"),
    "function missing": ([CHAT, {"id": "x", "type": "function"}], "`tool_calls[1].function` is missing"),
    "no name": ({"function": {"arguments": ARGS}}, "no name"),
    "name of another type": ({**RESPONSES, "name": 3}, "no name"),
    "a framework's form": ({"type": "tool_call", "name": "a", "args": {}}, "known form"),
    "a tool definition": ({"name": "execute_python", "parameters": {}}, "known form"),
    "unknown beside a call": ([CHAT, {"foo": 1}], "`tool_calls[1]`"),
    "answered, responses": (
        [RESPONSES, {"type": "function_call_output", "call_id": "call_a", "output": "2"}],
        "`tool_calls[1]` is the answer",
    ),
    "answered, chat": ([CHAT_MESSAGE, {"role": "tool", "tool_call_id": "call_a", "content": "2"}], "answer"),
    "answered, anthropic": ([{"role": "user", "content": [{"type": "tool_result"}]}], "answer"),
    "answered, gemini": ([GEMINI, {"functionResponse": {"name": "x"}}], "answer"),
    "nested too deeply": ([[[[[[[[[[[CHAT]]]]]]]]]]], "nested too deeply"),
}


@pytest.mark.parametrize(("value", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_holds_no_call_is_refused_with_a_sentence(value: Any, sentence: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_tool_calls(value)
    assert sentence in caught.value.message
    assert caught.value.param == "tool_calls"


keys = st.sampled_from(
    [
        "type",
        "role",
        "id",
        "call_id",
        "name",
        "function",
        "function_call",
        "functionCall",
        "arguments",
        "args",
        "input",
        "content",
        "parts",
        "output",
        "choices",
        "message",
        "tool_calls",
        "params",
        "method",
        "candidates",
        "text",
    ]
)
words = st.sampled_from(
    ["function", "function_call", "tool_use", "tools/call", "assistant", "x", "", "custom"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=5),
    max_leaves=20,
)


@given(values)
def test_any_json_gives_calls_or_the_one_error(value: Any) -> None:
    try:
        dialect, calls = parse_tool_calls(value)
    except InvalidRequestError:
        return
    assert calls
    assert {call.dialect for call in calls} == {dialect}
