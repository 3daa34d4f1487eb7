"""The pure parts of the command line: event streams, comparison, what a terminal shows, runtime files."""

import json
import os
import stat
import subprocess
import sys
from datetime import UTC, datetime
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interpreter.__main__ import main
from interpreter.app import InterpreterApp
from interpreter.cli.client import Address
from interpreter.cli.compare import MAX_DIFF_LINES, differences, normalize
from interpreter.cli.dates import read_date
from interpreter.cli.events import EventParser, ServerEvent
from interpreter.cli.output import can_write, harmless, table, write
from interpreter.cli.show import output_text, size_text, unshown
from interpreter.errors import SettingsError
from interpreter.models import JSON
from interpreter.runtime_file import find_running, remove_runtime_file, write_runtime_file

# Event streams

STREAM = "\ufeff: hello\n\nid: 1\nevent: output\ndata: {\ndata:  é}\n\nretry: 5\nnonsense\ndata\n\nevent: x\n\ndata: end\n\n"
EVENTS = [ServerEvent("output", "{\n é}"), ServerEvent("message", ""), ServerEvent("message", "end")]


@given(st.data(), st.sampled_from(["\n", "\r\n", "\r"]))
def test_events_are_the_same_however_the_stream_is_cut(data: st.DataObject, newline: str) -> None:
    content = STREAM.replace("\n", newline).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=8)))
    parser, events = EventParser(), []
    for start, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
        events += parser.feed(content[start:end])
    assert events == EVENTS


def test_an_event_that_was_not_finished_is_not_given() -> None:
    assert EventParser().feed(b"data: half\n") == []


# Entry


def test_ctrl_c_while_the_program_is_loaded_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(InterpreterApp, "launch_instance", interrupted)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130


# Comparison


def stream(text: str, name: str = "stdout") -> JSON:
    return {"output_type": "stream", "name": name, "text": text}


def result(data: JSON, count: int = 1) -> JSON:
    return {"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data}


@pytest.mark.parametrize(
    ("recorded", "replayed"),
    [
        ("<object object at 0x7f2a10b3c8d0>", "<object object at 0x7faaaaaaaaaa>"),
        (
            "CPU times: user 2 ms, sys: 1 ms\nWall time: 3 ms",
            "CPU times: user 9 s, sys: 0 ns\nWall time: 1 s",
        ),
        (
            "10 ns ± 1 ns per loop (mean ± std. dev. of 7 runs, 10 loops each)",
            "12 ns ± 2 ns per loop (mean ± std. dev. of 7 runs, 100 loops each)",
        ),
        ("100%|##| 3/3 [00:00<00:00, 9.1it/s]", "100%|##| 3/3 [00:01<00:00, 2.0it/s]"),
        ("Cell In[3], line 1", "Cell In[17], line 1"),
        ("/tmp/ipykernel_12/345.py:1: UserWarning", "/var/tmp/ipykernel_9/1.py:1: UserWarning"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("id 123e4567-e89b-12d3-a456-426614174000", "id 00000000-0000-0000-0000-000000000000"),
    ],
)
def test_what_differs_by_its_nature_is_equal(recorded: str, replayed: str) -> None:
    assert differences([stream(recorded)], [stream(replayed)]) == []
    assert normalize(recorded) == normalize(replayed)


def test_execution_counts_are_no_difference() -> None:
    assert differences([result({"text/plain": "1"}, 1)], [result({"text/plain": "1"}, 9)]) == []


@pytest.mark.parametrize(
    ("recorded", "replayed"),
    [
        ([stream("a")], [stream("b")]),
        ([stream("a")], [stream("a", "stderr")]),
        ([stream("a")], []),
        ([result({"text/plain": "1"})], [result({"text/plain": "1", "text/html": "<b>1</b>"})]),
        ([result({"image/png": "AAAA"})], [result({"image/png": "BBBB"})]),
        ([result({"application/json": {"a": 1}})], [result({"application/json": {"a": 2}})]),
    ],
)
def test_real_differences_are_shown(recorded: list[JSON], replayed: list[JSON]) -> None:
    assert differences(recorded, replayed)[:2] == ["--- recorded", "+++ replayed"]


def test_a_diff_stays_short() -> None:
    diff = differences([stream("a\n" * 100)], [stream("b\n" * 100)])
    assert len(diff) == MAX_DIFF_LINES + 1
    assert diff[-1].endswith("more lines")


# What a terminal shows


def test_text_stands_for_html_but_not_for_an_image() -> None:
    assert unshown(result({"text/plain": "df", "text/html": "<table>"})) == []
    assert unshown(result({"text/plain": "fig", "image/png": "A" * 4096})) == ["image/png, 3.0 kB"]
    assert unshown(result({"text/html": "<b>é</b>"})) == ["text/html, 9 bytes"]


def test_output_text_has_no_ansi_and_ends_its_line() -> None:
    error = {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["\x1b[31mE\x1b[0m: v"]}
    assert output_text(error) == "E: v\n"
    assert output_text({**error, "traceback": []}) == "E: v\n"
    assert output_text(stream("a")) == "a\n"
    assert output_text(stream("")) == ""


def test_sizes_are_for_people() -> None:
    assert [size_text(size) for size in (0, 1, 1536, 3 * 1024**2)] == [
        "0 bytes",
        "1 byte",
        "1.5 kB",
        "3.0 MB",
    ]


def test_recorded_text_can_t_steer_the_terminal() -> None:
    assert harmless("a\x1b[2J\r\x9b\x7f\tb\n") == "a\\x1b[2J\\x0d\\x9b\\x7f\tb\n"


def test_what_a_terminal_can_t_show_is_escaped() -> None:
    stream_ = TextIOWrapper(content := BytesIO(), encoding="ascii")
    assert not can_write(stream_, "✓")
    write(stream_, "é ✓ a")
    assert content.getvalue() == rb"\xe9 \u2713 a"


def test_columns_are_aligned() -> None:
    assert table([("A", "B"), ("long", "x")]) == "A     B\nlong  x"


def test_dates_are_iso_8601() -> None:
    assert read_date("2030-01-31T12:00Z", "since") == datetime(2030, 1, 31, 12, tzinfo=UTC)
    with pytest.raises(SettingsError, match="--since must be an ISO 8601 date or time"):
        read_date("tomorrow", "since")


# Where the service is


def test_the_printed_address_can_be_given_as_it_is() -> None:
    address = Address.parse("http://127.0.0.1:8889/?token=abc", "")
    assert (address.url, address.token) == ("http://127.0.0.1:8889", "abc")
    assert "abc" not in repr(address)
    assert Address.parse("http://127.0.0.1:8889/base/", "own").token == "own"


@pytest.mark.parametrize("text", ["127.0.0.1:8889", "ftp://x", "http://", "http://x:port"])
def test_what_is_no_url_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"^url "):
        Address.parse(text, "")


def test_a_runtime_file_is_private_and_found_until_it_is_removed(tmp_path: Path) -> None:
    assert find_running(tmp_path) is None
    path = write_runtime_file(tmp_path, "http://127.0.0.1:1", "secret")
    assert path == tmp_path / "runtime" / f"service-{os.getpid()}.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    found = find_running(tmp_path)
    assert found is not None
    assert (found.url, found.token, found.pid) == ("http://127.0.0.1:1", "secret", os.getpid())
    assert "secret" not in repr(found)
    remove_runtime_file(path)
    remove_runtime_file(path)
    assert find_running(tmp_path) is None


def test_the_newest_service_that_lives_is_found(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    mine = write_runtime_file(tmp_path, "http://newest", "t")
    for pid, url, age in ((dead.pid, "http://dead", -10), (os.getppid(), "http://older", 10)):
        other = mine.with_name(f"service-{pid}.json")
        other.write_text(json.dumps({"url": url, "token": "t", "pid": pid}))
        other.chmod(0o600)
        os.utime(other, (mine.stat().st_mtime - age,) * 2)
    found = find_running(tmp_path)
    assert found is not None
    assert found.url == "http://newest"
    mine.chmod(0o644)  # others can read it, so it is not one that a service wrote
    found = find_running(tmp_path)
    assert found is not None
    assert found.url == "http://older"
    write_runtime_file(tmp_path, "http://newest", "t")
    assert not mine.with_name(f"service-{dead.pid}.json").exists()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"url": "u", "token": "t", "pid": "x"}'])
def test_a_runtime_file_that_is_not_one_is_passed_over(content: str, tmp_path: Path) -> None:
    path = write_runtime_file(tmp_path, "http://x", "t")
    path.write_text(content)
    assert find_running(tmp_path) is None
