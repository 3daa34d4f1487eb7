"""Each way to change the record behind the service's back is found, and the run is named."""

import json
import os
import re
from pathlib import Path

import pytest
from recordkit import Clock, accepted, ended, record_run, recording, session_info

from interpreter.record import RecordReader


class Written:
    """A closed record of one session with three runs, on disk."""

    def __init__(self, folder, info, path):
        self.folder, self.info, self.path = folder, info, path
        self.notebook = path.with_suffix(".ipynb")
        self.head = folder / "state/heads" / info.id
        self.lines = path.read_bytes().splitlines(keepends=True)

    @property
    def reader(self):
        return RecordReader(self.folder / "notebooks", self.folder / "state")

    def verify(self):
        return self.reader.verify(self.info.id)

    def problems(self, lines=None):
        if lines is not None:
            self.path.write_bytes(b"".join(lines))
        verification = self.verify()
        assert verification.valid == (not verification.problems)
        return " ".join(verification.problems)


async def write_record(folder, *, end=True, code="1+1"):
    info = session_info()
    async with recording(folder) as recorder:
        await recorder.begin_session(info)
        for number in (1, 2, 3):
            await record_run(recorder, info, number, code=code, text=f"out {number}")
        if end:
            await recorder.end_session(info.id, "deleted")
        path = (await recorder.find_session(info.id)).path
    return Written(folder, info, path)


@pytest.fixture(params=[True, False], ids=["ended", "open"])
async def written(tmp_path, request):
    return await write_record(tmp_path, end=request.param)


async def test_an_untouched_record_is_valid(written):
    verification = written.verify()
    assert (verification.valid, verification.runs, verification.problems) == (True, 3, ())


async def test_every_changed_byte_of_the_journal_is_found(written):
    content = written.path.read_bytes()
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1 << (position % 8)
        written.path.write_bytes(changed)
        assert not written.verify().valid, position
    written.path.write_bytes(content)
    assert written.verify().valid


async def test_every_changed_byte_of_the_notebook_is_found(written):
    content = written.notebook.read_bytes()
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1 << (position % 8)
        written.notebook.write_bytes(changed)
        assert not written.verify().valid, position
    written.notebook.write_bytes(content)
    assert written.verify().valid


async def test_every_cut_of_the_journal_is_found(written):
    content = written.path.read_bytes()
    for length in range(len(content)):
        written.path.write_bytes(content[:length])
        assert not written.verify().valid, length


# The journal: start, then (accepted, ended) for each of three runs; run 2 has lines 3 and 4.


@pytest.mark.parametrize(("line", "what"), [(3, "the code of run 2"), (4, "the outcome of run 2")])
async def test_a_changed_entry_names_its_run(written, line, what):
    lines = list(written.lines)
    lines[line] = lines[line].replace(b"1+1", b"1+3").replace(b"out 2", b"out X")
    problems = written.problems(lines)
    assert what in problems
    assert "run 1" not in problems
    assert "run 3" not in problems


async def test_a_removed_run_is_found(written):
    problems = written.problems(written.lines[:3] + written.lines[5:])
    assert "missing: 4-5" in problems


async def test_a_removed_run_is_found_when_the_rest_was_renumbered(written):
    lines = written.lines[:3]
    for line in written.lines[5:]:
        seq = int(re.match(rb'{"seq":(\d+)', line)[1])
        lines.append(line.replace(b'"seq":%d' % seq, b'"seq":%d' % (seq - 2), 1))
    problems = written.problems(lines)
    assert "Entry 4 (the code of run 3) was changed" in problems


async def test_a_duplicated_run_is_found(written):
    problems = written.problems(written.lines[:5] + written.lines[3:])
    assert "(the code of run 2) stands there twice" in problems
    assert "(the outcome of run 2) stands there twice" in problems


async def test_reordered_runs_are_found(written):
    lines = written.lines
    problems = written.problems([*lines[:1], *lines[3:5], *lines[1:3], *lines[5:]])
    assert "(the code of run 1) is out of order" in problems


async def test_an_added_run_is_found(written, tmp_path_factory):
    other = await write_record(tmp_path_factory.mktemp("other"))
    assert written.problems([*written.lines, *other.lines[-2:]])


async def test_a_cut_at_the_border_of_an_entry_is_found(written):
    problems = written.problems(written.lines[:5])
    assert re.search(r"(\d) entries are missing at the end of the journal \(after run 2\)", problems)


async def test_a_cut_is_found_also_when_the_notebook_is_cut_to_match(written):
    content = written.reader.notebook(written.info.id)
    written.problems(written.lines[:5])
    written.notebook.write_bytes(written.reader.notebook(written.info.id))
    assert "missing at the end" in written.problems()
    assert content != written.notebook.read_bytes()


async def test_a_cut_is_found_after_a_restart_too(written):
    written.path.write_bytes(b"".join(written.lines[:5]))
    async with recording(written.folder) as recorder:
        assert not (await recorder.verify(written.info.id)).valid
    assert "missing at the end" in written.problems()


async def test_a_missing_head_is_found(written):
    written.head.unlink()
    assert "can't be ruled out" in written.problems()


async def test_a_missing_journal_is_found(written):
    written.path.unlink()
    assert "missing" in written.problems()
    assert not written.reader.verify_all()[written.info.id].valid


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
async def test_a_folder_or_a_pipe_in_a_file_s_place_is_found_and_does_no_more(written, make):
    written.notebook.unlink()
    make(written.notebook)
    async with recording(written.folder) as recorder:
        assert (await recorder.list_runs(written.info.id))[0].folded.stdout == "out 1"
        await recorder.end_session(written.info.id, "deleted")
    assert not written.verify().valid
    written.path.unlink()
    make(written.path)
    assert "missing" in written.problems()
    assert not written.reader.verify_all()[written.info.id].valid
    async with recording(written.folder) as recorder:
        assert await recorder.list_sessions() == []


async def test_a_notebook_that_no_journal_stands_behind_is_found(written):
    forged = written.notebook.with_stem(session_info().id)
    forged.write_bytes(written.notebook.read_bytes())
    found = {session_id for session_id, v in written.reader.verify_all().items() if not v.valid}
    assert found == {forged.stem}


async def test_a_removed_first_entry_is_not_taken_for_another_key(written):
    problems = written.problems(written.lines[1:])
    assert "does not begin with its first entry" in problems
    assert "missing: 1." in problems
    assert "key" not in problems


async def test_a_changed_length_in_the_head_is_found(written):
    fields = written.head.read_bytes().split(b" ", 2)
    fields[1] = b"%016d" % (int(fields[1]) + 1)
    written.head.write_bytes(b" ".join(fields))
    assert "journal's end was changed" in written.problems()


async def test_an_empty_journal_is_found(written):
    assert "empty" in written.problems([])


async def test_a_missing_key_or_another_one_is_said(written):
    key = written.folder / "state/record.key"
    key.write_bytes(b"x" * 32)
    assert "another key" in written.problems()
    key.unlink()
    assert "key is missing" in written.problems()


async def test_another_session_s_journal_in_its_place_is_found(tmp_path):
    first = await write_record(tmp_path)
    second = await write_record(tmp_path)
    assert "of another session" in first.problems(second.lines)


async def test_a_moved_or_copied_journal_is_found(written):
    folder = written.folder / "notebooks/2026/02/01"
    folder.mkdir(parents=True)
    for path in (written.path, written.notebook):
        (folder / path.name).write_bytes(path.read_bytes())
    assert "twice" in " ".join(written.reader.verify_all()[written.info.id].problems)
    written.path.unlink()
    written.notebook.unlink()
    assert "folder of the day" in written.problems()


async def test_an_edited_notebook_is_found_and_names_the_cell(written):
    content = written.notebook.read_bytes()
    written.notebook.write_bytes(content.replace(b"out 2", b"out 9"))
    assert "the cell of run 2 differs" in written.problems()
    written.notebook.write_bytes(content + b" ")
    assert "added at its end" in written.problems()
    written.notebook.write_bytes(json.dumps(json.loads(content)).encode())
    assert "edited" in written.problems()


async def test_a_missing_notebook_of_an_ended_session_is_found(tmp_path):
    written = await write_record(tmp_path)
    written.notebook.unlink()
    assert "notebook is missing" in written.problems()


async def test_an_older_notebook_put_back_is_found(tmp_path):
    info = session_info()
    async with recording(tmp_path) as recorder:
        await recorder.begin_session(info)
        await record_run(recorder, info, 1)
        older = await recorder.notebook(info.id)
        await record_run(recorder, info, 2)
        notebook = (await recorder.find_session(info.id)).notebook_path
        notebook.write_bytes(older)
        assert "behind" in " ".join((await recorder.verify(info.id)).problems)


@pytest.mark.parametrize("restart", [False, True])
async def test_an_edit_during_the_session_stays_found_when_the_session_goes_on(tmp_path, restart):
    info = session_info()

    async def edit(recorder):
        path = (await recorder.find_session(info.id)).notebook_path
        path.write_bytes(path.read_bytes().replace(b"out 1", b"out 9"))

    async with recording(tmp_path) as recorder:
        await recorder.begin_session(info)
        await record_run(recorder, info, 1, text="out 1")
        await edit(recorder)
        assert "the cell of run 1 differs" in " ".join((await recorder.verify(info.id)).problems)
        if not restart:
            await record_run(recorder, info, 2)
    async with recording(tmp_path) as recorder:
        assert "edited copy" in " ".join((await recorder.verify(info.id)).problems)
        assert b"out 9" not in await recorder.notebook(info.id)


async def test_touching_or_restoring_the_same_notebook_is_no_edit(tmp_path):
    info = session_info()
    async with recording(tmp_path) as recorder:
        await recorder.begin_session(info)
        await record_run(recorder, info, 1)
        path = (await recorder.find_session(info.id)).notebook_path
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
        await record_run(recorder, info, 2)
        assert (await recorder.verify(info.id)).valid


async def test_a_forged_removal_does_not_excuse_a_missing_session(written):
    written.path.unlink()
    entry = {"seq": 2, "at": "2026-01-01T00:00:00.000000Z", "kind": "session_removed"}
    line = json.dumps({**entry, "data": {"session": written.info.id}, "mac": "0" * 64}, separators=(",", ":"))
    (written.folder / "notebooks/retention.jsonl").write_text(line + "\n")
    assert not written.verify().valid
    assert not written.reader.verify_all()["retention"].valid


async def test_a_running_service_s_record_verifies_beside_it(tmp_path):
    info = session_info()
    reader = RecordReader(tmp_path / "notebooks", tmp_path / "state")
    async with recording(tmp_path, Clock()) as recorder:
        await recorder.begin_session(info)
        await record_run(recorder, info, 1)
        run = accepted(info, 2)
        await recorder.accept_run(run, idempotency_key=None, request_hash=None)
        assert reader.verify(info.id).valid  # the notebook does not show run 2 yet
        await recorder.finish_run(ended(run))
        assert reader.verify(info.id).valid
