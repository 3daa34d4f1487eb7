"""Results, errors, late outputs, live events and memory of a run. Traces are those of IPython 9.18."""

import tracemalloc
from typing import Any

import pytest
from outputs_kit import (
    LIMITS,
    Kit,
    clear,
    display,
    error,
    fold,
    limits,
    message,
    reply,
    result,
    stream,
    texts,
    update,
)

from interpreter.models import JSON
from interpreter.outputs import clean_json, clean_text, strip_ansi

# Results, counts, pager


def test_the_result_is_the_last_execute_results_text() -> None:
    folded = fold(result({"text/plain": "\x1b[1m7\x1b[0m"}, 5), display({"text/plain": "no"}))
    assert (folded.result, folded.execution_count) == ("7", 5)
    assert fold(result({"text/html": "x"})).result is None


def test_the_execution_count_is_that_of_iopub_or_else_of_the_reply() -> None:
    assert fold(reply(execution_count=3)).execution_count == 3
    assert (
        fold(message("execute_input", {"execution_count": 4}), reply(execution_count=3)).execution_count == 4
    )
    assert fold(reply(execution_count=True)).execution_count is None


def test_pager_text_is_the_last_display() -> None:
    page = {"source": "page", "data": {"text/plain": "\x1b[31mSignature:\x1b[0m len"}, "start": 0}
    kit = Kit().feed(reply(payload=[page, {"source": "set_next_input", "text": "x"}]), stream("a"))
    shown = kit.outputs
    kit.folder.close()
    assert texts(shown) == texts(kit.outputs) == ["a", "\x1b[31mSignature:\x1b[0m len"]
    assert kit.events[-1] == ("output", {"index": 1, "output": shown[1]})
    assert kit.folder.late_indexes == ()


def test_exit_is_noticed() -> None:
    kit = Kit().feed(reply(payload=[{"source": "ask_exit", "keepkernel": False}]))
    assert kit.folder.ask_exit
    assert not Kit().feed(reply()).folder.ask_exit


# Errors


def trace(*frames: str) -> list[str]:
    return ["-----", "ValueError    Traceback (most recent call last)", *frames, "ValueError: bad"]


def line_of(code: str, *messages: Any, count: int = 4) -> int | None:
    kit = Kit(code=code).feed(message("execute_input", {"execution_count": count}), *messages)
    assert kit.folded.error is not None
    return kit.folded.error.line


COLOURED = "\x1b[36mCell\x1b[39m\x1b[36m \x1b[39m\x1b[32mIn[4]\x1b[39m\x1b[32m, line 2\x1b[39m\n----> 2 f()\n"


@pytest.mark.parametrize(
    ("code", "traceback", "line"),
    [
        ("y=1\nf()", trace(COLOURED, "Cell In[3], line 9, in f()\n"), 2),
        ("def f():\n  1/0\nf()", trace("Cell In[4], line 3\n", "Cell In[4], line 2, in f()\n"), 2),
        ("\n\n  \nx=1\n1/0", trace("Cell In[4], line 2\n      1 x=1\n----> 2 1/0\n"), 5),
        ("x = = 1", ["  Cell In[4], line 1\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n"], 1),
        ("%%time\nx\n1/0", trace("Cell In[4], line 1\n", "File <timed exec>:2\n"), 3),
        ("%%time\n1/0", trace("Cell In[4], line 1\n", "File <timed eval>:1\n"), 2),
        ("\n%%time\n\n \nx\n1/0", trace("Cell In[4], line 1\n", "File <timed exec>:2\n"), 6),
        ("%%timeit\nx\n1/0", trace("Cell In[4], line 1\n", "File <magic-timeit>:2, in inner(_it)\n"), 3),
        ("a\nb", trace('File "<ipython-input-4-0a1b>", line 2, in <module>\n'), 2),
        ("f()", trace("Cell In[4], line 7\n"), None),
        ("f()", trace("Cell In[3], line 1\n"), None),
        ("f()", [], None),
    ],
)
def test_the_line_of_an_error_is_the_innermost_in_the_cell(
    code: str, traceback: list[str], line: int | None
) -> None:
    assert line_of(code, error(traceback=traceback)) == line


def test_an_error_known_only_from_the_reply_is_the_error_but_no_output() -> None:
    printed = '  |   File "/tmp/ipykernel_65/2829387294.py", line 2, in <module>\n'
    group = reply("error", ename="ExceptionGroup", evalue="g (1 sub-exception)")
    kit = Kit(code="x\nraise").feed(stream(printed, "stderr"), group)
    assert texts(kit.outputs) == [printed]
    assert kit.folded.error is not None
    assert kit.folded.error.as_json() == {
        "ename": "ExceptionGroup",
        "evalue": "g (1 sub-exception)",
        "traceback": [],
        "line": 2,
    }


def test_a_failing_repr_is_told_by_its_own_name() -> None:
    folded = fold(error("ValueError", "boom"), reply("error", ename="NoneType", evalue="None"))
    assert folded.error is not None
    assert folded.error.ename == "ValueError"


def test_the_replys_error_counts_when_another_was_shown_before() -> None:
    folded = fold(error("Shown"), reply("error", ename="ExceptionGroup", evalue="g"))
    assert folded.error is not None
    assert folded.error.ename == "ExceptionGroup"


def test_an_error_shown_by_code_that_went_on_is_an_output_and_told() -> None:
    folded = fold(error("Shown", "\x1b[1mwhy\nso"), reply("ok"))
    assert folded.error is None
    assert texts(folded.outputs) == ["Shown"]
    assert folded.notices == ("An error was shown, but did not end the cell: Shown: why so",)
    assert not folded.truncated


def test_of_many_shown_errors_the_last_is_told_in_a_short_sentence() -> None:
    (sentence,) = fold(error("A"), error("B", "b" * 10**6), reply("ok")).notices
    assert sentence.startswith("2 errors were shown, but did not end the cell; the last: B: bbb")
    assert len(sentence) < 300


@pytest.mark.parametrize("status", ["error", "aborted"])
def test_an_error_that_ended_the_cell_is_not_told_twice(status: str) -> None:
    assert fold(error("E", "v"), reply(status, ename="E", evalue="v")).notices == ()


def test_an_aborted_run_has_no_error() -> None:
    assert fold(reply("aborted")).error is None


def test_an_error_has_no_ansi_but_its_output_keeps_it() -> None:
    folded = fold(error("E", "\x1b[1mv\x1b[0m", ["\x1b[31mt\x1b[39m"]))
    assert folded.error is not None
    assert (folded.error.evalue, folded.error.traceback) == ("v", ("t",))
    assert folded.outputs[0]["traceback"] == ["\x1b[31mt\x1b[39m"]


def test_figures_before_and_after_an_error_stay_in_order() -> None:
    shown = fold(stream("a"), display({"text/plain": "f1"}), error("E"), display({"text/plain": "f2"}))
    assert texts(shown.outputs) == ["a", "f1", "E", "f2"]


def test_a_huge_traceback_keeps_its_ends() -> None:
    frames = [f"frame {n} " + "x" * 80 for n in range(3000)]
    bounds = limits(max_output_bytes=10_000, max_mime_bytes=10_000)
    folded = fold(error("E" * 5000, "v" * 10**6, frames), limits=bounds)
    (output,) = folded.outputs
    assert output["traceback"][0] == frames[0]
    assert output["traceback"][-1] == frames[-1]
    assert sum(map(len, output["traceback"])) < 11_000
    assert len(output["ename"]) + len(output["evalue"]) < 13_000
    assert folded.truncated
    assert folded.dropped_bytes > 10**6


def test_an_error_may_carry_as_much_as_a_mime_type() -> None:
    folded = fold(
        error("E", "v" * 9000, ["t" * 9000]), limits=limits(max_output_bytes=1000, max_mime_bytes=9000)
    )
    (output,) = folded.outputs
    assert output["evalue"] == "v" * 9000
    assert len(output["traceback"][0]) < 1100


# Late outputs


def test_late_output_is_new_output_and_marked() -> None:
    kit = Kit().feed(stream("a"), clear(wait=True), reply())
    kit.folder.close()
    events = len(kit.events)
    kit.feed(stream("b"), stream("c"), stream("e", "stderr"), error("Late"))
    assert texts(kit.outputs) == ["a", "bc", "e", "Late"]
    assert kit.folder.late_indexes == (1, 2, 3)
    assert kit.folded.stdout == "abc"
    assert kit.folded.error is None
    assert len(kit.events) == events


def test_a_late_clear_removes_late_outputs_only() -> None:
    kit = Kit().feed(stream("a"), display({"text/plain": "d"}, "d"))
    kit.folder.close()
    kit.feed(stream("b"), clear(), display({"text/plain": "late"}, "l"), update({"text/plain": "L"}, "l"))
    kit.feed(update({"text/plain": "D"}, "d"))
    assert texts(kit.outputs) == ["a", "D", "L"]
    assert kit.folder.late_indexes == (2,)


def test_closing_twice_is_closing_once() -> None:
    kit = Kit()
    kit.folder.close()
    kit.feed(stream("a"))
    kit.folder.close()
    assert kit.folder.late_indexes == (0,)


def test_bytes_lost_on_the_way_are_counted() -> None:
    cut = message("stream", {"name": "stdout", "text": "x"}, interpreter_dropped_bytes=12345)
    folded = fold(cut)
    assert (folded.truncated, folded.dropped_bytes) == (True, 12345)
    assert folded.notices == (
        "12,345 bytes of a message that was too large were lost on the way from the kernel.",
    )


# Live events and memory


def live_text(kit: Kit, name: str = "stdout") -> str:
    outputs = [data["output"] for kind, data in kit.events if kind == "output"]
    return "".join(o["text"] for o in outputs if o.get("name") == name)


def test_live_text_is_what_was_printed() -> None:
    kit = Kit().feed(stream("1%"), stream("\r2%"), stream("!", "stderr"), stream("\b\n"))
    assert live_text(kit) == "1%\r2%\b\n"
    assert [data["index"] for _, data in kit.events] == [0, 0, 1, 2]


def test_live_text_ends_where_the_head_is_full() -> None:
    kit = Kit(limits=limits(max_output_bytes=100)).feed(*(stream("é" * 10 + "\n") for _ in range(50)))
    text, _, notice = live_text(kit).rpartition("\n[")
    assert len(text.encode()) == 75
    assert notice == "… the rest of stdout is not shown live …]\n"


def test_live_text_of_all_outputs_of_a_stream_is_one_head() -> None:
    chunks = [stream("x" * 60, "stderr" if n % 2 else "stdout") for n in range(400)]
    kit = Kit(limits=limits(max_output_bytes=6000)).feed(*chunks)
    assert live_text(kit) == "x" * 4500 + "\n[… the rest of stdout is not shown live …]\n"
    assert len(kit.folded.stdout) == 400 // 2 * 60


def test_gathered_live_text_keeps_to_its_output() -> None:
    kit = Kit().feed(*(stream("x") for _ in range(10_005)), display({}), stream("y"), stream("z"))
    kit.folder.close()
    indexes = [data["index"] for _, data in kit.events]
    assert live_text(kit) == "x" * 10_005 + "yz"
    assert indexes[10_000:] == [0, 1, 2]


def memory_of(kit: Kit, messages: Any) -> int:
    tracemalloc.start()
    try:
        for each in messages:
            kit.folder.feed(each)
        _ = kit.folded
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


FLOODS: dict[str, Any] = {
    "small prints": lambda n: stream("x\n"),
    "alternating": lambda n: stream("x", "stderr" if n % 2 else "stdout"),
    "lines between displays": lambda n: stream("x" * 5000) if n % 2 else display({"text/plain": "x"}),
    "backspaces": lambda n: stream("\b" * 9 + "|=====>  |"),
    "progress bar": lambda n: stream("\r|=====     |"),
    "displays": lambda n: display({"text/plain": "x" * 100}, f"d{n}"),
    "errors": lambda n: error("E", "v", ["t" * 100]),
    "clearing": lambda n: clear(wait=True) if n % 2 else display({"text/plain": "x" * 10}, f"d{n}"),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_of_messages_takes_bounded_memory(flood: str) -> None:
    kit = Kit()
    peak = memory_of(kit, map(FLOODS[flood], range(60_000)))
    assert peak < 24 * 1024**2
    assert len(kit.events) < 25_000
    assert len(kit.outputs) <= LIMITS.max_outputs


HUGE = {
    "one line": "x" * 20_000_000,
    "lines": "é\n" * 10_000_000,
    "erased": "é" * 5_000_000 + "\b" * 5_000_000,
}


@pytest.mark.parametrize("text", HUGE.values(), ids=HUGE)
def test_one_huge_message_takes_bounded_memory(text: str) -> None:
    kit = Kit()
    assert memory_of(kit, [stream(text)]) < 16 * 1024**2
    assert kit.folded.truncated
    assert sum(len(data["output"]["text"]) for _, data in kit.events) <= 1024**2


def test_thousands_of_displays_leave_room_for_text() -> None:
    kit = Kit(limits=limits(max_outputs=3))
    kit.feed(*(display({"text/plain": str(n)}) for n in range(5000)), stream("end"))
    assert texts(kit.outputs) == ["0", "1", "end"]


# Helpers


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;http://x\x07link\x1b]8;;\x1b\\", "link"),
        ("\x1b(Ba\x1b7b", "ab"),
        ("\x1b", ""),
        ("no escape", "no escape"),
        ("\x1b]open", "open"),
    ],
)
def test_strip_ansi(text: str, plain: str) -> None:
    assert strip_ansi(text) == plain


def test_clean_text_and_json() -> None:
    assert clean_text("a\ud83d😀") == "a\ufffd😀"
    value: JSON = {"a\ud800": (1, float("inf"), {"b": [True, None, "\udfff"]}), "n": 10**5000}
    assert clean_json(value) == {"a\ufffd": [1, None, {"b": [True, None, "\ufffd"]}], "n": None}
