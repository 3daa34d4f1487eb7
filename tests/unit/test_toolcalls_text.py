"""Claims about the text of a run for a model: what it tells, what never gets in, and its bounds."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interpreter.models import FileChange, Folded, Run, RunError, RunStatus
from interpreter.toolcalls import model_text

AT = datetime(2026, 1, 2, tzinfo=UTC)
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
TRACEBACK = (
    "\x1b[31m---------\x1b[39m",
    "\x1b[31mValueError\x1b[39m      Traceback (most recent call last)",
    "Cell \x1b[32mIn[1]\x1b[39m, line 1\n----> 1 raise ValueError('no')",
    "\x1b[31mValueError\x1b[39m: no",
)


def run(status: RunStatus = RunStatus.OK, **fields: Any) -> Run:
    names = ("stdout", "stderr", "result", "error", "outputs", "truncated", "dropped_bytes")
    folded = {name: fields.pop(name) for name in names if name in fields}
    folded["notices"] = fields.pop("folded_notices", ())
    fields.setdefault("started_at", AT)
    return Run("run_x_1", "x", "t", status, "code", AT, 30.0, folded=Folded(**folded), **fields)


def text(status: RunStatus = RunStatus.OK, max_bytes: int = 4096, **fields: Any) -> str:
    return model_text(run(status, **fields), max_bytes)


def display(**data: Any) -> dict[str, Any]:
    bundle = {key.replace("__", "/").replace("_", "-"): value for key, value in data.items()}
    return {"output_type": "display_data", "data": bundle, "metadata": {}}


def execute_result(data: dict[str, Any]) -> dict[str, Any]:
    return {"output_type": "execute_result", "execution_count": 1, "data": data, "metadata": {}}


def test_one_kind_of_output_stands_alone() -> None:
    assert text(stdout="2\n") == "2"
    assert text(result="42") == "42"


def test_stderr_is_always_labelled() -> None:
    assert text(stderr="careful\n") == "stderr:\ncareful"


def test_several_kinds_are_labelled_in_reading_order() -> None:
    shown = text(stdout="out\n", stderr="err\n", result="42")
    assert shown == "stdout:\nout\n\nstderr:\nerr\n\nLast value:\n42"


def test_an_error_that_did_not_end_the_code_is_shown() -> None:
    failed = {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": list(TRACEBACK)}
    told = "An error was shown, but did not end the cell: ValueError: no"
    shown = text(outputs=(failed,), stdout="before\n", folded_notices=(told,))
    assert "before" in shown
    assert "raise ValueError('no')\nValueError: no" in shown
    assert shown.endswith(told)


def test_it_is_never_empty() -> None:
    assert text() == "The code ran without output."
    assert text(stdout="\n\n") == "The code ran without output."


def test_a_traceback_is_shown_without_ansi_codes() -> None:
    shown = text(RunStatus.ERROR, stdout="before\n", error=RunError("ValueError", "no", TRACEBACK, 1))
    assert shown.startswith("stdout:\nbefore")
    assert "----> 1 raise ValueError('no')" in shown
    assert shown.endswith("ValueError: no")
    assert "\x1b" not in shown


def test_an_error_without_traceback_is_its_name_and_value() -> None:
    assert text(RunStatus.ERROR, error=RunError("ValueError", "no")) == "ValueError: no"
    assert text(RunStatus.ERROR, error=RunError("KeyboardInterrupt", "")) == "KeyboardInterrupt"
    assert text(RunStatus.ERROR) == "The code raised an error."


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (RunStatus.TIMEOUT, "it took longer than its timeout of 30 seconds."),
        (RunStatus.INTERRUPTED, "was interrupted"),
        (RunStatus.CANCELLED, "was cancelled before it ended"),
        (RunStatus.ABORTED, "was not run"),
        (RunStatus.KERNEL_DIED, "kernel died"),
        (RunStatus.RUNNING, "still running"),
        (RunStatus.QUEUED, "not started"),
    ],
)
def test_every_status_but_ok_is_told_beside_the_output(status: RunStatus, sentence: str) -> None:
    shown = text(status, stdout="partial\n")
    assert shown.startswith("partial\n\n")
    assert sentence in shown


def test_a_run_cancelled_in_the_queue_did_not_start() -> None:
    assert "cancelled before it started" in text(RunStatus.CANCELLED, started_at=None)


def test_lost_state_is_told_after_a_restart_and_a_death() -> None:
    for shown in (text(RunStatus.TIMEOUT, kernel_restarted=True), text(RunStatus.KERNEL_DIED)):
        assert "variables, imports and functions are lost" in shown
    assert "lost" not in text(RunStatus.TIMEOUT)


def test_figures_are_counted_and_never_included() -> None:
    figure = display(image__png=PNG, text__plain="<Figure size 640x480 with 1 Axes>")
    assert text(outputs=(figure,)) == "1 figure (image/png) was shown to the user."
    shown = text(outputs=(figure, figure, display(image__jpeg="AAAA")), stdout="x\n")
    assert "3 figures (1 image/jpeg, 2 image/png) were shown to the user." in shown
    assert PNG not in shown
    assert "<Figure" not in shown


def test_charts_widgets_and_html_are_told_of() -> None:
    plotly = {
        "application/vnd.plotly.v1+json": {"data": []},
        "text/html": "<div/>",
        "text/plain": "Figure({'data': []})",
    }
    outputs = (
        {"output_type": "display_data", "data": plotly, "metadata": {}},
        {"output_type": "display_data", "data": {"application/vnd.vegalite.v5+json": {}}, "metadata": {}},
        display(text__html="<b>x</b>", text__plain="<IPython.core.display.HTML object>"),
    )
    shown = text(outputs=outputs)
    assert "1 interactive Plotly chart was shown to the user." in shown
    assert "1 interactive Vega-Lite chart was shown to the user." in shown
    assert shown.startswith("x\n")
    assert "<" not in shown


def test_what_the_client_does_not_show_is_told_to_be_saved() -> None:
    outputs = (
        {"output_type": "display_data", "data": {"application/vnd.plotly.v1+json": {}}, "metadata": {}},
        {"output_type": "display_data", "data": {"image/svg+xml": "<svg/>"}, "metadata": {}},
    )
    shown = model_text(run(outputs=outputs), 4096, shows_rich=False)
    assert "was shown" not in shown
    assert "1 interactive Plotly chart was not shown to the user" in shown
    assert "1 SVG picture was not shown to the user" in shown


@pytest.mark.parametrize(
    ("markup", "shown"),
    [("<b>x</b>", "x"), ("<script>x</script>", "1 HTML output was shown to the user.")],
    ids=["text", "no-text"],
)
def test_html_as_the_last_value_is_read_instead_of_its_repr(markup: str, shown: str) -> None:
    bundle = {"text/html": markup, "text/plain": "<IPython.core.display.HTML object>"}
    assert text(outputs=(execute_result(bundle),), result=bundle["text/plain"]) == shown


def test_ipythons_advice_after_system_exit_is_left_out() -> None:
    stderr = "a\n/x/interactiveshell.py:1: UserWarning: To exit: use 'exit'.\n  warn('x', stacklevel=1)\nb\n"
    assert text(stderr=stderr) == "stderr:\na\nb"


def test_a_displayed_table_is_read_as_text() -> None:
    table = display(text__plain="   a\n0  1", text__html="<table>…</table>")
    assert text(outputs=(table,), stdout="x\n") == "stdout:\nx\n\nDisplayed:\n   a\n0  1"


def test_displayed_markdown_latex_and_json_are_read_from_their_source() -> None:
    for mime, value, seen in (
        ("text/markdown", "# Hi", "# Hi"),
        ("text/latex", "$x$", "$x$"),
        ("application/json", {"a": 1}, '{"a": 1}'),
    ):
        data = {mime: value, "text/plain": "<IPython.core.display.X object>"}
        assert text(outputs=({"output_type": "display_data", "data": data},)) == seen


def test_of_several_values_the_last_is_the_result_and_all_are_shown() -> None:
    outputs = (execute_result({"text/plain": "1"}), execute_result({"text/plain": "2"}))
    assert text(outputs=outputs, result="2") == "Displayed:\n1\n\nLast value:\n2"


def test_an_image_as_the_last_value_is_counted_and_its_repr_kept() -> None:
    data = {"image/png": PNG, "text/plain": "<PIL.Image.Image image mode=RGB size=1x1>"}
    shown = text(outputs=(execute_result(data),), result=data["text/plain"])
    assert shown.startswith("<PIL.Image.Image image mode=RGB size=1x1>")
    assert "1 figure (image/png) was shown" in shown


def test_files_are_listed_with_path_size_and_url() -> None:
    files = (
        FileChange("out/a b.csv", 1, "text/csv", "created", "/v1/sessions/x/files/out/a%20b.csv"),
        FileChange("m.png", 20, "image/png", "modified", "/v1/sessions/x/files/m.png"),
        FileChange("old\n\x1b[31m.txt", 0, "text/plain", "deleted", ""),
    )
    assert text(files=files) == (
        "Files:\n"
        "- created out/a b.csv (1 byte, text/csv): /v1/sessions/x/files/out/a%20b.csv\n"
        "- modified m.png (20 bytes, image/png): /v1/sessions/x/files/m.png\n"
        "- deleted old .txt"
    )
    assert "- and 980 more" in text(files=files[:1] * 1000)


def test_notices_are_shown_once_each() -> None:
    shown = text(notices=("A limit was hit.", "Other."), folded_notices=("A limit was hit.",))
    assert shown == "A limit was hit.\nOther."


def test_dropped_output_is_told_even_without_a_notice() -> None:
    assert "1234 bytes of it were dropped" in text(stdout="x", truncated=True, dropped_bytes=1234)


def test_embedded_base64_is_taken_out_of_text() -> None:
    shown = text(stdout=f'<img src="data:image/png;base64,{PNG}"/>\n')
    assert shown == '<img src="[base64 data]"/>'


def test_a_flood_leaves_the_error_the_value_and_the_notes_visible() -> None:
    error = RunError(
        "ValueError", "why" * 5000, (*TRACEBACK[:3], *["frame"] * 99, "ValueError: " + "why" * 5000)
    )
    shown = text(
        RunStatus.ERROR,
        max_bytes=2000,
        stdout="first\n" + "é\n" * 100_000 + "last\n",
        stderr="w\n" * 100_000,
        result="value" + "v" * 10_000,
        error=error,
        kernel_restarted=True,
        notices=("A notice.",),
    )
    assert len(shown.encode()) <= 2000
    assert "first" in shown
    assert "last\n" in shown
    assert "Last value:\nvalue" in shown
    assert "\nValueError: why" in shown
    assert "The kernel was restarted" in shown
    assert shown.endswith("A notice.")
    assert re.search(r"\[\.\.\. \d+ bytes of stdout cut \.\.\.\]", shown)


def test_a_cut_counts_exactly_what_is_missing() -> None:
    printed = "a" * 10_000
    shown = text(stdout=printed, max_bytes=1000)
    cut = re.search(r"\n\[\.\.\. (\d+) bytes of stdout cut \.\.\.\]\n", shown)
    assert cut is not None
    assert len(shown) - len(cut[0]) + int(cut[1]) == len(printed)
    assert 990 <= len(shown) <= 1000


def test_short_parts_leave_their_room_to_long_ones() -> None:
    shown = text(stdout="a" * 10_000, result="42", max_bytes=2000)
    assert shown.endswith("Last value:\n42")
    assert len(shown) >= 1990


anything = st.text(st.characters() | st.sampled_from("\x1b[]31m;\x07\x9b\ud800\r\n"), max_size=200)


@given(st.tuples(anything, anything, anything, anything), st.sampled_from(RunStatus), st.integers(1, 400))
def test_whatever_ran_the_text_is_bounded_clean_and_not_empty(
    texts: tuple[str, str, str, str], status: RunStatus, max_bytes: int
) -> None:
    stdout, stderr, result, evalue = texts
    shown = model_text(
        run(
            status,
            stdout=stdout,
            stderr=stderr,
            result=result,
            error=RunError("E", evalue, (evalue,)),
            outputs=(display(text__plain=result, image__png=stdout),),
            files=(FileChange(stdout, 1, stderr, "created", result),),
            notices=(evalue,),
        ),
        max_bytes,
    )
    assert 0 < len(shown.encode()) <= max_bytes
    assert "\x1b" not in shown
    assert "\x9b" not in shown


@pytest.mark.parametrize(
    "output",
    [
        {},
        {"output_type": "display_data"},
        {"output_type": "display_data", "data": None},
        {"output_type": "display_data", "data": {"text/plain": None, "image/png": 3}},
        {"output_type": "execute_result", "data": {"text/plain": ["a\n", "b"]}},
        {"output_type": "stream", "name": "stdout", "text": "x"},
        {"output_type": "error", "ename": "E"},
    ],
)
def test_odd_outputs_do_no_harm(output: dict[str, Any]) -> None:
    assert text(outputs=(output,))


def test_a_large_run_takes_no_time_to_speak_of() -> None:
    big = "\x1b[" * 250_000 + "data:image/png;base64," * 20_000 + "\x1b]" * 100_000
    assert len(text(stdout=big, stderr=big, result=big)) <= 4096


RESTARTED = "The kernel was restarted: earlier variables and imports are gone."


def test_the_cause_of_an_end_is_told_once_and_lost_state_once() -> None:
    late = "The run took longer than its timeout of 30 seconds and was interrupted."
    shown = text(RunStatus.TIMEOUT, notices=(late, RESTARTED), kernel_restarted=True)
    assert shown.startswith(f"{late}\nThe kernel was restarted: variables, imports and functions are lost")
    assert shown.count("timeout") == shown.count("restarted") == 1
    died = "The kernel died: it was ended by SIGKILL."
    shown = text(
        RunStatus.KERNEL_DIED,
        error=RunError("KernelDied", died),
        notices=(died, RESTARTED),
        kernel_restarted=True,
    )
    assert shown.startswith(f"{died}\nThe kernel was restarted: variables")
    assert shown.count("died") == shown.count("restarted") == 1


def test_the_end_of_an_earlier_kernel_is_told_as_such_and_lost_state_once() -> None:
    died = "The kernel died: it was ended by SIGKILL."
    shown = text(notices=(f"{died} {RESTARTED}",), kernel_restarted=True, result="2")
    assert shown.startswith(
        "2\n\nBefore this run: the kernel died: it was ended by SIGKILL.\nThe kernel was restarted: variables"
    )
    assert shown.count("died") == shown.count("restarted") == shown.count("lost") == 1
    left = "The kernel ended because the code called exit() or quit()."
    shown = text(
        RunStatus.KERNEL_DIED,
        error=RunError("KernelDied", left),
        notices=(f"{died} {RESTARTED}", left, RESTARTED),
        kernel_restarted=True,
    )
    assert [line.partition(":")[0] for line in shown.splitlines()] == [
        "Before this run",
        left,
        "The kernel was restarted",
    ]


def test_two_kernels_that_ended_alike_are_told_once() -> None:
    left = "The kernel ended because the code called exit() or quit()."
    shown = text(
        RunStatus.KERNEL_DIED,
        error=RunError("KernelDied", left),
        notices=(f"{left} {RESTARTED}", left, RESTARTED),
        kernel_restarted=True,
    )
    assert shown.startswith(f"{left}\nThe kernel was restarted: variables")
    assert shown.count("ended because") == shown.count("restarted") == 1


def test_a_restart_of_the_service_is_told_and_lost_state_once() -> None:
    notice = "The service was restarted, so the kernel is a fresh one: earlier variables are gone."
    shown = text(notices=(notice,), kernel_restarted=True, stdout="")
    assert shown.splitlines()[0] == "Before this run: the service was restarted."
    assert shown.splitlines()[1].startswith("The kernel was restarted: variables")
    assert "gone" not in shown


def test_one_second_is_no_plural() -> None:
    for timeout, words in ((1.0, "1 second."), (0.5, "0.5 seconds."), (2.0, "2 seconds.")):
        shown = model_text(replace(run(RunStatus.TIMEOUT), timeout=timeout), 4096)
        assert f"its timeout of {words}" in shown


def test_a_kernel_that_did_not_start_is_told_with_its_reason() -> None:
    reason = "The gateway refuses another kernel: its own limit is reached (max_kernels of the gateway)."
    shown = text(
        RunStatus.KERNEL_DIED,
        error=RunError("KernelStartError", reason),
        notices=(reason,),
        started_at=None,
    )
    assert shown == f"The code was not run: the kernel did not start.\n{reason}"


def test_state_that_a_replay_brought_back_is_not_called_lost() -> None:
    replayed = "The kernel is a fresh one, on which the code of 3 earlier runs was executed again."
    assert text(notices=(replayed,), kernel_restarted=True, stdout="") == replayed
