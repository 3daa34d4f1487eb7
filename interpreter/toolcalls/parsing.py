"""Find the tool calls in what a client posts: single calls, lists of them, whole model responses."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn

from interpreter.errors import InvalidRequestError
from interpreter.toolcalls.calls import CallKind, Dialect, ToolCall

MAX_CALLS = 64  # of one request; a model makes a few at once
_MAX_DEPTH = 8  # a whole response needs five: [response] → choices → choice → message → call

_ANSWER_TYPES = frozenset({"function_call_output", "custom_tool_call_output", "tool_result"})
_ANSWER_ROLES = frozenset({"tool", "function"})

_GEMINI_PARTS = frozenset(
    [
        "text",
        "inlineData",
        "inline_data",
        "fileData",
        "file_data",
        "executableCode",
        "executable_code",
        "codeExecutionResult",
        "code_execution_result",
        "thought",
        "thoughtSignature",
        "thought_signature",
    ]
)


@dataclass(frozen=True, slots=True)
class _Found:
    dialect: Dialect
    call_id: Any
    name: Any
    arguments: Any
    kind: CallKind = CallKind.FUNCTION


def parse_tool_calls(value: Any) -> tuple[Dialect, tuple[ToolCall, ...]]:
    """The calls in ``value``, in order, and the one dialect that they have.

    Takes one or a list of: Chat Completions ``tool_calls``, Responses ``function_call`` items,
    Anthropic ``tool_use`` blocks, Gemini ``functionCall`` parts (also snake_case), MCP ``tools/call``
    params or requests. Also what holds them: a chat message or completion, a Response, an Anthropic
    message, a Gemini response, content or part list, and the JSON text of any of these. Of several
    choices or candidates the first counts. Parts that are no calls (text, reasoning) are passed over.

    Raises InvalidRequestError (``param`` is ``tool_calls``) when there is no call or too many, when dialects are
    mixed, when something is not of a known form, or when it holds a call's answer: the calls of a
    conversation that goes on would run twice.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            _fail("`tool_calls` is a string that is not JSON; send the calls as the model's SDK gives them.")
    found = list(islice(_find(value, "tool_calls", 0), MAX_CALLS + 1))
    if len(found) > MAX_CALLS:
        _fail(f"`tool_calls` holds more than {MAX_CALLS} calls; send fewer at once.")
    if not found:
        _fail("`tool_calls` holds no tool call; send the calls that the model made, one or a list.")
    dialects = sorted({f.dialect.value for f in found})
    if len(dialects) > 1:
        _fail(f"`tool_calls` mixes dialects ({', '.join(dialects)}); send the calls of one model response.")
    return found[0].dialect, tuple(_tool_call(f, index) for index, f in enumerate(found))


def _fail(message: str) -> NoReturn:
    raise InvalidRequestError(message, param="tool_calls")


def _find(value: Any, path: str, depth: int) -> Iterator[_Found]:
    if depth > _MAX_DEPTH:
        _fail("`tool_calls` is nested too deeply; send the calls themselves, one or a list.")
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _find(item, f"{path}[{index}]", depth + 1)
        return
    if not isinstance(value, dict):
        _fail(f"`{path}` is no object; a tool call is an object with a name and arguments.")
    _refuse_answer(value, path)
    call = _read(value, path)
    if call is not None:
        yield call
        return
    inside = _contents(value)
    if inside is not None:
        key, contents = inside
        yield from _find(contents, f"{path}.{key}", depth + 1)
    elif not _is_other_part(value):
        _fail(
            f"`{path}` is no tool call of a known form: Chat Completions `tool_calls`, Responses "
            "`function_call`, Anthropic `tool_use`, Gemini `functionCall` or MCP `tools/call`."
        )


def _refuse_answer(item: Mapping[str, Any], path: str) -> None:
    item_type, role = item.get("type"), item.get("role")
    if isinstance(item_type, str):
        is_answer = item_type in _ANSWER_TYPES
    elif isinstance(role, str):
        is_answer = role in _ANSWER_ROLES
    else:
        is_answer = any(isinstance(item.get(k), dict) for k in ("functionResponse", "function_response"))
    if is_answer:
        _fail(f"`{path}` is the answer to a call; send only the calls that have not been answered.")


def _read(item: Mapping[str, Any], path: str) -> _Found | None:
    """The call that ``item`` itself is, None when it is not one."""
    item_type = item.get("type")
    if item_type == "function_call":
        call_id = item.get("call_id") or item.get("id")
        return _Found(Dialect.OPENAI_RESPONSES, call_id, item.get("name"), item.get("arguments"))
    if item_type == "custom_tool_call":
        call_id = item.get("call_id") or item.get("id")
        return _Found(Dialect.OPENAI_RESPONSES, call_id, item.get("name"), item.get("input"), CallKind.CUSTOM)
    if item_type == "tool_use":
        return _Found(Dialect.ANTHROPIC, item.get("id"), item.get("name"), item.get("input"))
    if item_type in (None, "", "function", "custom"):
        return _read_chat(item, path) or (None if item_type else _read_untyped(item))
    return None


def _read_chat(item: Mapping[str, Any], path: str) -> _Found | None:
    function, custom = item.get("function"), item.get("custom")
    if isinstance(function, dict):
        return _Found(Dialect.OPENAI_CHAT, item.get("id"), function.get("name"), function.get("arguments"))
    if isinstance(custom, dict):
        return _Found(
            Dialect.OPENAI_CHAT, item.get("id"), custom.get("name"), custom.get("input"), CallKind.CUSTOM
        )
    if item.get("type"):
        _fail(f"`{path}.{item['type']}` is missing; it holds the name and the arguments of the call.")
    return None


def _read_untyped(item: Mapping[str, Any]) -> _Found | None:
    """Gemini's, MCP's and the legacy chat form: calls that carry no ``type``."""
    if isinstance(item.get("tool_calls"), list) and item["tool_calls"]:
        return None
    part = item.get("functionCall") or item.get("function_call")
    if isinstance(part, dict):
        if "arguments" in part:
            return _Found(Dialect.OPENAI_CHAT, None, part.get("name"), part["arguments"], CallKind.LEGACY)
        return _Found(Dialect.GEMINI, part.get("id"), part.get("name"), part.get("args"))
    params = item.get("params")
    if item.get("method") == "tools/call" and isinstance(params, dict):
        return _Found(Dialect.MCP, item.get("id"), params.get("name"), params.get("arguments"))
    if isinstance(item.get("name"), str) and not {"role", "content", "parameters"} & item.keys():
        # google-genai's `response.function_calls` gives the bare call.
        if "args" in item:
            return _Found(Dialect.GEMINI, item.get("id"), item["name"], item["args"])
        return _Found(Dialect.MCP, item.get("id"), item["name"], item.get("arguments"))
    return None


def _contents(item: Mapping[str, Any]) -> tuple[str, Any] | None:
    """The key and value of the thing inside which the calls of ``item`` are."""
    for key in ("choices", "candidates"):
        if isinstance(item.get(key), list):
            return key, item[key][:1]
    for key in ("message", "content"):  # of a choice, of a candidate
        if isinstance(item.get(key), dict):
            return key, item[key]
    if item.get("tool_calls") and isinstance(item["tool_calls"], list):
        return "tool_calls", item["tool_calls"]
    if isinstance(item.get("output"), list) and (item.get("object") == "response" or not item.get("type")):
        return "output", item["output"]
    for key in ("content", "parts"):
        if isinstance(item.get(key), list):
            return key, item[key]
    return None


def _is_other_part(item: Mapping[str, Any]) -> bool:
    """Whether ``item`` is a part of a model's response that is no call (text, reasoning, an image)."""
    item_type = item.get("type")
    if isinstance(item_type, str) and item_type:
        return item_type != "tool_call"  # a framework's own form: silence would hide that nothing ran
    return isinstance(item.get("role"), str) or not _GEMINI_PARTS.isdisjoint(item)


def _tool_call(found: _Found, index: int) -> ToolCall:
    if not isinstance(found.name, str):
        _fail(f"Call {index} of `tool_calls` has no name; it must be a string.")
    given = found.call_id
    if isinstance(given, int) and not isinstance(given, bool):
        given = str(given)  # a JSON-RPC id may be a number
    id_given = isinstance(given, str) and given != ""
    call_id = given if id_given else _made_id(found, index)
    return ToolCall(found.dialect, call_id, found.name, found.arguments, index, found.kind, id_given)


def _made_id(found: _Found, index: int) -> str:
    """An id that is the same whenever the same call is posted at the same place."""
    try:
        content = json.dumps([index, found.name, found.arguments], sort_keys=True, default=str)
    except (RecursionError, TypeError, ValueError):
        _fail(f"The arguments of call {index} of `tool_calls` are no JSON value, or nested too deeply.")
    return f"call_{hashlib.sha256(content.encode()).hexdigest()[:24]}"
