"""MCP's pure parts: results of runs, URIs of files, encoded headers, origins."""

import base64
import struct
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interpreter.frontends.mcp.origins import Origins
from interpreter.frontends.mcp.protocol import decode_header, encode_header
from interpreter.frontends.mcp.tools import MAX_IMAGE_BYTES, Form, parse_uri, run_result, uri_of
from interpreter.models import FileChange, Folded, Run, RunError, RunStatus
from interpreter.toolcalls import Dialect, ToolCall, answer_run

SESSION = "s" * 21
CALL = ToolCall(Dialect.MCP, "1", "execute_python", {"code": "1"}, 0)
FILE = FileChange("a.csv", 3, "text/csv", "created", "/v1/a.csv")
RUN = Run(
    f"run_{SESSION}_1", SESSION, "owner", RunStatus.OK, "1", datetime(2031, 1, 1, tzinfo=UTC), 120.0,
    files=(FILE, replace(FILE, path="gone", change="deleted")),
)  # fmt: skip


def png(size: int) -> str:
    head = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + struct.pack(">II", 9, 9)
    return base64.b64encode(head + b"x" * size + b"\0\0\0\0IEND\xaeB`\x82").decode()


def result_of(run: Run, form: Form = Form.FULL, *, links: bool = True) -> dict:
    return run_result(answer_run(CALL, run, 2000), form, 2000, ["A note."], links=links)


def test_links_lead_to_files_that_are_there_if_the_client_knows_links() -> None:
    result = result_of(RUN)
    assert [block.get("name") for block in result["content"]] == [None, "a.csv"]
    assert parse_uri(result["content"][1]["uri"]) == (SESSION, "a.csv")
    assert [block["type"] for block in result_of(RUN, links=False)["content"]] == ["text"]


def test_notes_come_before_the_text() -> None:
    assert result_of(RUN)["content"][0]["text"].startswith("A note.\n\n")


def test_images_stop_where_an_answer_would_be_too_large() -> None:
    pictures = [
        {"output_type": "display_data", "metadata": {}, "data": {"image/png": png(size)}}
        for size in (10, MAX_IMAGE_BYTES, 20)
    ]
    run = replace(RUN, folded=Folded(outputs=tuple(pictures)))
    found = [block["data"] for block in result_of(run)["content"] if block["type"] == "image"]
    assert found == [png(10), png(20)]
    urls = [output["url"] for output in result_of(run, Form.SMG)["structuredContent"]["outputs"]]
    assert urls == [f"data:image/png;base64,{data}" for data in found]


def test_structure_is_bounded() -> None:
    error = RunError("Big", "e" * 9000, tuple("t" * 100 for _ in range(90)))
    run = replace(RUN, folded=Folded(stdout="o" * 9000, stderr="é" * 9000, result="r" * 9000, error=error))
    found = result_of(run)["structuredContent"]
    for text in (found["stdout"], found["stderr"], found["result"], *found["error"]["traceback"]):
        assert len(text.encode()) <= 2000
    assert len(found["error"]["evalue"]) <= 2000


def test_gpt_oss_gets_one_text_also_of_failed_code() -> None:
    failed = replace(RUN, status=RunStatus.ERROR, folded=Folded(error=RunError("E", "v")))
    result = result_of(failed, Form.TEXT)
    assert set(result) == {"content", "isError"}
    assert (len(result["content"]), result["isError"]) == (1, False)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_uri_names_the_file_again(path: str) -> None:
    assert parse_uri(uri_of(SESSION, path)) == (SESSION, path)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_header_says_the_text_again(text: str) -> None:
    header = encode_header(text)
    assert header.isascii()
    assert decode_header(header) == text


@pytest.mark.parametrize(
    ("ip", "names", "host", "origin", "welcome"),
    [
        ("127.0.0.1", "", "localhost:1", None, True),
        ("127.0.0.1", "", "[::1]:1", "http://[::1]:1", True),
        ("127.0.0.1", "", "name.example", None, False),
        ("127.0.0.1", "name.example", "NAME.example:80", "https://name.example", True),
        ("127.0.0.1", ",,", "name.example", None, False),
        ("127.0.0.1", ",,", "localhost:1", None, True),
        ("127.0.0.1", "*", "anything", "null", True),
        ("0.0.0.0", "", "interpreter:8889", None, True),
        ("0.0.0.0", "", "10.0.0.1:8889", "http://10.0.0.1:8889", True),
        ("0.0.0.0", "", "10.0.0.1:8889", "http://10.0.0.2:8889", False),
        ("0.0.0.0", "", "evil.example", "http://evil.example", False),
        ("0.0.0.0", "", "localhost", "file://localhost", False),
        ("0.0.0.0", "", "[", None, False),
    ],
)
def test_origins(ip: str, names: str, host: str, origin: str | None, welcome: bool) -> None:
    assert Origins.parse(ip, names).allow(host, origin) is welcome
