"""What becomes of the streams and displays of a run, one behaviour per test."""

from typing import Any

import pytest
from outputs_kit import (
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
    validate,
)

from interpreter.outputs import Bundle, Displays

# Streams


def test_stream_texts_are_joined_and_stdout_is_their_text_without_ansi() -> None:
    folded = fold(stream("\x1b[31ma\x1b[0m"), stream("b\n"), stream("e", "stderr"))
    assert texts(folded.outputs) == ["\x1b[31ma\x1b[0mb\n", "e"]
    assert (folded.stdout, folded.stderr) == ("ab\n", "e")


def test_a_progress_bar_keeps_its_last_state() -> None:
    bar = [stream(f"\r{n}%") for n in range(101)]
    assert fold(*bar, stream("\ndone\r\n")).outputs[0]["text"] == "100%\ndone\r\n"


def test_text_after_a_figure_or_another_stream_is_an_output_of_its_own() -> None:
    figure = display({"text/plain": "figure"})
    kit = Kit().feed(stream("a"), figure, stream("b"), stream("c"), stream("e", "stderr"), stream("d"))
    assert texts(kit.outputs) == ["a", "figure", "bc", "e", "d"]
    assert [data["index"] for _, data in kit.events] == [0, 1, 2, 2, 3, 4]
    assert kit.folded.stdout == "abcd"


def test_an_update_in_place_and_comms_do_not_divide_text() -> None:
    kit = Kit().feed(display({}, "d"), stream("a"), update({"text/plain": "new"}, "d"))
    assert texts(kit.feed(message("comm_msg"), stream("b")).outputs) == ["new", "ab"]


@pytest.mark.parametrize(
    ("chunks", "text"),
    [
        (["ab\b", "c\n\bd"], "ac\nd"),
        (["é😀", "\b", "\b", "\b", "x"], "x"),
        (["old\r", "\b\bnew"], "new"),
        (["10%\b\b\b20%\b", "\b\b30%\r\n"], "30%\r\n"),
        (["ab\r\b\n", "ab\b\r"], "\na\r"),
    ],
)
def test_backspaces_remove_what_is_before_them_on_their_line(chunks: list[str], text: str) -> None:
    folded = fold(*map(stream, chunks))
    assert (folded.outputs[0]["text"], folded.stdout) == (text, text)


def test_backspaces_uncover_text_that_was_over_the_limit() -> None:
    over = fold(stream("a" * 60 + "b" * 50_000), stream("\b" * 49_970), limits=limits(max_output_bytes=100))
    assert over.outputs[0]["text"] == "a" * 60 + "b" * 30
    assert not over.truncated


def test_backspaces_stop_at_text_that_was_dropped_for_good() -> None:
    folded = fold(
        stream("x" * 10**6), stream("\b" * 10**6), stream("end"), limits=limits(max_output_bytes=100)
    )
    text = folded.outputs[0]["text"]
    assert text.startswith("x" * 75 + "\n[… ")
    assert text.endswith(" bytes not shown …]\nend")


def test_text_cut_from_a_line_comes_back_when_the_line_is_overwritten() -> None:
    folded = fold(stream("head\n"), stream("x" * 1000), stream("\rok"), limits=limits(max_output_bytes=40))
    assert folded.outputs[0]["text"] == "head\nok"
    assert not folded.truncated


def test_a_cut_stream_says_so_in_text_and_notice() -> None:
    folded = fold(stream("a" * 750 + "b" * 1000 + "c" * 250), limits=limits(max_output_bytes=1000))
    assert folded.outputs[0]["text"] == "a" * 750 + "\n[… 1,000 bytes not shown …]\n" + "c" * 250
    assert folded.notices == ("stdout was cut: 1,000 of 2,000 bytes are shown.",)
    assert (folded.truncated, folded.dropped_bytes) == (True, 1000)


def test_stdout_and_stderr_have_limits_of_their_own() -> None:
    folded = fold(stream("a" * 99), stream("b" * 101, "stderr"), limits=limits(max_output_bytes=100))
    assert folded.stdout == "a" * 99
    assert folded.notices == ("stderr was cut: 100 of 101 bytes are shown.",)


def test_the_outputs_of_a_stream_share_its_limit_and_the_last_lines_are_seen() -> None:
    figure = display({"text/plain": "figure"})
    folded = fold(
        stream("a" * 9000),
        figure,
        stream("b" * 9000),
        stream("c" * 5000, "stderr"),
        stream("d" * 5000 + "end"),
        limits=limits(max_output_bytes=10_000),
    )
    assert texts(folded.outputs)[0] == "a" * 9000
    assert texts(folded.outputs)[2] == "b" * 3072 + "\n[… 4,904 bytes not shown …]\n" + "b" * 1024
    assert texts(folded.outputs)[3] == "c" * 5000
    assert texts(folded.outputs)[4].endswith("\n[… 907 bytes not shown …]\n" + "d" * 1021 + "end")
    assert folded.notices == ("stdout was cut: 17,192 of 23,003 bytes are shown.",)
    assert folded.dropped_bytes == 5811


def test_text_goes_on_in_its_newest_output_when_there_is_no_room_for_another() -> None:
    figure = display({"text/plain": "figure"})
    kit = Kit(limits=limits(max_outputs=4)).feed(stream("a"), figure, stream("b"), figure, stream("c"))
    assert texts(kit.outputs) == ["a", "figure", "bc", "figure"]
    assert not kit.folded.truncated
    kit.feed(stream("e", "stderr"), stream("d"))
    assert texts(kit.outputs) == ["a", "figure", "bcd", "e"]
    assert [data["index"] for _, data in kit.events] == [0, 1, 2, 3, 2, 3, 2]


def test_text_that_cannot_be_written_is_mended() -> None:
    folded = fold(stream("a\ud800\x00\ufeff"), error("\ud800", "\udfff", ["\udc00"]), reply("error"))
    assert folded.stdout == "a\ufffd\x00\ufeff"
    assert folded.outputs[1]["traceback"] == ["\ufffd"]
    validate(folded.outputs)


def test_names_of_streams_are_bounded() -> None:
    folded = fold(*(stream("x", f"name{n}") for n in range(1000)))
    assert len(folded.outputs) == 4
    assert folded.dropped_bytes == 996


# Displays


def test_a_display_keeps_its_bundle_and_drops_transient() -> None:
    (output,) = fold(display({"text/html": "<b>"}, "d", {"isolated": True})).outputs
    assert output == {
        "output_type": "display_data",
        "data": {"text/html": "<b>"},
        "metadata": {"isolated": True},
    }


@pytest.mark.parametrize("transient", [None, {}, {"display_id": None}, [], "x", {"display_id": ["a"]}])
def test_a_display_without_an_id_is_shown(transient: Any) -> None:
    content = {"data": {"text/plain": "x"}, "metadata": {}, "transient": transient}
    assert texts(fold(message("display_data", content)).outputs) == ["x"]


def test_an_empty_display_is_an_output_that_an_update_fills() -> None:
    kit = Kit().feed(display({}, "d"))
    assert kit.outputs == [{"output_type": "display_data", "data": {}, "metadata": {}}]
    kit.feed(update({"text/plain": "new"}, "d"))
    assert texts(kit.outputs) == ["new"]
    assert [kind for kind, _ in kit.events] == ["output", "output.update"]
    assert kit.events[1][1] == {"index": 0, "output": kit.outputs[0]}


def test_an_update_of_an_unknown_display_is_ignored() -> None:
    kit = Kit().feed(update({"text/plain": "x"}, "nobody"))
    assert (kit.outputs, kit.events, kit.amendments) == ([], [], [])


def test_an_update_reaches_the_display_of_an_earlier_run() -> None:
    displays = Displays()
    first = Kit("run_a_1", displays=displays).feed(stream("x"), display({"text/plain": "old"}, "d"))
    first.folder.close()
    second = Kit("run_a_2", displays=displays).feed(update({"text/plain": "new"}, "d"))
    [(run_id, index, bundle)] = second.amendments
    assert (run_id, index, bundle.data, bundle.metadata) == ("run_a_1", 1, {"text/plain": "new"}, {})
    assert second.outputs == []
    first.folder.amend(index, bundle)
    assert texts(first.outputs) == ["x", "new"]


def test_displays_forget_all_at_a_restart() -> None:
    displays = Displays()
    Kit("run_a_1", displays=displays).feed(display({}, "d"))
    displays.clear()
    assert Kit("run_a_2", displays=displays).feed(update({"text/plain": "x"}, "d")).amendments == []


def test_displays_are_bounded() -> None:
    displays = Displays()
    for n in range(30_000):
        displays.add(f"id{n}", "run", n)
        displays.add("one", "run", n)
    assert displays.find("id0") == ()
    assert displays.find("id29999") == (("run", 29999),)
    assert len(displays.find("one")) == 1000


@pytest.mark.parametrize("index", [-1, 1, 99])
def test_amending_what_is_not_there_does_nothing(index: int) -> None:
    kit = Kit().feed(display({"text/plain": "x"}))
    kit.folder.amend(index, Bundle({"text/plain": "y"}))
    assert texts(kit.outputs) == ["x"]


def test_a_snapshot_does_not_change_afterwards() -> None:
    kit = Kit().feed(display({"text/plain": "old"}, "d"), stream("a"))
    before = kit.folded
    kit.feed(update({"text/plain": "new"}, "d"), stream("b"))
    assert texts(before.outputs) == ["old", "a"]


def test_clear_output_removes_all_at_once_and_forgets_displays() -> None:
    kit = Kit().feed(stream("a"), display({}, "d"), clear(), stream("b"), update({"text/plain": "x"}, "d"))
    assert texts(kit.outputs) == ["b"]
    assert [kind for kind, _ in kit.events] == ["output", "output", "output.clear", "output"]
    assert kit.events[-1][1]["index"] == 0


def test_clear_output_that_waits_clears_at_the_next_output_only() -> None:
    kit = Kit().feed(stream("a"), clear(wait=True))
    assert texts(kit.outputs) == ["a"]
    assert texts(kit.feed(display({"text/plain": "b"})).outputs) == ["b"]


def test_clearing_takes_back_what_was_cut() -> None:
    folded = fold(stream("x" * 500), clear(), stream("y"), limits=limits(max_output_bytes=100))
    assert (folded.stdout, folded.truncated, folded.dropped_bytes) == ("y", False, 0)


def test_comms_and_unknown_messages_leave_no_output() -> None:
    assert fold(*(message(kind, {"data": {}}) for kind in ("comm_open", "comm_msg", "x"))).outputs == ()


# MIME bundles


def test_nan_in_json_becomes_null() -> None:
    data = {"application/vnd.plotly.v1+json": {"y": [1.5, float("nan"), float("-inf")]}}
    assert fold(display(data)).outputs[0]["data"] == {
        "application/vnd.plotly.v1+json": {"y": [1.5, None, None]}
    }


def test_lines_are_joined_but_json_lists_stay() -> None:
    data = {"text/html": ["a\n", "b"], "application/json": ["a", "b"]}
    assert fold(display(data)).outputs[0]["data"] == {"text/html": "a\nb", "application/json": ["a", "b"]}


def test_images_have_no_newlines_and_svg_keeps_them() -> None:
    data = {"image/png": "iVBO\nRw==\n", "image/svg+xml": "<svg>\n</svg>"}
    assert fold(display(data)).outputs[0]["data"] == {
        "image/png": "iVBORw==",
        "image/svg+xml": "<svg>\n</svg>",
    }


def test_json_nested_beyond_reason_is_cut_off() -> None:
    deep: Any = 1
    for _ in range(900):
        deep = [deep]
    validate(fold(display({"application/json": deep}, metadata={"deep": deep})).outputs)


def test_a_value_over_its_limit_is_left_out_with_a_sentence() -> None:
    folded = fold(display({"image/png": "A" * 2000}), limits=limits(max_mime_bytes=1000))
    assert folded.outputs[0]["data"] == {
        "text/plain": "[image/png of 2,000 bytes is not shown: the limit is 1,000 bytes]"
    }
    assert folded.notices == ("1 display value was left out or cut: over 1,000 bytes.",)
    assert folded.dropped_bytes == 2000


def test_a_value_over_its_limit_leaves_the_others() -> None:
    folded = fold(
        display({"image/png": "A" * 2000, "text/plain": "<Figure>"}), limits=limits(max_mime_bytes=99)
    )
    assert folded.outputs[0]["data"] == {"text/plain": "<Figure>"}


def test_a_long_result_is_cut_to_head_and_tail() -> None:
    folded = fold(result({"text/plain": "a" * 900 + "z" * 900}), limits=limits(max_mime_bytes=100))
    assert folded.result == "a" * 75 + "\n[… 1,700 bytes not shown …]\n" + "z" * 25


def test_displays_over_their_sum_become_sentences() -> None:
    kit = Kit(limits=limits(max_display_bytes=2500))
    kit.feed(*(display({"image/png": "A" * 1000}, f"d{n}") for n in range(3)))
    assert texts(kit.outputs) == [
        None,
        None,
        "[A display of 1,009 bytes is not shown: the limit of a run is 2,500 bytes]",
    ]
    kit.feed(update({"image/png": "small"}, "d0"), display({"image/png": "B" * 1000}))
    assert kit.outputs[3]["data"] == {"image/png": "B" * 1000}


def test_a_display_updated_a_thousand_times_counts_once() -> None:
    kit = Kit(limits=limits(max_display_bytes=2500)).feed(display({}, "d"))
    kit.feed(*(update({"text/plain": "x" * 1000}, "d") for _ in range(1000)))
    assert not kit.folded.truncated


def test_the_first_outputs_are_kept_and_the_rest_counted() -> None:
    folded = fold(*(display({"text/plain": str(n)}) for n in range(10)), limits=limits(max_outputs=4))
    assert texts(folded.outputs) == ["0", "1", "2", "3"]
    assert folded.notices == ("6 outputs were left out: a run may have 4.",)


def test_text_the_last_result_and_the_error_find_room_among_too_many_outputs() -> None:
    shows = [display({"text/plain": str(n)}, f"d{n}") for n in range(9)]
    kit = Kit(limits=limits(max_outputs=4)).feed(*shows, result({"text/plain": "r1"}))
    kit.feed(result({"text/plain": "r2"}), stream("out"), error("E"))
    assert texts(kit.outputs) == ["0", "r2", "out", "E"]
    kit.feed(update({"text/plain": "new"}, "d3"), update({"text/plain": "new"}, "d0"), stream("put"))
    assert texts(kit.outputs) == ["new", "r2", "output", "E"]
