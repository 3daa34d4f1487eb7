"""Input is checked strictly, and a complaint names the field and never repeats the value."""

import subprocess
import sys
from typing import Any

import pytest

from interpreter.api.jsonbody import dump_json, find_surrogate, parse_json
from interpreter.api.limits import RateLimiter
from interpreter.api.paging import page_of
from interpreter.api.query import read_query, read_time
from interpreter.api.schemas import Schemas
from interpreter.errors import InvalidRequestError
from interpreter.settings import Settings

SCHEMAS = Schemas(Settings())


@pytest.mark.parametrize(
    ("schema", "value", "param"),
    [
        ("RunCreate", [], None),
        ("RunCreate", {}, "code"),
        ("RunCreate", {"code": None}, "code"),
        ("RunCreate", {"code": 1}, "code"),
        ("RunCreate", {"code": "1", "timeout": True}, "timeout"),
        ("RunCreate", {"code": "1", "timeout": "5"}, "timeout"),
        ("RunCreate", {"code": "1", "timeout": 0}, "timeout"),
        ("RunCreate", {"code": "1", "timeout": -1}, "timeout"),
        ("RunCreate", {"code": "1", "timeout": 3601}, "timeout"),
        ("RunCreate", {"code": "1", "stream": "yes"}, "stream"),
        ("RunCreate", {"code": "1", "kernel_name": "python3"}, "kernel_name"),
        ("RunCreate", {"code": "1", "tool_call_id": "x" * 257}, "tool_call_id"),
        ("OneOffRunCreate", {"code": "1", "kernel_name": 3}, "kernel_name"),
        ("SessionCreate", {"idle_timeout": 0}, "idle_timeout"),
        ("SessionCreate", {"network": "everything"}, "network"),
        ("SessionCreate", {"metadata": {"a": 1}}, "metadata.a"),
        ("SessionCreate", {"metadata": {"a": "x" * 513}}, "metadata.a"),
        ("SessionCreate", {"metadata": {"k" * 65: "x"}}, "metadata"),
        ("SessionCreate", {"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
        ("SessionCreate", {"metadata": []}, "metadata"),
        ("TokenCreate", {"name": "x"}, "role"),
        ("TokenCreate", {"name": "", "role": "run"}, "name"),
        ("TokenCreate", {"name": "x", "role": "root"}, "role"),
        ("ToolCallsCreate", {"tool_calls": 1}, "tool_calls"),
        ("Empty", {"force": True}, "force"),
    ],
)
def test_a_wrong_field_is_named(schema: str, value: Any, param: str | None) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SCHEMAS.validate(schema, value)
    assert caught.value.param == param
    assert caught.value.message.endswith(".")


def test_a_complaint_never_repeats_the_value() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SCHEMAS.validate("RunCreate", {"code": ["hunter2"]})
    assert caught.value.message == "`code` must be a string."


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("RunCreate", {"code": ""}),
        ("RunCreate", {"code": "a\x00b", "timeout": 0.5, "tool_call_id": None, "stream": False}),
        ("RunCreate", {"code": "1", "timeout": 3600}),
        ("SessionCreate", {}),
        ("SessionCreate", {"network": None, "metadata": {"k" * 64: "v" * 512}}),
        ("ToolCallsCreate", {"tool_calls": {"id": "1"}}),
    ],
)
def test_what_the_contract_allows_passes(schema: str, value: Any) -> None:
    SCHEMAS.validate(schema, value)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": 1e999}',
        b'{"a": ' + b"1" * 5000 + b"}",
        b"[" * 100_000,
        b"{} {}",
    ],
)
def test_malformed_json_is_refused_without_a_param(body: bytes) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_json(body)
    assert caught.value.param is None


def test_a_field_given_twice_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_json(b'{"code": "1", "code": "2"}')
    assert caught.value.param == "code"


def test_lone_surrogates_are_found_and_can_still_be_answered() -> None:
    value = parse_json(b'{"a": [{"b": "\\ud800"}], "c": "\\ud83d\\ude00"}')
    assert find_surrogate(value) == ("a", "0", "b")
    assert parse_json(dump_json(value)) == value


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=1.5", "limit"),
        ("limit=x", "limit"),
        ("limit=1&limit=2", "limit"),
        ("order=up", "order"),
        ("sort=asc", "sort"),
        ("after=%ff", "after"),
    ],
)
def test_a_wrong_query_parameter_is_named(query: str, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_query(query, "ListQuery", SCHEMAS)
    assert caught.value.param == param


def test_an_empty_query_parameter_is_an_absent_one() -> None:
    assert read_query("after=&limit=5", "ListQuery", SCHEMAS) == {"limit": 5}


@pytest.mark.parametrize(
    "text",
    ["2031-05-01T12:00:00Z", "2031-05-01T14:00:00+02:00", "2031-05-01T14:00:00 02:00", "2031-05-01T12"],
)
def test_times_are_read_in_any_offset(text: str) -> None:
    assert read_time(text, "since").timestamp() == 1935403200


def test_a_wrong_time_is_named() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_time("yesterday", "since")
    assert caught.value.param == "since"


def _page(query: dict[str, Any]) -> dict[str, Any]:
    return page_of(["c", "b", "a"], query, id_of=str, show=lambda item: {"id": item})


def test_pages_follow_each_other() -> None:
    first = _page({"limit": 2})
    assert ([i["id"] for i in first["data"]], first["has_more"]) == (["c", "b"], True)
    second = _page({"limit": 2, "after": first["last_id"]})
    assert (second["first_id"], second["last_id"], second["has_more"]) == ("a", "a", False)


def test_pages_go_the_other_way() -> None:
    assert [i["id"] for i in _page({"order": "asc"})["data"]] == ["a", "b", "c"]


def test_an_unknown_cursor_is_refused() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        _page({"after": "z"})
    assert caught.value.param == "after"


def test_an_empty_page_has_no_ids() -> None:
    assert _page({"after": "a"}) == {"data": [], "has_more": False, "first_id": None, "last_id": None}


def test_a_used_up_rate_comes_back_evenly() -> None:
    now = 0.0
    limiter = RateLimiter(2, lambda: now)
    assert [limiter.take("a"), limiter.take("a")] == [0, 0]
    assert limiter.take("a") == pytest.approx(30)
    assert limiter.take("b") == 0
    now = 30.0
    assert limiter.take("a") == 0
    assert limiter.take("a") > 0


def test_a_rate_of_zero_is_no_limit() -> None:
    limiter = RateLimiter(0, lambda: 0.0)
    assert not any(limiter.take("a") for _ in range(1000))


def test_a_start_takes_in_no_grammar_of_formats() -> None:
    """jsonschema would, where it is installed: a second or two, for formats that no schema here has."""
    code = "import sys, interpreter.api, jsonschema\nprint({'lark', 'rfc3987_syntax'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
