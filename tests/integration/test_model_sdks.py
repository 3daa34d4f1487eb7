"""The official SDKs' objects through our tools: what a model asks for is run, and the loop goes on."""

import json
from typing import Any

import httpx
import pytest
from lazily import Lazy
from model_server import Script, model_server

anthropic, openai = Lazy("anthropic"), Lazy("openai")
CODE = json.dumps({"code": "x = 6 * 7\nprint('seen')\nx"})
AGAIN = json.dumps({"code": "x + 1"})
TURNS: Script = [[CODE], [AGAIN, AGAIN]]
BROKEN: Script = [["{'code': "], [CODE]]
WRONG: Script = [['{"timeout": 5}'], [CODE]]


def run_tools(api: httpx.Client, calls: list[Any], session: str | None) -> tuple[list[Any], str]:
    """What an application does with tool calls: post them as the SDK has them, append what comes."""
    body = {"tool_calls": [call.model_dump() for call in calls]} | (
        {"session_id": session} if session else {}
    )
    answer = api.post("/v1/tool_calls", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["messages"], answer.json()["session_id"]


def tools(api: httpx.Client, dialect: str) -> Any:
    return api.get("/v1/tools", params={"dialect": dialect}).json()


def chat_loop(api: httpx.Client, url: str) -> tuple[str, list[Any]]:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
    messages: list[Any] = [{"role": "user", "content": "compute"}]
    session = None
    with client:
        for _ in range(6):
            completion = client.chat.completions.create(
                model="m", messages=messages, tools=tools(api, "openai-chat")
            )
            message = completion.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return message.content or "", messages
            answers, session = run_tools(api, message.tool_calls, session)
            messages += answers
    raise AssertionError("the loop did not end")


def responses_loop(api: httpx.Client, url: str) -> tuple[str, list[Any]]:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
    items: list[Any] = [{"role": "user", "content": "compute"}]
    session = None
    with client:
        for _ in range(6):
            response = client.responses.create(model="m", input=items, tools=tools(api, "openai-responses"))
            items += response.output
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                return response.output_text, items
            answers, session = run_tools(api, calls, session)
            items += answers
    raise AssertionError("the loop did not end")


def anthropic_loop(api: httpx.Client, url: str) -> tuple[str, list[Any]]:
    client = anthropic.Anthropic(base_url=url, api_key="k", max_retries=0)
    messages: list[Any] = [{"role": "user", "content": "compute"}]
    session = None
    with client:
        for _ in range(6):
            message = client.messages.create(
                model="m", max_tokens=100, messages=messages, tools=tools(api, "anthropic")
            )
            messages.append({"role": "assistant", "content": message.content})
            calls = [block for block in message.content if block.type == "tool_use"]
            if not calls:
                return message.content[0].text, messages  # type: ignore[union-attr]
            answers, session = run_tools(api, calls, session)
            messages += answers
    raise AssertionError("the loop did not end")


LOOPS = {"chat completions": chat_loop, "responses": responses_loop, "anthropic": anthropic_loop}


@pytest.mark.parametrize("name", LOOPS)
def test_loop_goes_on_to_the_final_answer(api: httpx.Client, name: str) -> None:
    with model_server(TURNS) as url:
        final, messages = LOOPS[name](api, url)
    assert final.startswith("final: ")
    assert "43" in final
    assert "seen" in str(messages)


@pytest.mark.parametrize("name", ["chat completions", "responses"])
@pytest.mark.parametrize("script", [BROKEN, WRONG], ids=["no JSON", "no code"])
def test_broken_arguments_are_told_to_the_model(api: httpx.Client, name: str, script: Script) -> None:
    with model_server(script) as url:
        final, messages = LOOPS[name](api, url)
    assert "42" in final
    told = str(messages[2] if name == "chat completions" else next(m for m in messages if "output" in str(m)))
    assert "code" in told


def test_wrong_input_of_an_anthropic_block_is_told_to_the_model(api: httpx.Client) -> None:
    with model_server(WRONG) as url:
        final, messages = anthropic_loop(api, url)
    assert "42" in final
    (block,) = messages[2]["content"]
    assert block["is_error"] is True
