"""The recorder: what it acknowledged is on disk, can be read back, and shows in a valid notebook."""

import asyncio
import json
import os
import zipfile
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recordkit import (
    BEGIN,
    Clock,
    accepted,
    check_notebook,
    ended,
    eventually,
    record_run,
    recording,
    session_info,
)

from interpreter.errors import RecordUnavailableError, SettingsError
from interpreter.eventloop import new_event_loop
from interpreter.models import RunStatus, run_id_of
from interpreter.record import Recorder, RecordReader, sessions
from interpreter.record.notebookfile import NotebookFile


async def path_of(recorder: Recorder, session_id: str):
    record = await recorder.find_session(session_id)
    assert record is not None
    return record.path


async def test_a_run_is_on_disk_before_it_is_acknowledged(tmp_path):
    async with recording(tmp_path) as recorder:
        info = session_info()
        await recorder.begin_session(info)
        path = await path_of(recorder, info.id)
        run = accepted(info, 1, code="print('é')\n")
        await recorder.accept_run(run, idempotency_key="k", request_hash="h")
        entry = json.loads(path.read_bytes().splitlines()[-1])
        assert (entry["kind"], entry["data"]["code"]) == ("run_accepted", "print('é')\n")
        assert await recorder.finish_run(ended(run))
        entry = json.loads(path.read_bytes().splitlines()[-1])
        assert (entry["kind"], entry["data"]["status"]) == ("run_ended", "ok")


async def test_the_record_lies_below_the_day_on_which_the_session_began(tmp_path):
    async with recording(tmp_path) as recorder:
        info = session_info()
        await recorder.begin_session(info)
        folder = tmp_path / "notebooks/2026/01/31"
        assert await path_of(recorder, info.id) == folder / f"{info.id}.jsonl"
        check_notebook((folder / f"{info.id}.ipynb").read_bytes())


async def test_runs_read_back_as_they_were_recorded(tmp_path):
    async with recording(tmp_path) as recorder:
        info = session_info()
        await recorder.begin_session(info)
        runs = [await record_run(recorder, info, number, f"x={number}") for number in (1, 2, 3)]
        assert await recorder.list_runs(info.id) == runs
        assert await recorder.get_run(runs[1].id) == runs[1]
        await recorder.end_session(info.id, "deleted")
        assert await recorder.list_runs(info.id) == runs
        assert await recorder.get_run(runs[1].id) == runs[1]
    async with recording(tmp_path) as recorder:
        assert await recorder.list_runs(info.id) == runs
        assert await recorder.get_run(f"run_{info.id}_4") is None
        assert await recorder.get_run("nonsense") is None


async def test_the_notebook_on_disk_is_current_when_the_run_is_acknowledged(tmp_path):
    async with recording(tmp_path) as recorder:
        info = session_info()
        await recorder.begin_session(info)
        for number in range(1, 4):
            await record_run(recorder, info, number, text=f"out {number}")
            content = (await path_of(recorder, info.id)).with_suffix(".ipynb").read_bytes()
            notebook = check_notebook(content)
            assert [cell.outputs[0].text for cell in notebook.cells] == [
                f"out {n}" for n in range(1, number + 1)
            ]
            assert content == await recorder.notebook(info.id)


async def test_rendering_step_by_step_gives_the_same_bytes_as_all_at_once(tmp_path):
    async with recording(tmp_path) as recorder:
        info = session_info()
        await recorder.begin_session(info)
        for number in range(1, 6):
            await record_run(recorder, info, number, text="x" * number)
        late = ended(accepted(info, 2), text="changed afterwards")
        await recorder.amend_run(late, late=(0,), reason="late_output")
        await record_run(recorder, info, 6)
        stepwise = await recorder.notebook(info.id)
        assert stepwise == RecordReader(tmp_path / "notebooks", tmp_path / "state").notebook(info.id)
        assert b"changed afterwards" in stepwise


async def test_waiting_and_running_code_shows_in_the_notebook(tmp_path):
    async with recording(tmp_path) as recorder:
        info = session_info()
        await recorder.begin_session(info)
        runs = [accepted(info, number) for number in (1, 2)]
        for run in runs:
            await recorder.accept_run(run, idempotency_key=None, request_hash=None)
        notebook = check_notebook(await recorder.notebook(info.id))
        assert [cell.metadata["interpreter"]["status"] for cell in notebook.cells] == ["running", "queued"]
        await recorder.finish_run(ended(runs[0]))
        notebook = check_notebook(await recorder.notebook(info.id))
        assert [cell.metadata["interpreter"]["status"] for cell in notebook.cells] == ["ok", "running"]


async def test_a_large_notebook_is_not_rendered_after_each_run_but_when_asked(tmp_path):
    async with recording(tmp_path) as recorder:
        info = session_info()
        await recorder.begin_session(info)
        await record_run(recorder, info, 1, text="x" * (3 << 20))
        await record_run(recorder, info, 2, text="y" * (3 << 20))
        for number in range(3, 30):
            await record_run(recorder, info, number)
            verification = await recorder.verify(info.id)
            assert verification.valid, verification
        assert len(check_notebook(await recorder.notebook(info.id)).cells) == 29
    assert RecordReader(tmp_path / "notebooks", tmp_path / "state").verify(info.id).valid


async def test_when_many_runs_end_their_notebooks_follow_by_themselves_and_fewer_times(tmp_path, monkeypatch):
    written = []
    write = NotebookFile.write
    monkeypatch.setattr(NotebookFile, "write", lambda *a, **k: (written.append(1), write(*a, **k))[1])
    async with recording(tmp_path) as recorder:
        infos = [session_info() for _ in range(8)]
        for info in infos:
            await recorder.begin_session(info)
        monkeypatch.setattr(sessions, "RENDER_INTERVAL", 0.4)  # runs end faster than that on any machine …
        runs = 10
        for number in range(1, runs + 1):
            await asyncio.gather(*(record_run(recorder, info, number) for info in infos))
        assert len(written) < len(infos) * runs / 2
        for info in infos:
            path = (await recorder.find_session(info.id)).notebook_path
            await eventually(lambda path=path: len(check_notebook(path.read_bytes()).cells) == runs)
        for info in infos:
            assert (await recorder.verify(info.id)).valid


async def test_a_notebook_whose_turn_has_not_come_is_complete_when_it_is_asked_for(tmp_path, monkeypatch):
    async with recording(tmp_path) as recorder:
        info = session_info()
        await recorder.begin_session(info)
        monkeypatch.setattr(sessions, "RENDER_INTERVAL", 3600.0)
        monkeypatch.setattr(sessions, "RENDERED_AT_ONCE", 0)
        for number in (1, 2):
            await record_run(recorder, info, number)
        path = (await recorder.find_session(info.id)).notebook_path
        assert len(check_notebook(path.read_bytes()).cells) == 1
        assert (await recorder.verify(info.id)).valid
        assert len(check_notebook(await recorder.notebook(info.id)).cells) == 2
        await record_run(recorder, info, 3)
        await recorder.end_session(info.id, "deleted")
        assert len(check_notebook(path.read_bytes()).cells) == 3


async def test_changes_after_the_end_of_a_run_are_recorded(tmp_path):
    async with recording(tmp_path) as recorder:
        info = session_info()
        await recorder.begin_session(info)
        run = await record_run(recorder, info, 1)
        for count in range(50):
            late = ended(accepted(info, 1), text=f"2 and late {count}")
            await recorder.amend_run(late, late=(0,), reason="late_output")
        assert await recorder.get_run(run.id) == late
        cell = check_notebook(await recorder.notebook(info.id)).cells[0]
        assert cell.outputs[0].text == "2 and late 49"
        assert cell.metadata["interpreter"]["late_outputs"] == [0]
        path = await path_of(recorder, info.id)
        assert path.read_bytes().count(b'"run_amended"') < 10
        await recorder.end_session(info.id, "deleted")
        assert (await recorder.verify(info.id)).valid


async def test_the_list_is_newest_first_and_tells_how_sessions_stand(tmp_path):
    clock = Clock()
    async with recording(tmp_path, clock) as recorder:
        infos = [session_info(clock) for _ in range(3)]
        for info in infos:
            await recorder.begin_session(info)
        run = accepted(infos[0], 1)
        await recorder.accept_run(run, idempotency_key=None, request_hash=None)
        await recorder.finish_run(ended(run, status=RunStatus.ERROR))
        await record_run(recorder, infos[0], 3)
        await recorder.note_kernel(infos[1].id, "kernel_started", "k-1")
        await recorder.end_session(infos[0].id, "expired")
        before = await recorder.list_sessions()
    async with recording(tmp_path, clock) as recorder:
        records = await recorder.list_sessions()
        assert records == before
    assert [record.info for record in records] == infos[::-1]
    assert [record.ended_reason for record in records] == [None, None, "expired"]
    assert (records[2].run_count, records[2].last_number) == (2, 3)
    assert records[2].statuses == {"error": 1, "ok": 1}
    assert (records[1].kernel_note.event, records[1].kernel_note.detail) == ("kernel_started", "k-1")
    assert RecordReader(tmp_path / "notebooks", tmp_path / "state").list_sessions() == records


async def test_an_open_session_goes_on_after_a_restart(tmp_path):
    info = session_info()
    async with recording(tmp_path) as recorder:
        await recorder.begin_session(info)
        first = await record_run(recorder, info, 1)
        running = accepted(info, 2)
        await recorder.accept_run(running, idempotency_key="key", request_hash="hash")
        for number in (3, 4):
            await recorder.accept_run(accepted(info, number), idempotency_key=None, request_hash=None)
    async with recording(tmp_path) as recorder:
        aborted = await recorder.get_run(running.id)
        assert aborted.status is RunStatus.ABORTED
        assert aborted.notices == ("The service stopped while this code ran.",)
        assert await recorder.find_idempotency_key(info.id, "key") == (running.id, "hash")
        assert await recorder.find_idempotency_key(info.id, "other") is None
        waited = [await recorder.get_run(run_id_of(info.id, number)) for number in (3, 4)]
        told = "The service stopped before this code ran: it waited for the run before it."
        assert [(run.status, run.notices) for run in waited] == [(RunStatus.ABORTED, (told,))] * 2
        fifth = await record_run(recorder, info, 5)
        assert await recorder.list_runs(info.id) == [first, aborted, *waited, fifth]
        assert (await recorder.verify(info.id)).valid
        await recorder.end_session(info.id, "deleted")
        verification = await recorder.verify(info.id)
        assert (verification.valid, verification.runs) == (True, 5)


async def test_a_run_that_ends_after_its_session_is_still_recorded(tmp_path):
    async with recording(tmp_path) as recorder:
        info = session_info()
        await recorder.begin_session(info)
        run = accepted(info, 1)
        await recorder.accept_run(run, idempotency_key=None, request_hash=None)
        await recorder.end_session(info.id, "deleted")
        with pytest.raises(RecordUnavailableError):
            await recorder.accept_run(accepted(info, 2), idempotency_key=None, request_hash=None)
        assert await recorder.finish_run(ended(run))
        assert await recorder.get_run(run.id) == ended(run)
        late = ended(accepted(info, 1), text="later")
        await recorder.amend_run(late, late=(0,), reason="late_output")
        assert await recorder.get_run(run.id) == late
        assert (await recorder.verify(info.id)).valid
    async with recording(tmp_path) as recorder:
        assert await recorder.get_run(run.id) == late
        assert (await recorder.find_session(info.id)).ended_reason == "deleted"


async def test_a_run_ends_once(tmp_path):
    async with recording(tmp_path) as recorder:
        info = session_info()
        await recorder.begin_session(info)
        run = await record_run(recorder, info, 1)
        assert not await recorder.finish_run(run)
        assert not await recorder.finish_run(ended(accepted(info, 9)))
        assert not await recorder.finish_run(ended(accepted(session_info(), 1)))
        assert await recorder.list_runs(info.id) == [run]
        assert (await recorder.verify(info.id)).valid


async def test_sessions_at_once_never_mix(tmp_path):
    async def one(recorder, info):
        await recorder.begin_session(info)
        for number in range(1, 9):
            await record_run(recorder, info, number, code=f"{info.id} {number}", text=f"{number} {info.id}")
        if info.one_off:
            await recorder.end_session(info.id, "deleted")

    async with recording(tmp_path) as recorder:
        infos = [session_info(one_off=bool(i % 2)) for i in range(20)]
        await asyncio.gather(*(one(recorder, info) for info in infos))
        for info in infos:
            runs = await recorder.list_runs(info.id)
            assert [run.code for run in runs] == [f"{info.id} {number}" for number in range(1, 9)]
            assert all(info.id in run.folded.stdout for run in runs)
            assert (await recorder.verify(info.id)).valid
        assert len(await recorder.list_sessions()) == 20


async def test_a_cancelled_caller_leaves_the_record_whole(tmp_path):
    async with recording(tmp_path) as recorder:
        info = session_info()
        await recorder.begin_session(info)
        came_too_late = []
        for number in range(1, 30):
            accepting = recorder.accept_run(accepted(info, number), idempotency_key=None, request_hash=None)
            task = asyncio.create_task(accepting)
            for _ in range(number % 4):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():  # the thread was done before
                assert task.result() is None
                came_too_late.append(number)
        assert not {number for number in came_too_late if number % 4 == 0}
        await record_run(recorder, info, 30)
        assert (await recorder.verify(info.id)).valid


async def test_a_second_service_is_refused(tmp_path):
    async with recording(tmp_path) as recorder:
        second = Recorder(tmp_path / "notebooks", tmp_path / "other-state", clock=Clock())
        with pytest.raises(SettingsError, match="record_dir"):
            await second.start()
        assert recorder.problem is None
    async with recording(tmp_path):
        pass


async def test_a_record_dir_that_is_a_file_stops_the_start(tmp_path):
    (tmp_path / "notebooks").write_text("")
    with pytest.raises(SettingsError, match="record_dir"):
        await Recorder(tmp_path / "notebooks", tmp_path / "state", clock=Clock()).start()


async def test_the_key_is_private_and_stays(tmp_path):
    async with recording(tmp_path):
        key = (tmp_path / "state/record.key").read_bytes()
    async with recording(tmp_path):
        assert (tmp_path / "state/record.key").read_bytes() == key
    assert len(key) == 32
    assert (tmp_path / "state/record.key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0
    assert (tmp_path / "notebooks").stat().st_mode & 0o077 == 0


async def test_search_finds_code_and_outputs_in_any_case_newest_first(tmp_path):
    clock = Clock()
    async with recording(tmp_path, clock) as recorder:
        infos = [session_info(clock) for _ in range(3)]
        for info, code, text in zip(
            infos, ["Straße = 1", 'p("a\\"b")', "x"], ["ALPHA", "beta\nalpha", "y"], strict=True
        ):
            await recorder.begin_session(info)
            await record_run(recorder, info, 1, code=code, text=text)
        await recorder.end_session(infos[0].id, "deleted")
        assert await recorder.search("Alpha") == [infos[1].id, infos[0].id]
        assert await recorder.search("alpha", limit=1) == [infos[1].id]
        assert await recorder.search("STRASSE") == [infos[0].id]
        assert await recorder.search("beta\nal") == [infos[1].id]
        assert await recorder.search('a\\"B') == [infos[1].id]
        assert await recorder.search("run_accepted") == []


async def test_export_holds_journals_and_notebooks(tmp_path):
    async with recording(tmp_path) as recorder:
        infos = [session_info() for _ in range(2)]
        for info in infos:
            await recorder.begin_session(info)
            await record_run(recorder, info, 1)
        assert await recorder.export(tmp_path / "all.zip") == 2
        assert await recorder.export(tmp_path / "one.zip", {infos[0].id}) == 1
        journal = (await path_of(recorder, infos[0].id)).read_bytes()
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        name = f"2026/01/31/{infos[0].id}"
        assert sorted(archive.namelist()) == [f"{name}.ipynb", f"{name}.jsonl"]
        assert archive.read(f"{name}.jsonl") == journal
        check_notebook(archive.read(f"{name}.ipynb"))


async def test_retention_removes_whole_sessions_and_verification_knows(tmp_path):
    clock = Clock()
    reader = RecordReader(tmp_path / "notebooks", tmp_path / "state")
    async with recording(tmp_path, clock) as recorder:
        old, kept, still_open = (session_info(clock) for _ in range(3))
        for info in (old, kept, still_open):
            await recorder.begin_session(info)
            await record_run(recorder, info, 1)
        await recorder.end_session(old.id, "expired")
        border = clock()
        await recorder.end_session(kept.id, "expired")
        clock.now += timedelta(days=2)
        assert await recorder.prune(border) == [old.id]
        assert await recorder.prune(border) == []
        assert await recorder.find_session(old.id) is None
        assert await recorder.notebook(old.id) is None
        assert (await recorder.verify(old.id)).valid
        found = reader.verify_all()
        assert found.keys() == {kept.id, still_open.id, "retention"}
        assert all(verification.valid for verification in found.values())
        assert not list((tmp_path / "notebooks").rglob(f"*{old.id}*"))
        assert await recorder.prune(clock()) == [kept.id]
    assert reader.verify_all()["retention"].valid
    lines = (tmp_path / "notebooks/retention.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "notebooks/retention.jsonl").write_bytes(b"".join(lines[:-1]))
    found = reader.verify_all()
    assert not found["retention"].valid


async def test_reading_an_unknown_session_finds_nothing(tmp_path):
    async with recording(tmp_path) as recorder:
        unknown = session_info().id
        for session_id in (unknown, "../../etc", ""):
            assert await recorder.find_session(session_id) is None
            assert await recorder.notebook(session_id) is None
            assert await recorder.verify(session_id) is None
            assert await recorder.list_runs(session_id) == []


async def test_it_opens_in_nbconvert_and_nbclient(tmp_path):
    from nbclient import NotebookClient
    from nbconvert import HTMLExporter

    async with recording(tmp_path) as recorder:
        info = session_info()
        await recorder.begin_session(info)
        await record_run(recorder, info, 1, code="print('find me')", text="find me\n")
        notebook = check_notebook(await recorder.notebook(info.id))
    html, _ = HTMLExporter().from_notebook_node(notebook)
    assert "find me" in html
    assert NotebookClient(notebook).nb is notebook


texts = st.text(st.characters(), max_size=30)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("accept"), texts),
        st.tuples(st.just("finish"), texts, st.sampled_from([s for s in RunStatus if s.is_final])),
        st.tuples(st.just("amend"), texts),
        st.tuples(st.just("note"), texts),
        st.tuples(st.just("restart")),
    ),
    max_size=12,
)


@given(steps=steps)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_sequence_gives_a_valid_notebook_that_verifies(tmp_path_factory, steps):
    asyncio.run(play(tmp_path_factory.mktemp("record"), steps))


async def play(folder, steps):
    info, waiting, done, number = session_info(), [], {}, 0
    recorder = Recorder(folder / "notebooks", folder / "state", clock=Clock())
    await recorder.start()
    await recorder.begin_session(info)
    for kind, *values in steps:
        if kind == "accept":
            number += 1
            waiting.append(accepted(info, number, values[0]))
            await recorder.accept_run(waiting[-1], idempotency_key=None, request_hash=None)
        elif kind == "finish" and waiting:
            run = ended(waiting.pop(0), *values)
            assert await recorder.finish_run(run)
            done[run.id] = run
        elif kind == "amend" and done:
            run = ended(next(iter(done.values())), values[0], next(iter(done.values())).status)
            await recorder.amend_run(run, late=(), reason="x")
            done[run.id] = run
        elif kind == "note":
            await recorder.note_kernel(info.id, "kernel_restarted", values[0])
        elif kind == "restart":
            await recorder.aclose()
            recorder = Recorder(folder / "notebooks", folder / "state", clock=Clock())
            await recorder.start()
            waiting.clear()
        verification = await recorder.verify(info.id)
        assert verification.valid, verification
    check_notebook(await recorder.notebook(info.id))
    recorded = {run.id: run for run in await recorder.list_runs(info.id)}
    assert len(recorded) == number
    assert {run_id: recorded[run_id] for run_id in done} == done
    await recorder.aclose()
    verification = RecordReader(folder / "notebooks", folder / "state").verify(info.id)
    assert (verification.valid, verification.runs) == (True, number)


async def test_a_damaged_journal_is_kept_readable_and_is_not_continued(tmp_path):
    info = session_info()
    async with recording(tmp_path) as recorder:
        await recorder.begin_session(info)
        run = await record_run(recorder, info, 1)
        path = await path_of(recorder, info.id)
    path.write_bytes(path.read_bytes().replace(b'"code":"1+1"', b'"code":"1+2"'))
    damaged = path.read_bytes()
    async with recording(tmp_path) as recorder:
        assert (await recorder.find_session(info.id)).ended_reason == "damaged"
        assert await recorder.get_run(run.id) == replace(run, code="1+2")
        assert not (await recorder.verify(info.id)).valid
        with pytest.raises(RecordUnavailableError):
            await recorder.accept_run(accepted(info, 2), idempotency_key=None, request_hash=None)
        assert await recorder.prune(BEGIN + timedelta(days=999)) == []
    assert path.read_bytes() == damaged


async def test_closed_sessions_hold_no_files_open(tmp_path):
    async with recording(tmp_path) as recorder:
        files = len(os.listdir("/proc/self/fd"))
        for _ in range(30):
            info = session_info()
            await recorder.begin_session(info)
            await record_run(recorder, info, 1)
            await recorder.end_session(info.id, "deleted")
            assert len(await recorder.list_runs(info.id)) == 1
        assert len(os.listdir("/proc/self/fd")) == files


async def test_a_run_that_takes_long_shows_in_the_notebook_on_disk_by_itself(tmp_path):
    async with recording(tmp_path) as recorder:
        info = session_info()
        await recorder.begin_session(info)
        await recorder.accept_run(accepted(info, 1, "sleep()"), idempotency_key=None, request_hash=None)
        path = (await recorder.find_session(info.id)).notebook_path
        await eventually(lambda: b"sleep()" in path.read_bytes())
        cell = check_notebook(path.read_bytes()).cells[0]
        assert cell.metadata["interpreter"]["status"] == "running"


async def test_journals_and_notebooks_are_for_the_services_user_only(tmp_path):
    (tmp_path / "notebooks").mkdir(mode=0o755)
    async with recording(tmp_path) as recorder:
        info = session_info()
        await recorder.begin_session(info)
        await record_run(recorder, info, 1)
    files = [path for path in (tmp_path / "notebooks").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} >= {".jsonl", ".ipynb"}
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_changes_that_come_at_once_are_written_on_the_service_s_own_loop(tmp_path):
    """uvloop's timers without a delay are not like asyncio's, on which the other tests run."""

    async def amend_and_go_on() -> None:
        async with recording(tmp_path) as recorder:
            info = session_info()
            await recorder.begin_session(info)
            runs = [await record_run(recorder, info, number) for number in (1, 2)]
            for run in runs:
                await recorder.amend_run(ended(run, "changed"), late=(), reason="late_output")
            await record_run(recorder, info, 3)
            assert [run.folded.stdout for run in await recorder.list_runs(info.id)] == [
                "changed",
                "changed",
                "2",
            ]

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(amend_and_go_on())
