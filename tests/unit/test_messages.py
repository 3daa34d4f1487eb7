"""messages.py against Jupyter Server's own writers and readers of websocket frames."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jupyter_server.services.kernels.connection.base import (
    deserialize_msg_from_ws_v1,
    serialize_binary_message,
    serialize_msg_to_ws_v1,
)

from interpreter.messages import (
    BadMessageError,
    Message,
    decode,
    encode,
    execute_request,
    kernel_info_request,
    new_msg_id,
    silent_request,
)

CHANNELS = st.sampled_from(["shell", "iopub", "control", "stdin"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
CONTENTS = st.dictionaries(st.text(max_size=8), VALUES, max_size=4)
NAMES = ("header", "parent_header", "metadata", "content")


def kernel_message(content: Any, *, parent: str = "p", msg_type: str = "stream") -> dict[str, Any]:
    return {
        "header": {"msg_id": "m", "msg_type": msg_type, "date": "2026-01-01T00:00:00Z"},
        "parent_header": {"msg_id": parent} if parent else {},
        "metadata": {"a": 1},
        "content": content,
    }


def v1_frame(message: dict[str, Any], channel: str, buffers: list[bytes]) -> bytes:
    parts = [json.dumps(message[name]).encode() for name in NAMES] + buffers
    frame: bytes = serialize_msg_to_ws_v1(parts, channel)  # type: ignore[no-untyped-call]
    return frame


@given(channel=CHANNELS, content=CONTENTS)
def test_jupyter_server_reads_what_encode_writes_in_v1(channel: str, content: dict[str, Any]) -> None:
    frame = encode(channel, "execute_request", content, msg_id="m", client_id="c", v1=True)
    seen_channel, parts = deserialize_msg_from_ws_v1(frame)  # type: ignore[no-untyped-call]
    header, parent, metadata, seen = (json.loads(part) for part in parts)
    assert (seen_channel, parent, metadata, seen) == (channel, {}, {}, content)
    assert (header["msg_id"], header["session"], header["msg_type"]) == ("m", "c", "execute_request")


@given(channel=CHANNELS, content=CONTENTS)
def test_encode_writes_the_legacy_form_as_json_text(channel: str, content: dict[str, Any]) -> None:
    frame = encode(channel, "execute_request", content, msg_id="m", client_id="c", v1=False)
    assert isinstance(frame, str)
    message = json.loads(frame)
    assert (message["channel"], message["content"], message["buffers"]) == (channel, content, [])
    assert (message["header"]["msg_id"], message["parent_header"]) == ("m", {})


@given(channel=CHANNELS, content=CONTENTS, buffers=st.lists(st.binary(max_size=20), max_size=3))
def test_decode_reads_what_jupyter_server_writes(
    channel: str, content: dict[str, Any], buffers: list[bytes]
) -> None:
    message = kernel_message(content)
    legacy = message | {"channel": channel}
    frames: list[tuple[bytes | str, bool]] = [
        (v1_frame(message, channel, buffers), True),
        (serialize_binary_message(legacy | {"buffers": buffers}), False),  # type: ignore[no-untyped-call]
    ]
    if not buffers:
        frames.append((json.dumps(legacy | {"buffers": []}), False))
    for frame, v1 in frames:
        seen = decode(frame, v1=v1)
        assert (seen.channel, seen.msg_type, seen.msg_id, seen.parent_id) == (channel, "stream", "m", "p")
        assert (seen.content, seen.metadata) == (content, {"a": 1})
        assert [bytes(part) for part in seen.buffers] == buffers


@given(frame=st.binary() | st.text() | VALUES.map(json.dumps), v1=st.booleans())
def test_a_frame_is_a_message_or_a_bad_message_error(frame: bytes | str, v1: bool) -> None:
    with pytest.raises(BadMessageError):
        decode(frame, v1=v1)


@given(
    cut=st.integers(min_value=0, max_value=400),
    at=st.integers(min_value=0, max_value=400),
    byte=st.binary(min_size=1, max_size=1),
    v1=st.booleans(),
)
def test_a_damaged_frame_never_raises_anything_else(cut: int, at: int, byte: bytes, v1: bool) -> None:
    message = kernel_message({"name": "stdout", "text": "x"}) | {"channel": "iopub", "buffers": [b"b"]}
    good: bytes = v1_frame(message, "iopub", [b"b"]) if v1 else serialize_binary_message(message)  # type: ignore[no-untyped-call]
    at %= len(good)
    for frame in (good[:cut], good[:at] + byte + good[at + 1 :]):
        try:
            assert isinstance(decode(frame, v1=v1), Message)
        except BadMessageError:
            continue


@given(value=VALUES, name=st.sampled_from(NAMES))
def test_a_part_of_the_wrong_shape_never_raises_anything_else(value: Any, name: str) -> None:
    message = kernel_message({}) | {name: value}
    for frame, v1 in ((v1_frame(message, "iopub", []), True), (json.dumps(message), False)):
        try:
            seen = decode(frame, v1=v1)
        except BadMessageError:
            continue
        assert isinstance(seen.content, dict)
        assert isinstance(seen.metadata, dict)


@pytest.mark.parametrize("frame", ["[" * 100_000, b"\xff\xff\xff\xff", (2**63).to_bytes(8, "little") * 9, ""])
@pytest.mark.parametrize("v1", [True, False])
def test_hostile_frames_are_refused(frame: bytes | str, v1: bool) -> None:
    with pytest.raises(BadMessageError):
        decode(frame, v1=v1)


def test_what_is_not_utf_8_is_replaced_and_the_message_kept() -> None:
    """Jupyter's JSON packer writes `'\\udcff'` as the byte 0xFF (``surrogateescape``)."""
    message = kernel_message({"name": "stdout", "text": "a?b"})
    broken = v1_frame(message, "iopub", []).replace(b"a?b", b"a\xffb")
    legacy = serialize_binary_message(message | {"channel": "iopub", "buffers": [b"x"]})  # type: ignore[no-untyped-call]
    for frame, v1 in ((broken, True), (legacy.replace(b"a?b", b"a\xffb"), False)):
        seen = decode(frame, v1=v1)
        assert (seen.content["text"], seen.parent_id) == ("a\ufffdb", "p")


def test_a_status_without_a_parent_has_an_empty_parent_id() -> None:
    message = kernel_message({"execution_state": "dead"}, parent="", msg_type="status")
    seen = decode(v1_frame(message, "iopub", []), v1=True)
    assert (seen.parent_id, seen.execution_state) == ("", "dead")


@pytest.mark.parametrize(("msg_type", "state"), [("stream", "idle"), ("status", ["idle"]), ("status", None)])
def test_only_a_status_with_a_text_has_an_execution_state(msg_type: str, state: Any) -> None:
    message = kernel_message({"execution_state": state}, msg_type=msg_type)
    assert decode(v1_frame(message, "iopub", []), v1=True).execution_state is None


def test_a_cell_may_not_read_stdin_and_a_silent_request_leaves_no_history() -> None:
    assert execute_request("1")[1]["allow_stdin"] is False
    assert execute_request("1")[1]["store_history"] is True
    kind, content = silent_request("", {"a": "b"})
    assert (kind, content["silent"], content["store_history"]) == ("execute_request", True, False)
    assert content["user_expressions"] == {"a": "b"}
    assert kernel_info_request() == ("kernel_info_request", {})
    assert new_msg_id() != new_msg_id()
