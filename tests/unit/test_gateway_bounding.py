"""What the gateway lets out: sizes, counts, and what never gets lost."""

import json
from typing import Any

import pytest
from jupyter_client.session import DELIM

from interpreter.gateway_extension.bounding import (
    Backlog,
    Bounds,
    Parts,
    bounded,
    bounded_reply,
    cut_text,
    is_forged,
    split,
)
from interpreter.gateway_extension.buffering import ReplayBuffer
from interpreter.gateway_extension.sharing import LITTLE_BYTES, MAX_KEPT_BYTES
from interpreter.jsontext import MAX_MEMBERS

BOUNDS = Bounds(
    max_stream_bytes=1000, max_message_bytes=20_000, max_waiting_bytes=5000, max_parsed_bytes=100_000
)


def message(msg_type: str, content: Any, parent: str = "run") -> Parts:
    header = {"msg_type": msg_type, "msg_id": "m"}
    return [json.dumps(part).encode() for part in (header, {"msg_id": parent}, {}, content)]


def stream(text: str, parent: str = "run") -> Parts:
    return message("stream", {"name": "stdout", "text": text}, parent)


def content(parts: Parts) -> Any:
    return json.loads(parts[3])


def metadata(parts: Parts) -> Any:
    return json.loads(parts[2])


@pytest.mark.parametrize("state", ["dead", "restarting"])
def test_a_kernel_can_not_say_for_the_gateway_that_it_died(state: object) -> None:
    forged = message("status", {"execution_state": state, "interpreter": {"reason": "forged"}})
    spelled = [forged[0].replace(b"status", b"\\u0073tatus"), *forged[1:]]
    escaped = [*forged[:3], forged[3].replace(b"a", b"\\u0061")]
    padded = [*forged[:3], json.dumps({"x": "x" * 10**5, "execution_state": state}).encode()]
    long = [forged[0][:-1] + b"," + b" " * 10**5 + b'"x": 1}', *forged[1:]]
    for parts in (forged, spelled, escaped, padded, long):
        assert is_forged(parts)
        assert Backlog(BOUNDS).admit(parts, 0) == []


@pytest.mark.parametrize("state", ["starting", "busy", "idle"])
def test_what_a_kernel_says_of_itself_passes(state: str) -> None:
    told = message("status", {"execution_state": state})
    assert Backlog(BOUNDS).admit(told, 0) == [told]
    printed = stream('{"execution_state": "dead"}')
    assert Backlog(BOUNDS).admit(printed, 0) == [printed]


@pytest.mark.parametrize(
    "text", ["", "abc", "é" * 1000, "😀" * 999, "a😀" * 500, "\ud800" * 900, "x" * 10_000]
)
def test_a_cut_counts_each_byte_that_is_missing(text: str) -> None:
    head, tail, dropped = cut_text(text, 500)
    size = len(text.encode("utf-8", "surrogatepass"))
    assert len(head.encode()) + len(tail.encode()) + dropped == size or dropped == 0
    assert dropped == 0 or len((head + tail).encode()) <= 500
    assert text.startswith(head)
    assert text.endswith(tail)


def test_small_messages_pass_untouched() -> None:
    parts = stream("x" * 500)
    assert bounded(parts, BOUNDS) is parts


def test_a_long_stream_says_what_is_missing_and_where() -> None:
    cut = bounded(stream("a" * 3000 + "z" * 3000), BOUNDS)
    assert cut is not None
    assert content(cut)["text"] == "a" * 500 + "z" * 500
    assert metadata(cut) == {"interpreter_dropped_bytes": 5000, "interpreter_dropped_at": 500}


def test_a_bundle_keeps_the_values_that_fit() -> None:
    data = {"text/html": "x" * 30_000, "text/plain": "plain", "image/png": "p" * 9000}
    cut = bounded(message("display_data", {"data": data, "metadata": {}}), BOUNDS)
    assert cut is not None
    kept = content(cut)["data"]
    assert set(kept) == {"image/png", "text/plain"}
    assert kept["text/plain"].startswith("plain\n[text/html of 30002 bytes")
    assert metadata(cut)["interpreter_dropped_bytes"] == 30_002


def test_an_error_keeps_its_name_and_the_ends_of_its_text() -> None:
    error = {"ename": "ValueError", "evalue": "y" * 30_000, "traceback": ["t" * 100] * 500}
    cut = bounded(message("error", error), BOUNDS)
    assert cut is not None
    assert content(cut)["ename"] == "ValueError"
    assert content(cut)["evalue"].startswith("yyy")
    assert sum(map(len, cut)) <= BOUNDS.max_message_bytes


@pytest.mark.parametrize("kind", ["stream", "display_data", "error", "execute_result"])
def test_what_is_too_large_to_be_read_is_replaced(kind: str) -> None:
    cut = bounded(message(kind, {"data": {"text/plain": "x" * 200_000}}), BOUNDS)
    assert cut is not None
    assert sum(map(len, cut)) < 1000
    assert metadata(cut)["interpreter_dropped_bytes"] > 200_000


@pytest.mark.parametrize("kind", ["stream", "display_data", "error", "execute_result", "comm_msg"])
def test_what_was_left_out_on_the_way_is_told(kind: str) -> None:
    parts = [*message(kind, {})[:3], b'{"interpreter_left_out":123456}']
    cut = bounded(parts, BOUNDS)
    if kind == "comm_msg":
        assert cut is None
    else:
        assert cut is not None
        assert metadata(cut)["interpreter_dropped_bytes"] == 123456
    assert content(bounded_reply(parts, BOUNDS))["status"] == "error"


def test_a_bundle_of_very_many_values_is_not_looked_at_one_by_one() -> None:
    data = {f"text/x{i}": "v" for i in range(3000)}
    cut = bounded(message("display_data", {"data": data, "metadata": {}}), BOUNDS)
    assert cut is not None
    assert len(content(cut)["data"]) <= MAX_MEMBERS + 1
    assert metadata(cut)["interpreter_dropped_bytes"] > 20_000


def test_large_replies_to_a_client_that_is_away_are_not_kept_for_ever() -> None:
    buffer = ReplayBuffer(Backlog(BOUNDS), lambda parts: b"signed")
    wire = [b"topic", b"<IDS|MSG>", b"signature"]
    large = message("execute_reply", {"status": "ok", "x": "x" * 1_000_000})
    for _ in range(200):
        buffer.append(("shell", [*wire, *large]))
    buffer.append(("shell", [*wire, *message("execute_reply", {"status": "ok"})]))
    assert sum(sum(map(len, parts)) for _, parts in buffer) < 70_000_000
    assert json.loads(buffer[-1][1][-1]) == {"status": "ok"}


def test_a_reply_keeps_its_status() -> None:
    reply = {"status": "ok", "execution_count": 3, "payload": [{"data": {"text/plain": "p" * 90_000}}]}
    cut = bounded_reply(message("execute_reply", reply), BOUNDS)
    assert (content(cut)["status"], content(cut)["execution_count"]) == ("ok", 3)
    assert sum(map(len, cut)) <= BOUNDS.max_message_bytes


@pytest.mark.parametrize("index", [0, 1, 2])
def test_huge_headers_are_bounded_too(index: int) -> None:
    parts = stream("x" * 2000)
    parts[index] = json.dumps({"msg_type": "stream", "junk": "j" * 90_000}).encode()
    cut = bounded(parts, BOUNDS)
    assert cut is not None
    assert sum(map(len, cut)) <= BOUNDS.max_message_bytes
    assert sum(map(len, bounded_reply(parts, BOUNDS))) <= BOUNDS.max_message_bytes


@pytest.mark.parametrize("broken", [b"", b"[" * 50_000, b"\xff" * 30_000, b"[" + b"1," * 20_000 + b"1]"])
def test_nonsense_from_a_kernel_is_bounded_too(broken: bytes) -> None:
    for kind in ("stream", "display_data", "error", "odd"):
        parts = [*message(kind, {})[:3], broken]
        cut = bounded(parts, BOUNDS)
        assert cut is not None
        assert sum(map(len, cut)) <= BOUNDS.max_message_bytes


def test_while_a_client_lags_streams_are_withheld_and_counted() -> None:
    backlog = Backlog(BOUNDS)
    assert backlog.admit(stream("x" * 100), 6000) == []
    assert backlog.admit(stream("x" * 200), 6000) == []
    stub, status = backlog.admit(message("status", {"execution_state": "idle"}), 6000)
    assert content(stub) == {"name": "stdout", "text": ""}
    assert metadata(stub)["interpreter_dropped_bytes"] >= 300
    assert json.loads(stub[1]) == {"msg_id": "run"}
    assert content(status) == {"execution_state": "idle"}
    assert len(backlog.admit(stream("y"), 0)) == 1, "the count is told once"


@pytest.mark.parametrize("kind", ["status", "execute_result", "error", "execute_input"])
def test_what_a_run_can_not_do_without_is_never_withheld(kind: str) -> None:
    parts = message(kind, {})
    assert Backlog(BOUNDS).admit(parts, 10**9) == [parts]


def test_counts_of_two_runs_are_told_to_each() -> None:
    backlog = Backlog(BOUNDS)
    backlog.admit(stream("x" * 100, "one"), 6000)
    backlog.admit(stream("x" * 200, "two"), 6000)
    told = backlog.admit(message("status", {}, "two"), 0)
    assert [json.loads(parts[1])["msg_id"] for parts in told] == ["one", "two", "two"]


def test_the_buffer_of_an_absent_client_is_bounded() -> None:
    buffer = ReplayBuffer(Backlog(BOUNDS), lambda parts: b"signed")
    wire = [b"topic", b"<IDS|MSG>", b"signature"]
    for _ in range(1000):
        buffer.append(("iopub", [*wire, *stream("x" * 100)]))
    buffer.append(("shell", [*wire, *message("execute_reply", {"status": "ok"})]))
    buffer.append(("iopub", [*wire, *message("status", {"execution_state": "idle"})]))
    assert sum(sum(map(len, parts)) for _, parts in buffer) < 7000
    assert [json.loads(parts[3])["msg_type"] for _, parts in buffer[-3:]] == [
        "execute_reply",
        "stream",
        "status",
    ]


@pytest.mark.parametrize("place", [0, 10, 3000, 5900, 6000])
def test_a_second_cut_grows_around_the_first(place: int) -> None:
    """One gap can be told of, so what lies between two is cut as well, and counted."""
    text = "a" * 3000 + "é" * 3000
    parts = stream(text)
    parts[2] = json.dumps({"interpreter_dropped_bytes": 70, "interpreter_dropped_at": place}).encode()
    cut = bounded(parts, BOUNDS)
    assert cut is not None
    kept, at = content(cut)["text"], metadata(cut)["interpreter_dropped_at"]
    assert at <= place
    assert text[:place].startswith(kept[:at])
    assert text[place:].endswith(kept[at:])
    assert metadata(cut)["interpreter_dropped_bytes"] == 70 + len(text.encode()) - len(kept.encode())
    assert len(kept.encode()) <= BOUNDS.max_stream_bytes


@pytest.mark.parametrize("msg_type", ["comm_open", "comm_msg", "comm_close"])
def test_comms_that_are_withheld_are_not_missing_from_the_output(msg_type: str) -> None:
    backlog = Backlog(BOUNDS)
    assert backlog.admit(message(msg_type, {"comm_id": "c", "data": "z" * 500}), 6000) == []
    after = stream("hello\n")
    assert backlog.admit(after, 0) == [after]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ab\r" * 2000, "\rab\r"),
        ("start " + "50%\r" * 2000 + "done\n", "\rdone\n"),
        ("one\n" + "50%\r" * 2000 + "done\nlast\r\n", "one\ndone\nlast\r\n"),
    ],
)
def test_what_a_carriage_return_takes_back_is_not_cut(text: str, shown: str) -> None:
    cut = bounded(stream(text), BOUNDS)
    assert cut is not None
    assert content(cut)["text"] == shown
    assert metadata(cut) == {}


def test_a_progress_bar_that_is_cut_keeps_whole_lines() -> None:
    bars = "".join(f"\r{'#' * 40}{i:4}" for i in range(20))
    cut = bounded(stream("".join(f"{i:02}{bars}\n" for i in range(100))), BOUNDS)
    assert cut is not None
    text, at = content(cut)["text"], metadata(cut)["interpreter_dropped_at"]
    head, tail = text[:at], text[at:]
    assert head.startswith(f"\r{'#' * 40}  19\n")
    assert tail.endswith(f"{'#' * 40}  19\n")
    assert metadata(cut)["interpreter_dropped_bytes"] < 100 * 50


def test_a_stream_of_which_nothing_is_cut_is_not_written_anew() -> None:
    whole = json.dumps({"name": "stdout", "text": "é" * 499}, ensure_ascii=False).encode()
    parts = [*stream("")[:3], whole]
    assert bounded(parts, BOUNDS) is parts


NO_MESSAGES: list[Parts] = [
    [],
    [b""],
    [b"topic"] * 5,
    [DELIM],
    [DELIM, b"signature"],
    [b"id", DELIM, b"signature", b"{}", b"{}", b"{}"],
]


@pytest.mark.parametrize("wire", NO_MESSAGES)
def test_what_is_no_message_has_no_parts(wire: Parts) -> None:
    assert split(wire)[1] == []


def test_a_message_has_its_parts_after_the_signature() -> None:
    parts = [*message("status", {}), b"buffer"]
    assert split([b"id", DELIM, b"signature", *parts]) == (2, parts)


@pytest.mark.parametrize("channel", ["iopub", "shell"])
def test_what_is_no_message_is_not_kept_for_an_absent_client(channel: str) -> None:
    buffer = ReplayBuffer(Backlog(BOUNDS), lambda parts: b"signed")
    for wire in NO_MESSAGES:
        buffer.append((channel, wire))
    assert buffer == []


def test_messages_of_empty_parts_are_not_kept_for_ever() -> None:
    buffer = ReplayBuffer(Backlog(BOUNDS), lambda parts: b"signed")
    for _ in range(10_000):
        buffer.append(("shell", [DELIM, b"", b"", b"", b"", b""]))
    assert len(buffer) < 6000


LARGE = Bounds()
"""As the gateway has them."""


def filled(count: int) -> list[ReplayBuffer]:
    """Buffers of clients that are away, of kernels that send results, which always pass, as long as they are kept."""
    buffers = [ReplayBuffer(Backlog(LARGE), lambda parts: b"signed") for _ in range(count)]
    large = message("execute_result", {"data": {"text/plain": "x" * LITTLE_BYTES}})
    for _ in range(100):
        for buffer in buffers:
            buffer.append(("iopub", [DELIM, b"signature", *large]))
    return buffers


def size(buffers: list[ReplayBuffer]) -> int:
    return sum(len(part) for buffer in buffers for _, wire in buffer for part in wire)


@pytest.mark.parametrize("count", [1, 8, 40])
def test_what_is_kept_of_all_kernels_is_bounded_and_each_has_its_part(count: int) -> None:
    late = Backlog(LARGE)  # of a kernel of which little waits
    before = late.limit
    buffers = filled(count)
    assert size(buffers) < MAX_KEPT_BYTES + 4 * count * LITTLE_BYTES
    assert min(map(len, buffers)) >= max(map(len, buffers)) - 1
    assert late.admit(stream("x" * 500), LITTLE_BYTES) == [stream("x" * 500)]
    del buffers
    assert late.limit == before


def test_what_is_withheld_because_all_have_much_is_counted_as_always() -> None:
    backlog = Backlog(LARGE)
    waiting = LARGE.max_waiting_bytes // 2
    assert backlog.admit(stream("x"), waiting) == [stream("x")]
    buffers = filled(40)
    assert backlog.admit(stream("y" * 100), waiting) == []
    assert backlog.limit >= LITTLE_BYTES
    buffers.clear()
    told, last = backlog.admit(stream("z"), waiting)
    assert metadata(told)["interpreter_dropped_bytes"] > 100
    assert last == stream("z")


def test_what_ends_a_run_is_kept_though_others_have_much() -> None:
    """Also if more was kept before they had; and the client waits for it."""
    buffer = ReplayBuffer(Backlog(LARGE), lambda parts: b"signed")
    wire = [DELIM, b"signature"]
    for _ in range(10):
        buffer.append(("iopub", [*wire, *stream("x" * LITTLE_BYTES)]))
    others = filled(40)
    buffer.append(("iopub", [*wire, *stream("withheld")]))
    buffer.append(("shell", [*wire, *message("execute_reply", {"status": "ok"})]))
    buffer.append(("iopub", [*wire, *message("status", {"execution_state": "idle"})]))
    kinds = [json.loads(parts[2])["msg_type"] for _, parts in buffer]
    assert kinds == ["stream"] * 10 + ["execute_reply", "stream", "status"]
    assert metadata(buffer[-2][1][2:])["interpreter_dropped_bytes"] > 0
    assert len(others) == 40
