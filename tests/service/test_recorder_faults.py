"""Kills and broken disks: nothing that was acknowledged is lost, nothing is left half written."""

import asyncio
import contextlib
import errno
import itertools
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from recordkit import accepted, check_notebook, ended, eventually, record_run, recording, session_info

from interpreter import quickness
from interpreter.errors import RecordUnavailableError
from interpreter.models import RunStatus, parse_run_id
from interpreter.record import Recorder, RecordReader
from interpreter.record.sessions import RENDERED_AT_ONCE

WRITER = Path(__file__).with_name("record_writer.py")


def kill_after(folder: Path, acknowledgements: int) -> list[tuple[str, str]]:
    """Run the writer, kill it with SIGKILL after a number of lines; returns all lines it has printed."""
    command = [sys.executable, str(WRITER), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        lines = [writer.stdout.readline() for _ in range(acknowledgements)]
        writer.kill()
        lines += writer.stdout.readlines()
    return [tuple(line.split()) for line in lines if line.endswith("\n")]


async def test_a_killed_service_loses_no_acknowledged_run(tmp_path):
    acknowledged: list[tuple[str, str]] = []
    for acknowledgements in (1, 2, 3, 5, 9, 16, 25, 36, 49, 64):
        acknowledged += await asyncio.to_thread(kill_after, tmp_path, acknowledgements)
        async with recording(tmp_path) as recorder:
            for record in await recorder.list_sessions():
                verification = await recorder.verify(record.info.id)
                assert verification.valid, verification
                if record.ended_reason is None:
                    check_notebook(await recorder.notebook(record.info.id))
            for kind, run_id in acknowledged:
                run = await recorder.get_run(run_id)
                assert run.code == f"code {run.number}"
                if kind == "ended":
                    assert run.status is RunStatus.OK
                    assert run.folded.stdout.startswith(f"{run.number} x")
                else:
                    assert run.status in (RunStatus.OK, RunStatus.ABORTED)
    assert len(acknowledged) > 200
    assert all(
        v.valid for v in RecordReader(tmp_path / "notebooks", tmp_path / "state").verify_all().values()
    )
    assert not list((tmp_path / "notebooks").rglob("*.edited.ipynb"))
    assert {parse_run_id(run_id)[0] for _, run_id in acknowledged}


class BadDisk:
    """Writes half of what it is given, then fails, once it is told to."""

    def __init__(self, monkeypatch) -> None:
        self.error: int | None = None
        self.truncates = True
        self._pwrite, self._ftruncate = os.pwrite, os.ftruncate
        monkeypatch.setattr(os, "pwrite", self.pwrite)
        monkeypatch.setattr(os, "ftruncate", self.ftruncate)

    def pwrite(self, descriptor, content, offset):
        if self.error is None:
            return self._pwrite(descriptor, content, offset)
        if len(content) > 1:
            return self._pwrite(descriptor, content[: len(content) // 2], offset)
        raise OSError(self.error, os.strerror(self.error))

    def ftruncate(self, descriptor, length):
        if self.error is not None and not self.truncates:
            raise OSError(self.error, os.strerror(self.error))
        self._ftruncate(descriptor, length)


@pytest.fixture
def disk(monkeypatch):
    return BadDisk(monkeypatch)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [(errno.ENOSPC, "is full"), (errno.EIO, "Input/output error"), (errno.EROFS, "read-only")],
)
@pytest.mark.parametrize(("truncates", "early"), list(itertools.product([True, False], repeat=2)))
async def test_a_disk_that_fails_refuses_runs_and_leaves_nothing_half_written(
    tmp_path, disk, error, sentence, *, truncates, early
):
    async with recording(tmp_path) as recorder:
        info = session_info()
        await recorder.begin_session(info)
        first = await record_run(recorder, info, 1)
        path = (await recorder.find_session(info.id)).path
        good = path.read_bytes()
        disk.error, disk.truncates = error, truncates
        with pytest.raises(RecordUnavailableError, match=sentence) as caught:
            await recorder.accept_run(accepted(info, 2), idempotency_key=None, request_hash=None, early=early)
        assert caught.value.code == "record_not_writable"
        assert sentence in recorder.problem
        assert str(tmp_path) not in recorder.problem
        assert (path.read_bytes() == good) == truncates
        with pytest.raises(RecordUnavailableError):
            await recorder.begin_session(session_info())
        assert await recorder.list_runs(info.id) == [first]
        disk.error = None
        second = await record_run(recorder, info, 2)
        assert recorder.problem is None
        assert await recorder.list_runs(info.id) == [first, second]
        assert (await recorder.verify(info.id)).valid
        assert len(await recorder.list_sessions()) == 1
    assert (RecordReader(tmp_path / "notebooks", tmp_path / "state").verify(info.id)).valid


class SlowSync:
    """Holds each `os.fdatasync` up until it is let through, or let fail."""

    def __init__(self, monkeypatch) -> None:
        self.asked, self.goes_on = threading.Semaphore(0), threading.Semaphore(0)
        self.fails = False
        self._fdatasync = os.fdatasync
        monkeypatch.setattr(os, "fdatasync", self.fdatasync)

    def fdatasync(self, descriptor):
        self.asked.release()
        assert self.goes_on.acquire(timeout=30)
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._fdatasync(descriptor)


@pytest.mark.parametrize("fails", [True, False])
async def test_a_run_that_nobody_is_told_of_is_synced_with_its_end(tmp_path, monkeypatch, fails):
    monkeypatch.setattr("interpreter.record.sessions.SYNC_DELAY", 3600)
    async with recording(tmp_path) as recorder:
        info = session_info()
        await recorder.begin_session(info)
        path = (await recorder.find_session(info.id)).path
        head = tmp_path / "state" / "heads" / info.id
        before = head.read_bytes()
        with monkeypatch.context() as patch:
            sync = SlowSync(patch)
            sync.fails = fails
            run = accepted(info, 1)
            await recorder.accept_run(run, idempotency_key=None, request_hash=None, early=True)
            assert b'"run_accepted"' in path.read_bytes()
            assert head.read_bytes() == before  # one that is ahead of its journal looks like a cut
            finishing = asyncio.create_task(recorder.finish_run(ended(run)))
            assert await asyncio.to_thread(sync.asked.acquire, timeout=30)
            assert not finishing.done()
            sync.goes_on.release(1000)  # what is cut back is synced, too
            assert await finishing is not fails
            assert (recorder.problem is not None) is fails
        assert await recorder.probe() is None
        assert await recorder.get_run(run.id) == ended(run)
        assert (await recorder.verify(info.id)).valid
        assert head.read_bytes() != before
    assert RecordReader(tmp_path / "notebooks", tmp_path / "state").verify(info.id).valid


async def test_a_run_that_takes_longer_is_synced_meanwhile(tmp_path, monkeypatch):
    async with recording(tmp_path) as recorder:
        info = session_info()
        await recorder.begin_session(info)
        head = tmp_path / "state" / "heads" / info.id
        before = head.read_bytes()
        with monkeypatch.context() as patch:
            sync = SlowSync(patch)
            run = accepted(info, 1)
            await recorder.accept_run(run, idempotency_key=None, request_hash=None, early=True)
            assert await asyncio.to_thread(sync.asked.acquire, timeout=30)
            assert head.read_bytes() == before
            sync.goes_on.release(1000)
            await eventually(lambda: head.read_bytes() != before)


async def test_a_run_that_someone_reads_of_is_synced_before(tmp_path, monkeypatch):
    monkeypatch.setattr("interpreter.record.sessions.SYNC_DELAY", 3600)
    async with recording(tmp_path) as recorder:
        info = session_info()
        await recorder.begin_session(info)
        head = tmp_path / "state" / "heads" / info.id
        before = head.read_bytes()
        run = accepted(info, 1)
        await recorder.accept_run(run, idempotency_key=None, request_hash=None, early=True)
        assert head.read_bytes() == before
        assert await recorder.list_run_ids(info.id) == [run.id]
        assert head.read_bytes() != before


async def test_a_slow_disk_is_not_written_to_on_the_event_loop(tmp_path, monkeypatch):
    async with recording(tmp_path) as recorder:
        info = session_info()
        await recorder.begin_session(info)
        writers = []
        pwrite = os.pwrite

        def slow(descriptor, content, offset):
            writers.append(threading.current_thread() is threading.main_thread())
            if writers[-1]:
                time.sleep(quickness.SECONDS)
            return pwrite(descriptor, content, offset)

        monkeypatch.setattr(os, "pwrite", slow)
        for number in (1, 2, 3):
            writers.clear()
            await recorder.accept_run(
                accepted(info, number), idempotency_key=None, request_hash=None, early=True
            )
            # That the first took long may have had another cause.
            assert set(writers) == {number < 3}


@pytest.mark.parametrize("slow", [False, True])
async def test_ends_of_runs_are_synced_on_the_event_loop_only_by_a_quick_disk(tmp_path, monkeypatch, slow):
    """Of small runs: a large one takes a thread anyway."""
    syncing = []

    def fdatasync(_):
        syncing.append(threading.current_thread() is threading.main_thread())
        if slow:
            time.sleep(0.01)

    async with recording(tmp_path) as recorder:
        info = session_info()
        await recorder.begin_session(info)
        monkeypatch.setattr(os, "fdatasync", fdatasync)
        for number in range(1, 3 * RENDERED_AT_ONCE):  # the first ones are rendered at once, in a thread
            run = accepted(info, number)
            await recorder.accept_run(run, idempotency_key=None, request_hash=None, early=True)
            await recorder.finish_run(ended(run))
        assert (sum(syncing) < RENDERED_AT_ONCE) == slow
        await recorder.finish_run(await _accepted_large(recorder, info))
        assert not syncing[-1]
        assert (await recorder.verify(info.id)).valid


async def _accepted_large(recorder, info):
    run = accepted(info, 1000)
    await recorder.accept_run(run, idempotency_key=None, request_hash=None, early=True)
    return ended(run, "x" * 100_000)


async def test_an_acceptance_that_may_not_have_come_to_disk_is_written_again(tmp_path, monkeypatch):
    async with recording(tmp_path) as recorder:
        info = session_info()
        await recorder.begin_session(info)
        path = (await recorder.find_session(info.id)).path
        run = accepted(info, 1)
        with monkeypatch.context() as patch:
            sync = SlowSync(patch)
            sync.fails = True
            sync.goes_on.release()
            await recorder.accept_run(run, idempotency_key=None, request_hash=None, early=True)
            await eventually(lambda: recorder.problem is not None)
        written = path.read_bytes()
        line = written.splitlines(keepends=True)[-1]
        with path.open("r+b") as journal:  # as after a failed sync: the system has dropped the page
            journal.seek(len(written) - len(line))
            journal.write(bytes(len(line)))
        assert await recorder.finish_run(ended(run))
        assert path.read_bytes().startswith(written)
        assert (await recorder.verify(info.id)).valid


async def test_an_outcome_that_could_not_be_written_is_written_once_it_can(tmp_path, disk):
    async with recording(tmp_path) as recorder:
        infos = [session_info(), session_info()]
        runs = []
        for info in infos:
            await recorder.begin_session(info)
            runs.append(accepted(info, 1))
            await recorder.accept_run(runs[-1], idempotency_key=None, request_hash=None)
        disk.error = errno.ENOSPC
        assert not await recorder.finish_run(ended(runs[0]))
        assert not await recorder.finish_run(ended(runs[0], text="again"))
        assert not await recorder.finish_run(ended(runs[1], text="x" * (2 << 20)))
        await recorder.end_session(infos[1].id, "deleted")
        assert await recorder.probe() is not None
        assert await recorder.get_run(runs[0].id) == replace(ended(runs[0], text="again"), recorded=False)
        disk.error = None
        assert await recorder.probe() is None
        assert await recorder.get_run(runs[0].id) == ended(runs[0], text="again")
        large = await recorder.get_run(runs[1].id)
        assert (large.status, large.folded.truncated) == (RunStatus.OK, True)
        assert "could not be recorded" in large.notices[0]
        assert (await recorder.find_session(infos[1].id)).ended_reason == "deleted"
        for info in infos:
            assert (await recorder.verify(info.id)).valid


async def test_a_session_that_ends_while_its_notebook_can_t_be_written_gets_it_later(tmp_path):
    info = session_info()
    async with recording(tmp_path) as recorder:
        await recorder.begin_session(info)
        await record_run(recorder, info, 1)
        path = (await recorder.find_session(info.id)).path
        in_the_way = path.with_name(f".{info.id}.ipynb.tmp")
        in_the_way.mkdir()
        await recorder.end_session(info.id, "deleted")
        assert (await recorder.find_session(info.id)).ended_reason == "deleted"
        assert (await recorder.verify(info.id)).valid
        in_the_way.rmdir()
        head = tmp_path / "state/heads" / info.id
        await eventually(lambda: head.read_bytes().endswith(b"ended\n"))
        assert RecordReader(tmp_path / "notebooks", tmp_path / "state").verify(info.id).valid
        assert (await recorder.verify(info.id)).valid
        assert (await recorder.list_runs(info.id))[0].number == 1


async def test_readiness_comes_back_by_itself(tmp_path, disk):
    async with recording(tmp_path) as recorder:
        disk.error = errno.ENOSPC
        with pytest.raises(RecordUnavailableError):
            await recorder.begin_session(session_info())
        disk.error = None
        await eventually(lambda: recorder.problem is None)


async def test_a_half_written_entry_is_cut_off_at_the_next_start(tmp_path):
    info = session_info()
    async with recording(tmp_path) as recorder:
        await recorder.begin_session(info)
        run = await record_run(recorder, info, 1)
        path = (await recorder.find_session(info.id)).path
    with path.open("ab") as file:
        file.write(b'{"seq":4,"at":"2026-')
    async with recording(tmp_path) as recorder:
        assert await recorder.list_runs(info.id) == [run]
        assert (await recorder.verify(info.id)).valid
        assert b'"kind":"journal_mended","data":{"bytes":20}' in path.read_bytes()


async def test_a_session_whose_begin_was_cut_short_leaves_nothing(tmp_path):
    info = session_info()
    async with recording(tmp_path) as recorder:
        await recorder.begin_session(info)
        path = (await recorder.find_session(info.id)).path
    head = tmp_path / "state/heads" / info.id
    head.write_bytes(b"%012d %016d %s open \n" % (0, 0, b"0" * 64))
    path.write_bytes(path.read_bytes()[:30])
    async with recording(tmp_path) as recorder:
        assert await recorder.list_sessions() == []
        assert await recorder.verify(info.id) is None
    assert not path.exists()
    assert not head.exists()


async def test_a_journal_that_is_taken_away_stops_its_session(tmp_path):
    async with recording(tmp_path) as recorder:
        info = session_info()
        await recorder.begin_session(info)
        (await recorder.find_session(info.id)).path.unlink()
        with pytest.raises(RecordUnavailableError, match="vanished"):
            await recorder.accept_run(accepted(info, 1), idempotency_key=None, request_hash=None)
        assert not (await recorder.verify(info.id)).valid


async def test_a_journal_that_is_cut_in_its_place_stops_its_session_until_it_is_whole_again(tmp_path):
    async with recording(tmp_path) as recorder:
        info = session_info()
        await recorder.begin_session(info)
        await record_run(recorder, info, 1)
        path = (await recorder.find_session(info.id)).path
        whole = path.read_bytes()
        os.truncate(path, len(whole) - 100)
        with pytest.raises(RecordUnavailableError, match="vanished"):
            await recorder.accept_run(accepted(info, 2), idempotency_key=None, request_hash=None)
        assert path.read_bytes() == whole[:-100]
        path.write_bytes(whole)
        await record_run(recorder, info, 2)
        assert (await recorder.verify(info.id)).valid


@pytest.mark.parametrize("linked", [False, True], ids=["gone", "with-a-link"])
@pytest.mark.parametrize("same", [True, False], ids=["identical", "older"])
async def test_a_copy_in_a_live_journal_s_place_is_gone_on_with_only_if_nothing_differs(
    tmp_path, same, linked
):
    async with recording(tmp_path) as recorder:
        info = session_info()
        await recorder.begin_session(info)
        path = (await recorder.find_session(info.id)).path
        older = path.read_bytes()
        await record_run(recorder, info, 1)
        copy = path.with_name("copy")
        copy.write_bytes(path.read_bytes() if same else older)
        if linked:  # a backup made of hard links: the old file lives on elsewhere
            path.with_name("link").hardlink_to(path)
        copy.replace(path)
        if same:
            await record_run(recorder, info, 2)
            assert (await recorder.verify(info.id)).valid
            assert path.read_bytes().count(b'"run_ended"') == 2
        else:
            with pytest.raises(RecordUnavailableError, match="vanished"):
                await recorder.accept_run(accepted(info, 2), idempotency_key=None, request_hash=None)
            assert path.read_bytes() == older


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def recorder_on(folder: Path, state: Path) -> Recorder:
    return Recorder(folder / "notebooks", state, clock=lambda: datetime.now(UTC))


def fill(path: Path) -> None:
    """Take all the space that is left."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


async def test_a_real_disk_that_is_full(tmp_path, small_disk):
    recorder = recorder_on(small_disk, tmp_path / "state")
    await recorder.start()
    info = session_info()
    await recorder.begin_session(info)
    await record_run(recorder, info, 1)
    run = accepted(info, 2)
    await recorder.accept_run(run, idempotency_key=None, request_hash=None)
    filler = small_disk / "filler"
    fill(filler)
    assert not await recorder.finish_run(ended(run, text="x" * 8192))
    with pytest.raises(RecordUnavailableError, match="full"):
        await recorder.accept_run(accepted(info, 3), idempotency_key=None, request_hash=None)
    assert "full" in recorder.problem
    check_notebook((await recorder.find_session(info.id)).notebook_path.read_bytes())
    check_notebook(await recorder.notebook(info.id))
    filler.unlink()
    await record_run(recorder, info, 3)
    assert recorder.problem is None
    assert (await recorder.get_run(run.id)).folded.stdout == "x" * 8192
    assert (await recorder.verify(info.id)).valid
    await recorder.aclose()


async def test_a_real_disk_that_is_read_only(tmp_path, small_disk):
    recorder = recorder_on(small_disk, tmp_path / "state")
    await recorder.start()
    info = session_info()
    await recorder.begin_session(info)
    run = await record_run(recorder, info, 1)
    await recorder.aclose()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    recorder = recorder_on(small_disk, tmp_path / "state")
    await recorder.start()
    assert "read-only" in recorder.problem
    assert await recorder.list_runs(info.id) == [run]
    assert (await recorder.verify(info.id)).valid
    with pytest.raises(RecordUnavailableError, match="read-only"):
        await recorder.begin_session(session_info())
    with pytest.raises(RecordUnavailableError, match="read-only"):
        await recorder.accept_run(accepted(info, 2), idempotency_key=None, request_hash=None)
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    await record_run(recorder, info, 2)
    assert recorder.problem is None
    await recorder.aclose()
