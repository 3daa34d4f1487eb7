"""A run goes into the journal and comes back the same, and no text is stored twice without need."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from interpreter.models import FileChange, Folded, Run, RunError, RunStatus, SessionInfo, run_id_of
from interpreter.record.outcomes import accepted_data, amended_data, ended_data, rebuild

SESSION = "s" * 21
AT = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
INFO = SessionInfo(SESSION, "tok_1", "alice", "python3", "python", AT, 60.0, 600.0)
RUN = Run(run_id_of(SESSION, 3), SESSION, "tok_1", RunStatus.RUNNING, "1/0", AT, 30.0, tool_call_id="call_9")


def through_json(data: dict) -> dict:
    return json.loads(json.dumps(data))


def ended(folded: Folded, **changes) -> Run:
    times = {"started_at": AT, "ended_at": AT + timedelta(seconds=1), "duration_ms": 1000}
    return replace(RUN, status=RunStatus.ERROR, folded=folded, **times, **changes)


def back(run: Run, *amendments: dict, late=()):
    accepted = through_json(accepted_data(run, idempotency_key="k", request_hash="h"))
    end = through_json(ended_data(run, late=late))
    return rebuild(INFO, accepted, end, map(through_json, amendments))


STREAMS = (
    {"output_type": "stream", "name": "stdout", "text": "\x1b[31mred\x1b[0m\n"},
    {"output_type": "stream", "name": "stderr", "text": "warn"},
    {"output_type": "error", "ename": "E", "evalue": "bad", "traceback": ["\x1b[1mline\x1b[0m"]},
)
FOLDED = Folded(
    outputs=STREAMS,
    stdout="red\n",
    stderr="warn",
    error=RunError("E", "bad", ("line",), line=2),
    execution_count=7,
    notices=("cut",),
)


def test_a_run_comes_back_the_same():
    files = (FileChange("a.png", 5, "image/png", "created", "/v1/x"),)
    run = ended(FOLDED, files=files, kernel_restarted=True, notices=("restarted",))
    recorded = back(run, late=(1,))
    assert recorded.run == run
    assert recorded.late == (1,)


def test_text_that_the_outputs_hold_is_stored_once():
    folded = ended_data(ended(FOLDED), late=())["folded"]
    assert not {"stdout", "stderr", "result", "error"} & set(folded)
    assert folded["line"] == 2


def test_text_that_limits_cut_from_the_outputs_is_stored():
    folded = replace(
        FOLDED, stdout="all of it", result="42", error=RunError("Died", "no output"), truncated=True
    )
    run = ended(folded)
    assert back(run).run == run


def test_a_run_without_an_end_tells_who_asked_for_what():
    accepted = through_json(accepted_data(RUN, idempotency_key=None, request_hash=None))
    assert rebuild(INFO, accepted, None).run == RUN


def test_an_amendment_holds_only_the_outputs_that_changed():
    before = ended(FOLDED)
    late_output = {"output_type": "stream", "name": "stdout", "text": "late"}
    outputs = (STREAMS[0], {**STREAMS[1], "text": "new"}, STREAMS[2], late_output)
    after = ended(replace(FOLDED, outputs=outputs, stderr="new", stdout="red\nlate"))
    amendment = amended_data(before, after, late=(3,), reason="late_output")
    assert [index for index, _ in amendment["changes"]] == [1, 3]
    recorded = back(before, amendment)
    assert recorded.run == after
    assert recorded.late == (3,)


def test_an_amendment_can_take_outputs_away():
    before = ended(FOLDED)
    after = ended(replace(FOLDED, outputs=STREAMS[:1], stderr="", error=None))
    assert back(before, amended_data(before, after, late=(), reason="x")).run == after
