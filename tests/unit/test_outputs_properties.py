"""Properties of the folding: equal to nbclient's with streams joined, indifferent to chunking, always valid."""

import json
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from outputs_kit import (
    IDLE,
    Kit,
    clear,
    display,
    error,
    fold,
    limits,
    message,
    nbclient_outputs,
    reply,
    result,
    stream,
    update,
    validate,
)

from interpreter.messages import Message
from interpreter.models import JSON

TEXT = st.text(st.sampled_from("ab\n\r\bé😀\x1b"), max_size=12)
NAMES = st.sampled_from(["stdout", "stderr"])
DATA = st.fixed_dictionaries(
    {"text/plain": TEXT}, optional={"text/html": TEXT, "application/json": st.lists(st.integers())}
)
IDS = st.sampled_from([None, "a", "b"])
IOPUB = st.one_of(
    st.builds(stream, TEXT, NAMES),
    st.builds(stream, TEXT, NAMES),
    st.builds(display, DATA, IDS, st.just({"m": 1})),
    st.builds(update, DATA, st.sampled_from(["a", "b", "c"])),
    st.builds(result, DATA, st.integers(1, 9)),
    st.builds(error),
    st.builds(clear, st.booleans()),
    st.builds(message, st.sampled_from(["execute_input", "shutdown_reply"])),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(IOPUB, max_size=14))
def test_outputs_are_those_of_nbclient_with_streams_joined_and_folded(messages: list[Message]) -> None:
    outputs = joined(nbclient_outputs(*messages))
    for output in outputs:
        if output["output_type"] == "stream":
            output["text"] = reference_fold(output["text"])
    assert list(fold(*messages).outputs) == outputs


def joined(outputs: list[JSON]) -> list[JSON]:
    """Texts of one stream that directly follow each other as one output."""
    found: list[JSON] = []
    for output in outputs:
        if found and output["output_type"] == "stream" and output["name"] == found[-1].get("name"):
            found[-1]["text"] += output["text"]
        else:
            found.append({**output})
    return found


def reference_fold(text: str) -> str:
    """The definition of what carriage returns and backspaces do."""
    lines = []
    for line in re.sub(r".*\r(?=[^\n])", "", text).split("\n"):
        shown: list[str] = []
        for char in line:
            if char != "\b":
                shown.append(char)
            elif shown:
                shown.pop()
        lines.append("".join(shown))
    return "\n".join(lines)


def reference_cut(text: str, limit: int) -> tuple[str, int]:
    """The definition of head and tail, on the whole folded text."""
    data = text.encode()
    head = data[: limit * 3 // 4].decode(errors="ignore")
    rest = data[len(head.encode()) :]
    room = limit - len(head.encode())
    if len(rest) <= room:
        return text, 0
    tail = rest[len(rest) - room :].decode(errors="ignore")
    dropped = len(rest) - len(tail.encode())
    return f"{head}\n[… {dropped:,} bytes not shown …]\n{tail}", dropped


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.text(st.sampled_from("ab\n\r\bé😀"), max_size=20), min_size=1, max_size=12),
    st.integers(0, 40),
)
def test_a_cut_stream_is_the_head_and_tail_of_the_folded_text(chunks: list[str], limit: int) -> None:
    folded = fold(*map(stream, chunks), limits=limits(max_output_bytes=limit))
    text, dropped = reference_cut(reference_fold("".join(chunks)), limit)
    assert folded.outputs[0]["text"] == text
    assert folded.dropped_bytes == dropped
    assert folded.truncated == bool(dropped)


LONG = st.builds(lambda text, times: text * times, TEXT, st.integers(0, 700))
FIGURE = display({"text/plain": "figure"})


@settings(max_examples=200, deadline=None)
@given(st.lists(st.builds(stream, LONG, NAMES) | st.just(FIGURE), max_size=10), st.integers(4000, 12_000))
def test_the_outputs_of_a_name_share_its_limit(messages: list[Message], limit: int) -> None:
    folded = fold(*messages, limits=limits(max_output_bytes=limit))
    shown = dict.fromkeys(["stdout", "stderr"], 0)
    lost = dict(shown)
    outputs = joined(nbclient_outputs(*messages))
    for output in outputs:
        if output["output_type"] != "stream":
            continue
        text, name = reference_fold(output["text"]), output["name"]
        output["text"], dropped = reference_cut(text, max(limit - shown[name], min(limit, 4096)))
        shown[name] += len(text.encode()) - dropped
        lost[name] += dropped
    assert list(folded.outputs) == outputs
    assert folded.dropped_bytes == sum(lost.values())
    assert set(folded.notices) == {
        f"{name} was cut: {shown[name]:,} of {shown[name] + lost[name]:,} bytes are shown."
        for name in shown
        if lost[name]
    }


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.builds(stream, st.text("ab\n", max_size=5), NAMES) | st.just(FIGURE), max_size=20),
    st.integers(2, 6),
)
def test_too_many_outputs_cost_no_text(messages: list[Message], count: int) -> None:
    folded = fold(*messages, limits=limits(max_outputs=count))
    for name, text in (("stdout", folded.stdout), ("stderr", folded.stderr)):
        assert text == "".join(m.content["text"] for m in messages if m.content.get("name") == name)
    assert len(folded.outputs) <= count


@settings(max_examples=300, deadline=None)
@given(st.lists(IOPUB.filter(lambda m: m.content.get("text") != ""), max_size=14))
def test_live_events_put_together_are_the_outputs(messages: list[Message]) -> None:
    kit = Kit().feed(*messages)
    outputs: list[JSON] = []
    for kind, data in kit.events:
        if kind == "output.clear":
            outputs.clear()
        elif kind == "output.update":
            outputs[data["index"]] = data["output"]
        elif data["index"] == len(outputs):
            outputs.append({**data["output"]})
        else:
            assert outputs[data["index"]]["name"] == data["output"]["name"]
            outputs[data["index"]]["text"] += data["output"]["text"]
    for output in outputs:
        if output["output_type"] == "stream":
            output["text"] = reference_fold(output["text"])
    assert outputs == kit.outputs


@st.composite
def divided(draw: Any) -> tuple[list[Message], list[Message]]:
    """The same messages twice, with each stream text divided at will and idle and reply put anywhere."""
    messages = draw(st.lists(IOPUB, max_size=8))
    parts: list[Message] = []
    for each in messages:
        text = each.content.get("text") if each.msg_type == "stream" else None
        if not text:
            parts.append(each)
            continue
        cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
        bounds = zip([0, *cuts], [*cuts, len(text)], strict=True)
        parts += [stream(text[a:b], each.content["name"]) for a, b in bounds]
    answer = draw(st.sampled_from([reply(), reply("error", ename="E", evalue="v", traceback=["t"])]))
    moved = list(parts)
    for extra in (answer, IDLE):
        moved.insert(draw(st.integers(0, len(moved))), extra)
    return [*messages, answer, IDLE], moved


@settings(max_examples=300, deadline=None)
@given(divided(), st.integers(4, 60), st.integers(1, 6))
def test_chunking_and_the_place_of_reply_and_idle_change_nothing(
    twins: tuple[list[Message], list[Message]], size: int, count: int
) -> None:
    small = limits(max_output_bytes=size, max_outputs=max(count, 2))
    whole, divided_ = (Kit(limits=small).feed(*each) for each in twins)
    whole.folder.close()
    divided_.folder.close()
    assert whole.folded == divided_.folded


JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.sampled_from(["\ud800", "a\ud83d\x00", "application/json"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
MIMES = st.sampled_from(
    ["text/plain", "application/json", "application/x+json", "application/json\n", "image/png", "", "\udfff"]
)
KEYS = ["data", "metadata", "transient", "name", "text", "ename", "evalue", "traceback"]
KEYS += ["execution_count", "wait", "status", "payload"]
CONTENT = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(KEYS, JUNK),
        "data": st.dictionaries(MIMES, JUNK, max_size=3) | JUNK,
        "transient": st.fixed_dictionaries({"display_id": JUNK | IDS}) | JUNK,
        "payload": st.lists(
            st.fixed_dictionaries({"source": st.sampled_from(["page", "ask_exit"])}, optional={"data": JUNK})
            | JUNK,
            max_size=2,
        )
        | JUNK,
        "status": st.sampled_from(["ok", "error", "aborted"]) | JUNK,
    },
)
TYPES = ["stream", "display_data", "execute_result", "update_display_data", "error", "clear_output"]
TYPES += ["execute_reply", "execute_input", "status", "comm_open", "nonsense"]


@settings(max_examples=250, deadline=None)
@given(
    st.lists(st.builds(message, st.sampled_from(TYPES), CONTENT | JUNK), max_size=8),
    st.integers(0, 60),
    st.integers(0, 4),
    st.integers(0, 8),
)
def test_garbage_never_raises_and_gives_valid_outputs(
    messages: list[Message], size: int, count: int, close_at: int
) -> None:
    kit = Kit(limits=limits(max_output_bytes=size, max_outputs=count, max_mime_bytes=size * 4))
    for i, each in enumerate(messages):
        if i == close_at:
            kit.folder.close()
        kit.feed(each)
    folded = kit.folded
    validate(folded.outputs)
    everything: list[JSON] = [{"o": folded.outputs, "e": folded.error and folded.error.as_json()}]
    everything += [data for _, data in kit.events]
    json.dumps(everything, allow_nan=False, ensure_ascii=False).encode()
    assert all(0 <= i < len(folded.outputs) for i in kit.folder.late_indexes)
    assert folded.execution_count is None or folded.execution_count >= 0
