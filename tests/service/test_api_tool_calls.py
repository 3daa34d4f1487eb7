"""Tool calls over HTTP: in order, in the caller's dialect, and never lost."""

import json
from typing import Any

import pytest
from fakes import Api, error_of

from interpreter.errors import RateLimitedError
from interpreter.toolcalls import Dialect


def call(code: str, call_id: str = "call_1", **more: Any) -> dict[str, Any]:
    arguments = json.dumps({"code": code, **more})
    return {"id": call_id, "type": "function", "function": {"name": "execute_python", "arguments": arguments}}


async def ask(api: Api, calls: Any, **more: Any) -> dict[str, Any]:
    response = await api.ask("POST", "/v1/tool_calls", {"tool_calls": calls, **more})
    assert response.code == 200, response.body
    answer: dict[str, Any] = json.loads(response.body)
    return answer


@pytest.mark.parametrize("dialect", list(Dialect))
async def test_tools_are_given_as_each_dialect_takes_them(api: Api, dialect: str) -> None:
    response = await api.ask("GET", f"/v1/tools?dialect={dialect}", token="review")
    assert response.code == 200
    assert "execute_python" in response.body.decode()


async def test_calls_run_in_order_in_a_session_that_is_made_and_returned(api: Api) -> None:
    answer = await ask(api, [call("a", "1"), call("b", "2")])
    assert [run["code"] for run in answer["runs"]] == ["a", "b"]
    assert [m["tool_call_id"] for m in answer["messages"]] == ["1", "2"]
    assert list(api.sessions.live) == [answer["session_id"]]
    again = await ask(api, call("c", "3"), session_id=answer["session_id"])
    assert again["runs"][0]["session_id"] == answer["session_id"]


async def test_stateless_calls_have_no_session(api: Api) -> None:
    answer = await ask(api, [call("a", "1"), call("b", "2")], stateless=True)
    assert answer["session_id"] is None
    assert len({run["session_id"] for run in answer["runs"]}) == 2
    assert api.sessions.live == {}


async def test_stateless_calls_in_a_session_are_refused(api: Api) -> None:
    session_id = await api.make_session()
    body = {"tool_calls": [call("a")], "session_id": session_id, "stateless": True}
    assert error_of(await api.ask("POST", "/v1/tool_calls", body))["param"] == "stateless"


async def test_an_unknown_tool_is_400_and_nothing_runs(api: Api) -> None:
    other = call("x", "2")
    other["function"]["name"] = "launch_rocket"
    response = await api.ask("POST", "/v1/tool_calls", {"tool_calls": [call("a", "1"), other]})
    error = error_of(response)
    assert (response.code, error["type"], error["param"]) == (400, "invalid_request", "tool_calls")
    assert "execute_python" in error["message"]
    assert "launch_rocket" in error["message"]
    assert api.runs.requests == []
    assert api.sessions.live == {}


async def test_a_request_holds_at_most_64_calls(api: Api) -> None:
    response = await api.ask("POST", "/v1/tool_calls", {"tool_calls": [call("a")] * 65})
    assert (response.code, error_of(response)["param"]) == (400, "tool_calls")
    assert api.runs.requests == []
    assert len((await ask(api, [call("a")] * 64))["runs"]) == 64


async def test_a_whole_completion_as_json_text_is_read(api: Api) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [call("a", "1")]}
    completion = {"id": "c", "object": "chat.completion", "choices": [{"index": 0, "message": message}]}
    answer = await ask(api, json.dumps(completion))
    assert [(m["role"], m["tool_call_id"]) for m in answer["messages"]] == [("tool", "1")]
    assert [run["code"] for run in answer["runs"]] == ["a"]


async def test_a_call_that_makes_no_sense_is_answered_to_the_model(api: Api) -> None:
    broken = call("x", "1")
    broken["function"]["arguments"] = "{}"
    answer = await ask(api, [broken, call("b", "2")])
    assert [m["tool_call_id"] for m in answer["messages"]] == ["1", "2"]
    assert "execute_python" in answer["messages"][0]["content"]
    assert [run["code"] for run in answer["runs"]] == ["b"]


async def test_half_a_surrogate_pair_in_a_models_code_is_answered_to_the_model(api: Api) -> None:
    block = {"type": "tool_use", "id": "t", "name": "execute_python", "input": {"code": "'\ud83d'"}}
    answer = await ask(api, [block])
    assert answer["messages"]


async def test_results_are_kept_when_a_later_call_is_refused(api: Api) -> None:
    api.runs.errors["b"] = RateLimitedError("The queue is full.")
    answer = await ask(api, [call("a", "1"), call("b", "2"), call("c", "3")])
    assert [run["code"] for run in answer["runs"]] == ["a"]
    assert "Not run" in answer["messages"][1]["content"]
    assert "Not run" in answer["messages"][2]["content"]


async def test_a_first_call_that_is_refused_leaves_no_session(api: Api) -> None:
    api.runs.errors["a"] = RateLimitedError("The queue is full.")
    response = await api.ask("POST", "/v1/tool_calls", {"tool_calls": [call("a")]})
    assert (response.code, error_of(response)["type"]) == (429, "rate_limited")
    assert response.headers["Retry-After"] == "1"
    assert api.sessions.live == {}


async def test_a_timeout_above_the_limit_is_lowered_to_it(api: Api) -> None:
    await ask(api, [call("a", timeout=10**6)])
    assert api.runs.requests[0].timeout == api.settings.max_execute_timeout
