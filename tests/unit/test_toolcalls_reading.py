"""Claims about reading calls: valid arguments are left alone, broken ones are repaired or explained."""

import ast
import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interpreter.toolcalls import BadCall, CallKind, Dialect, Invocation, ToolCall, read_call


def read(
    arguments: Any, name: str = "execute_python", kind: CallKind = CallKind.FUNCTION
) -> Invocation | BadCall:
    return read_call(ToolCall(Dialect.OPENAI_CHAT, "call_1", name, arguments, 0, kind))


FENCE_IN_STRING = 's = """\n```python\nx\n```\n"""'

REPAIRED = {
    "bare code": ("print(1 + 1)", "print(1 + 1)"),
    "bare code, several lines": ("import os\nfor i in range(3):\n    print(i)", None),
    "bare code, indented as a whole": ("    x = 1\n    x", "x = 1\nx"),
    "bare code with magics": ("%pip install a\n!ls\nx = !ls\nx?", None),
    "bare code, cell magic": ("%%bash\nls -l | wc", None),
    "bare code, modulo at a line's start": ("a = (7\n     % 3)", None),
    "bare code, top-level await": ("await f()", None),
    "bare set comprehension": ("{x for x in range(3)}", None),
    "fenced code": ("```python\nprint(1)\n```", "print(1)"),
    "fenced code, no language": ("```\nprint(1)\n```\n", "print(1)"),
    "fenced code, CRLF": ("```py\r\nprint(1)\r\n```", "print(1)\r"),
    "fenced code on one line": ("```python print(1)```", "print(1)"),
    "fenced code among words": ("Let me see:\n```python\nprint(1)\n```\nDone.", "print(1)"),
    "fenced JSON": ('```json\n{"code": "print(1)"}\n```', "print(1)"),
    "JSON in a fence without language": ('```\n{"code": "print(1)"}\n```', "print(1)"),
    "JSON holding fenced code": ('{"code": "```python\\nprint(1)\\n```"}', "print(1)"),
    "fence in JSON holding a fence in a string": (
        json.dumps({"code": f"```python\n{FENCE_IN_STRING}\n```"}),
        FENCE_IN_STRING,
    ),
    "byte order mark": ('\ufeff{"code": "print(1)"}', "print(1)"),
    "byte order mark in the code": ('{"code": "\ufeffprint(1)"}', "print(1)"),
    "trailing comma": ('{"code": "print(1)",}', "print(1)"),
    "trailing comma, comma in the code": ('{"code": "a = [1, ]\\nf(1,)",\n}', "a = [1, ]\nf(1,)"),
    "trailing comma and null": ('{"code": "print(1)", "timeout": null,}', "print(1)"),
    "single quotes": ("{'code': 'print(1)'}", "print(1)"),
    "Python literal": ("{'code': 'print(\"a\")', 'timeout': None}", 'print("a")'),
    "triple quotes": ('{"code": """print(1)\nprint("a")"""}', 'print(1)\nprint("a")'),
    "literal newlines": ('{"code": "a = 1\nprint(a)"}', "a = 1\nprint(a)"),
    "literal newlines, whatever the code": ('{"note": "a\nb", "code": "f(\n1"}', "f(\n1"),
    "literal newlines in single quotes": ("{'code': 'a = 1\nprint(a)'}", "a = 1\nprint(a)"),
    "unescaped quotes": ('{"code": "print("hi")"}', 'print("hi")'),
    "unescaped quotes and escapes": ('{"code": "x = "a"\\nprint(x, \\"b\\")"}', 'x = "a"\nprint(x, "b")'),
    "bad escape": (r'{"code": "re.findall(r' + r"'\d+\n'" + r', s)"}', "re.findall(r'\\d+\n', s)"),
    "key without quotes": ('{code: "print(1)"}', "print(1)"),
    "closing brace missing": ('{"code": "print(1)"', "print(1)"),
    "closing brace too many": ('{"code": "print(1)"}}', "print(1)"),
    "end token": ('{"code": "print(1)"}<|call|>', "print(1)"),
    "a remark after the object": ('{"code": "print(1)"}\n\nThis prints 1.', "print(1)"),
    "escaped single quotes": (r"""{"code": "print(\'a\')"}""", "print('a')"),
    "escaped single quotes that Python needs": (r"""{"code": "print('it\'s')"}""", r"print('it\'s')"),
    "fenced dict display": ("```python\n{'a': 1}\n```", "{'a': 1}"),
    "encoded twice": (json.dumps(json.dumps({"code": "print('a')"})), "print('a')"),
    "code as a JSON string": ('"print(1)"', "print(1)"),
    "code as a Python string": ("'print(1)'", "print(1)"),
    "one object in a list": ('[{"code": "print(1)"}]', "print(1)"),
    "arguments in arguments": ('{"arguments": {"code": "print(1)"}}', "print(1)"),
    "arguments as text in arguments": ({"input": '{"code": "print(1)"}'}, "print(1)"),
    "the whole call": ({"name": "execute_python", "arguments": {"code": "print(1)"}}, "print(1)"),
    "key in another case": ({"Code": "print(1)"}, "print(1)"),
    "other key among others": ({"source": "print(1)", "language": "python"}, "print(1)"),
} | {
    f"key {key}": ({key: "print(1)"}, "print(1)")
    for key in ("source", "script", "python", "python_code", "input", "cmd", "query", "__arg1")
}


@pytest.mark.parametrize(("arguments", "code"), REPAIRED.values(), ids=REPAIRED)
def test_unambiguous_arguments_are_repaired(arguments: Any, code: str | None) -> None:
    assert read(arguments) == Invocation(arguments if code is None else code, None)


REFUSED = {
    "empty text": ("", "empty"),
    "blank text": (" \n", "empty"),
    "only a byte order mark": ("\ufeff", "empty"),
    "empty object": ("{}", "empty"),
    "empty mapping": ({}, "empty"),
    "nothing": (None, "empty"),
    "null": ("null", "not a JSON object"),
    "a number": ("42", "not a JSON object"),
    "a list": ([1], "not a JSON object"),
    "a list of two": ('[{"code": "a"}, {"code": "b"}]', "not a JSON object"),
    "empty code": ({"code": " \n"}, "the code is empty"),
    "empty fence": ("```python\n```", "empty"),
    "code of another type": ({"code": ["print(1)"]}, "not a string"),
    "no code": ({"language": "python", "timeout": 3}, '"code" is missing'),
    "two candidates": ({"source": "a", "script": "b"}, '"source" and "script"'),
    "prose": ("I will now compute the sum.", "neither JSON"),
    "cut off": ('{"code": "import pandas as pd\\nprint(pd', "not valid JSON"),
    "cut off bare code": ("print((1 + 2", "nor Python code"),
    "two objects": ('{"code": "a"}{"code": "b"}', "not valid JSON"),
    "more text in quotes after the object": ('{"code": "print("}\n hi")"}', "not valid JSON"),
    "an expression for code": ('{"code": "a" + b}', "not valid JSON"),
    "unescaped quotes, no Python": ('{"code": "print("a")", "note": "b"c"}', "not valid JSON"),
    "two fenced blocks": ("```python\na\n```\nthen\n```python\nb\n```", "neither JSON"),
    "a fence of another language": ("```bash\nls -l /tmp\n```", "neither JSON"),
    "lone surrogate": ('{"code": "print(\'\\ud800\')"}', "surrogate"),
    "lone surrogate in bare code": ("print('\ud800')", ""),
    "braces": ("{" * 5000, "not valid JSON"),
    "deep nesting": ('{"code":' * 100_000, ""),
    "deep lists": ("[" * 100_000, ""),
}


@pytest.mark.parametrize(("arguments", "problem"), REFUSED.values(), ids=REFUSED)
def test_other_arguments_are_answered_with_how_to_call(arguments: Any, problem: str) -> None:
    bad = read(arguments)
    assert isinstance(bad, BadCall)
    assert problem in bad.message
    assert "execute_python" in bad.message
    assert '{"code": "print(1 + 1)"}' in bad.message
    assert bad.message.encode()  # it can be sent
    assert len(bad.message) < 600


VALID = [
    FENCE_IN_STRING,
    '{"code": "x"}',
    "{'a': 1}",
    "'''```python\nx\n```'''",
    "```python\na\n```\nand\n```python\nb\n```",
    "  indented = 1\r\n\n",
    "this is ( not python",
    "x = '\\ud800'",
    "print('日本語 🎉')\t#\x00",
]


@pytest.mark.parametrize("code", VALID)
def test_code_in_valid_arguments_is_not_changed(code: str) -> None:
    assert read({"code": code}) == Invocation(code, None)
    assert read(json.dumps({"code": code})) == Invocation(code, None)
    assert read(json.dumps({"code": code}, ensure_ascii=False)) == Invocation(code, None)


codes = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
    lambda c: c.strip() and not c.startswith("\ufeff") and not c.strip().startswith("```")
)


@given(codes)
def test_any_code_in_valid_arguments_arrives_as_it_is(code: str) -> None:
    assert read(json.dumps({"code": code})) == Invocation(code, None)


@given(codes)
def test_any_code_survives_what_models_do_to_json(code: str) -> None:
    text = json.dumps({"code": code})
    for broken in (
        "```json\n" + text + "\n```",
        text[:-1] + ",}",
        json.dumps(text),
        "\ufeff" + text,
        text[:-1],
    ):
        assert read(broken) == Invocation(code, None)


pieces = st.sampled_from(
    [
        *"{}[]\"'\\,:`%!?\n ",
        "code",
        "timeout",
        "```python\n",
        '{"code": "',
        '"}',
        "\\n",
        "\\u",
        "\ud800",
        "1",
        "\ufeff",
    ]
)


@given(st.one_of(st.text(), st.text(string.printable), st.lists(pieces, max_size=30).map("".join)))
def test_no_text_makes_it_raise(text: str) -> None:
    read(text)
    read(text, name=text)
    read(text, kind=CallKind.CUSTOM)
    for answer in (read({"code": text}), read({"input": text, "timeout": text})):
        if isinstance(answer, Invocation):
            assert answer.code.encode()


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["code", "input", "arguments", "timeout", "a"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(json_values)
def test_no_value_makes_it_raise(value: Any) -> None:
    read(value)


@given(st.lists(pieces, max_size=30).map("".join))
def test_bare_text_runs_only_if_it_is_python(text: str) -> None:
    answer = read(text)
    if isinstance(answer, Invocation) and not set("{`%!?\"'\\") & set(text):
        ast.parse(answer.code)


@pytest.mark.parametrize(
    ("timeout", "seconds"),
    [
        (5, 5.0),
        (2.5, 2.5),
        ("30", 30.0),
        (" 1.5 ", 1.5),
        ("30s", 30.0),
        ("10 seconds", 10.0),
        (None, None),
        ("", None),
    ],
)
def test_timeout_is_a_number_of_seconds_or_the_text_of_one(timeout: Any, seconds: float | None) -> None:
    assert read({"code": "1", "timeout": timeout}) == Invocation("1", seconds)


@pytest.mark.parametrize(
    "timeout", [0, -1, "soon", "1 h", True, [3], float("nan"), float("inf"), 10**400, "-1"]
)
def test_other_timeouts_are_explained(timeout: Any) -> None:
    bad = read({"code": "1", "timeout": timeout})
    assert isinstance(bad, BadCall)
    assert '"timeout" is not a positive number of seconds' in bad.message


def test_the_timeout_is_read_beside_wrapped_and_repaired_code() -> None:
    assert read({"timeout": 3, "arguments": {"code": "1"}}) == Invocation("1", 3.0)
    assert read('{"code": "print("a")", "timeout": 7}') == Invocation('print("a")', 7.0)
    assert read({"source": "1", "timeout_seconds": "4"}) == Invocation("1", 4.0)


@pytest.mark.parametrize(
    "name",
    [
        "execute_python",
        "Execute-Python",
        "python",
        "code_interpreter",
        "run_python",
        "execute_code",
        "functions.execute_python",
        "functions.execute_python:0",
        "mcp__interpreter__execute_python",
    ],
)
def test_the_names_that_models_use_for_the_tool_are_known(name: str) -> None:
    assert read({"code": "1"}, name=name) == Invocation("1", None)


@pytest.mark.parametrize("name", ["get_weather", "", "bash", "execute_python_x" * 100, "\ud800", "a\nb"])
def test_an_unknown_tool_is_answered_with_the_name_of_the_one_there_is(name: str) -> None:
    bad = read({"code": "1"}, name=name)
    assert isinstance(bad, BadCall)
    assert "no tool named" in bad.message
    assert "is named execute_python" in bad.message
    assert bad.message.isascii()
    assert "\n" not in bad.message
    assert len(bad.message) < 400


def test_free_text_of_a_custom_tool_is_the_code() -> None:
    assert read('{"code": "x"}', kind=CallKind.CUSTOM) == Invocation('{"code": "x"}', None)
    assert read("```python\nx\n```", kind=CallKind.CUSTOM) == Invocation("x", None)
    assert isinstance(read({"code": "x"}, kind=CallKind.CUSTOM), BadCall)


def test_large_valid_arguments_are_read_and_large_broken_ones_refused_at_once() -> None:
    code = "x = 1\n" * 100_000
    assert read(json.dumps({"code": code})) == Invocation(code, None)
    assert isinstance(read('{"code": "' + '\\"' * 500_000), BadCall)
    assert isinstance(read('{"code": "' + '\\"' * 60_000), BadCall)
    assert isinstance(read('{"code": "' + ', "' * 60_000), BadCall)
