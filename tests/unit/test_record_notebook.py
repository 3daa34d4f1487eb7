"""Whatever a run's outputs are, its cell is valid nbformat 4.5."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interpreter.models import Folded, Run, RunStatus, SessionInfo, run_id_of
from interpreter.record.notebook import START, render_cell, render_end
from interpreter.record.outcomes import RecordedRun

SESSION = "s" * 21
AT = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
INFO = SessionInfo(SESSION, "tok_1", "alice", "python3", "python", AT, 60.0, 600.0, metadata={"chat": "7"})
RUN = Run(run_id_of(SESSION, 1), SESSION, "tok_1", RunStatus.OK, "1+1", AT, 30.0, started_at=AT, ended_at=AT)

texts = st.text(st.characters(), max_size=20)
values = st.none() | st.integers() | texts | st.lists(texts, max_size=2)
junk = st.dictionaries(st.sampled_from(["output_type", "name", "text", "data", "metadata", "x"]), values)
mime = st.sampled_from(["text/plain", "application/json", "application/x+json", "image/png", "odd"])
bundles = st.dictionaries(mime, values | st.dictionaries(texts, values), max_size=3)
outputs = st.lists(
    junk
    | st.fixed_dictionaries({"output_type": st.just("stream"), "name": texts, "text": values})
    | st.fixed_dictionaries({"output_type": st.just("display_data"), "data": bundles, "metadata": junk})
    | st.fixed_dictionaries(
        {"output_type": st.just("execute_result"), "data": bundles, "execution_count": values}
    )
    | st.fixed_dictionaries(
        {"output_type": st.just("error"), "ename": texts, "evalue": values, "traceback": values}
    ),
    max_size=4,
)


def notebook_of(info: SessionInfo, *runs: RecordedRun):
    cells = b",\n".join(b"".join(render_cell(run, info)) for run in runs)
    content = START + cells + render_end(info, ended_reason=None, entries=1, mac=b"m" * 32)
    json.loads(content, parse_constant=pytest.fail)
    notebook = nbformat.reads(content.decode(), as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    return notebook


@given(texts, outputs, values)
def test_any_outputs_make_a_valid_notebook(code, outputs, count):
    run = replace(RUN, code=code, folded=Folded(outputs=tuple(outputs), execution_count=count))
    notebook = notebook_of(INFO, RecordedRun(run))
    assert len(notebook.cells[0].outputs) == len(outputs)
    assert "".join(notebook.cells[0].source) == "".join(
        "\ufffd" if "\ud800" <= letter <= "\udfff" else letter for letter in code
    )


def test_valid_outputs_stay_as_they_came():
    outputs = (
        {"output_type": "stream", "name": "stdout", "text": "\x1b[1ma\x1b[0m\n"},
        {"output_type": "display_data", "data": {"application/x+json": {"a": [1]}}, "metadata": {"w": 1}},
        {"output_type": "execute_result", "data": {"text/plain": "2"}, "metadata": {}, "execution_count": 3},
        {"output_type": "error", "ename": "E", "evalue": "", "traceback": []},
    )
    run = replace(RUN, folded=Folded(outputs=outputs, execution_count=3))
    cell = notebook_of(INFO, RecordedRun(run)).cells[0]
    assert tuple(dict(output) for output in cell.outputs) == outputs
    assert cell.execution_count == 3


def test_a_cell_tells_who_when_how_long_and_which_limits():
    folded = Folded(truncated=True, dropped_bytes=9, notices=("cut",))
    run = replace(RUN, folded=folded, duration_ms=5, tool_call_id="call_1", notices=("restarted",))
    cell = notebook_of(INFO, RecordedRun(run, late=(2,))).cells[0]
    about = cell.metadata["interpreter"]
    assert (about["run_id"], about["status"], about["tool_call_id"]) == (run.id, "ok", "call_1")
    assert about["owner"] == {"id": "tok_1", "name": "alice"}
    assert (about["duration_ms"], about["timeout"]) == (5, 30.0)
    assert (about["truncated"], about["dropped_bytes"], about["late_outputs"]) == (True, 9, [2])
    assert about["notices"] == ["cut", "restarted"]
    assert set(cell.metadata["execution"]) == {
        "iopub.status.busy",
        "iopub.execute_input",
        "shell.execute_reply",
        "iopub.status.idle",
    }
    assert cell.id == run.id


def test_a_run_by_someone_else_does_not_carry_the_owner_s_name():
    cell = notebook_of(INFO, RecordedRun(replace(RUN, owner_id="tok_2"))).cells[0]
    assert cell.metadata["interpreter"]["owner"] == {"id": "tok_2", "name": None}


@pytest.mark.parametrize("language", ["python", "bash", "typescript"])
def test_the_notebook_names_its_kernel_and_language(language):
    notebook = notebook_of(replace(INFO, kernel_name="k", language=language))
    assert notebook.metadata.kernelspec["name"] == "k"
    assert notebook.metadata.language_info["name"] == language
    assert notebook.metadata["interpreter"]["session"]["metadata"] == {"chat": "7"}
