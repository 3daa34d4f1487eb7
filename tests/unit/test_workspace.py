"""The folders of sessions: what is seen, what is changed, and that nothing leads out of them."""

import os
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from interpreter.errors import InterpreterError, InvalidRequestError, NotFoundError, TooLargeError
from interpreter.models import new_id
from interpreter.workspace import (
    UNKNOWN,
    Snapshot,
    Workspaces,
    changes,
    file_url,
    folder,
    mime_type_of,
    parse_path,
    unlisted,
)


@dataclass(frozen=True)
class Owner:
    id: str


@pytest.fixture
def workspaces(tmp_path: Path) -> Workspaces:
    made = Workspaces(tmp_path / "workspaces", max_file_bytes=1000, max_workspace_bytes=2500)
    made.prepare()
    return made


@pytest.fixture
def session() -> Owner:
    return Owner(new_id())


@pytest.fixture
def here(workspaces: Workspaces, session: Owner) -> Path:
    return workspaces.create(session.id)


@pytest.fixture
def root(here: Path) -> Iterator[int]:
    descriptor = folder.open_root(str(here))
    yield descriptor
    os.close(descriptor)


async def upload(workspaces: Workspaces, session: Owner, path: str, content: bytes) -> None:
    one = await workspaces.begin_upload(session)
    try:
        await one.write(content)
        await one.commit(path)
    finally:
        one.discard()


# -- paths --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["a", "a/b/c", ".env", "...", "a..b", "ü/世界", "a b", "-rf", "a\nb", "~", "C:x"]
)
def test_paths_below_are_taken_as_they_are(path: str) -> None:
    assert "/".join(parse_path(path)) == path


@pytest.mark.parametrize(
    "path",
    [
        *(
            "",
            "/",
            "/a",
            "a/",
            "a//b",
            ".",
            "..",
            "./a",
            "a/..",
            "../a",
            "a/../../b",
            "a\\b",
            "a\0b",
            "\ud800",
        ),
        *("a" * 256, "é" * 128, "/".join(["a" * 200] * 6), "/".join("a" * 65)),
    ],
)
def test_paths_that_could_be_anything_else_are_refused(path: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse_path(path)
    assert raised.value.param == "path"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("a.csv", "text/csv"), ("a.JSON", "application/json"), ("plot.png", "image/png"), ("x", "application/octet-stream"),
        ("a.tar.gz", "application/gzip"), ("a.md", "text/markdown"), ("a.ipynb", "application/x-ipynb+json"),
        ("a.pdf", "application/pdf"), ("data:text/html,x", "application/octet-stream"), ("d.csv/x", "application/octet-stream"),
    ],
)  # fmt: skip
def test_names_tell_the_type(path: str, kind: str) -> None:
    assert mime_type_of(path) == kind


def test_urls_are_quoted() -> None:
    assert file_url("s", "a b/é?.txt") == "/v1/sessions/s/files/a%20b/%C3%A9%3F.txt"


# -- snapshots ----------------------------------------------------------------------------------


def test_changes_between_two_snapshots(workspaces: Workspaces, session: Owner, here: Path) -> None:
    for name in ("kept", "gone", "grown", "replaced"):
        (here / name).write_text("x")
    before = workspaces.snapshot(session.id)
    (here / "gone").unlink()
    (here / "grown").write_text("xx")
    (here / "new").write_text("y")
    os.replace(here / "new", here / "replaced")
    (here / "d").mkdir()
    (here / "d" / "made.csv").write_text("a,b")
    found = changes(session.id, before, workspaces.snapshot(session.id))
    assert [(f.path, f.change, f.size) for f in found] == [
        ("d/made.csv", "created", 3), ("gone", "deleted", 0), ("grown", "modified", 2), ("replaced", "modified", 1),
    ]  # fmt: skip
    assert found[0].mime_type == "text/csv"


async def test_uploads_between_runs_are_no_changes(
    workspaces: Workspaces, session: Owner, here: Path
) -> None:
    del here
    await upload(workspaces, session, "a", b"x")
    before = workspaces.snapshot(session.id)
    assert changes(session.id, before, workspaces.snapshot(session.id)) == ()
    assert list(before.files) == ["a"]


def test_what_is_no_result_is_not_seen(workspaces: Workspaces, session: Owner, here: Path) -> None:
    for name in (".cache", "__pycache__", "node_modules", "seen"):
        (here / name).mkdir()
        (here / name / "x").write_text("x")
    (here / ".env").write_text("x")
    (here / "link").symlink_to("seen/x")
    (here / "dirlink").symlink_to("seen")
    (here / "back\\slash").write_text("x")
    (here / os.fsdecode(b"\xff")).write_text("x")
    (here / "new\nline").write_text("x")
    os.mkfifo(here / "pipe")
    assert sorted(workspaces.snapshot(session.id).files) == [".env", "new\nline", "seen/x"]


@pytest.mark.parametrize("names", [["back\\slash"], [os.fsdecode(b"\xff"), "\\", "ok"]], ids=["one", "two"])
def test_new_files_that_no_path_can_name_are_told_once(
    workspaces: Workspaces, session: Owner, here: Path, names: list[str]
) -> None:
    before = workspaces.snapshot(session.id)
    for name in names:
        (here / name).write_text("x")
    after = workspaces.snapshot(session.id)
    [told] = unlisted(before, after)
    assert told.startswith("1 new file" if len(names) == 1 else "2 new files")
    assert unlisted(after, workspaces.snapshot(session.id)) == ()
    assert unlisted(UNKNOWN, after) == ()


def test_folders_that_are_gone_or_closed_are_empty(workspaces: Workspaces, session: Owner) -> None:
    assert workspaces.snapshot(session.id) == Snapshot()


def test_too_many_files_give_no_false_changes(
    workspaces: Workspaces, session: Owner, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interpreter.workspace.local.MAX_SCANNED_FILES", 20)
    for n in range(40):
        (here / f"f{n}").write_text("x")
    before = workspaces.snapshot(session.id)
    assert (len(before.files), before.complete) == (20, False)
    for name in list(before.files)[:10]:
        (here / name).unlink()
    after = workspaces.snapshot(session.id)
    assert set(after.files) - set(before.files), "the others came into sight"
    assert changes(session.id, before, after) == ()


def test_deep_and_wide_trees_are_seen_in_part(workspaces: Workspaces, session: Owner, here: Path) -> None:
    make_deep(here, 600)
    (here / "top").write_text("x")
    found = workspaces.snapshot(session.id)
    assert list(found.files) == ["top"]
    assert not found.complete
    workspaces.remove(session.id)  # too deep for others


def make_deep(folder: Path, depth: int) -> None:
    """Folders in folders, deeper than any path may be long."""
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("deep-folder", dir_fd=descriptor)
        inner = os.open("deep-folder", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
    os.close(descriptor)


# -- removal ------------------------------------------------------------------------------------


def test_removing_takes_all_and_follows_nothing(workspaces: Workspaces, session: Owner, here: Path) -> None:
    outside = workspaces.root.parent / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    (here / "dir").symlink_to(outside)
    (here / "file").symlink_to(outside / "precious")
    os.mkfifo(here / "pipe")
    for n in range(300):
        (here / f"d{n % 7}" / f"e{n}").mkdir(parents=True)
        (here / f"d{n % 7}" / f"e{n}" / "x").write_text("x")
    make_deep(here, 600)
    workspaces.remove(session.id)
    assert not here.exists()
    assert os.listdir(workspaces.root / ".removed") == []
    assert (outside / "precious").read_text() == "x"
    workspaces.remove(session.id)


def test_removing_opens_what_was_closed(workspaces: Workspaces, session: Owner, here: Path) -> None:
    (here / "a" / "b").mkdir(parents=True)
    (here / "a" / "b" / "x").write_text("x")
    (here / "a" / "b").chmod(0)
    (here / "a").chmod(0)
    here.chmod(0)
    workspaces.remove(session.id)
    assert os.listdir(workspaces.root / ".removed") == []


def test_what_an_earlier_process_left_is_deleted_at_the_start(workspaces: Workspaces, session: Owner) -> None:
    kept = workspaces.create(session.id)
    (workspaces.root / ".uploads" / "half").write_text("x")
    (workspaces.root / ".removed" / "old" / "x").mkdir(parents=True)
    Workspaces(workspaces.root).prepare()
    assert os.listdir(workspaces.root / ".uploads") == []
    assert not (workspaces.root / ".removed").exists()
    assert kept.is_dir()


# -- files --------------------------------------------------------------------------------------


async def test_open_files_are_those_that_were_opened(
    workspaces: Workspaces, session: Owner, here: Path
) -> None:
    (here / "a").write_bytes(b"old content")
    file = await workspaces.files(session).open("a")
    await upload(workspaces, session, "a", b"new")
    assert await file.read(4, 100) == b"content"
    assert await file.read(11, 1) == b""
    await file.aclose()
    assert (here / "a").read_bytes() == b"new"


async def test_uploads_belong_to_the_owner_of_their_folder(
    workspaces: Workspaces, session: Owner, here: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(here, 1234, 5678)
    await upload(workspaces, session, "d/e/a", b"x")
    for path in ("d", "d/e", "d/e/a"):
        status = (here / path).stat()
        assert (status.st_uid, status.st_gid) == (1234, 5678)
    assert stat.S_IMODE((here / "d/e/a").stat().st_mode) == 0o644


async def test_an_upload_that_is_thrown_away_leaves_nothing(
    workspaces: Workspaces, session: Owner, here: Path
) -> None:
    one = await workspaces.begin_upload(session)
    await one.write(b"x" * 500)
    one.discard()
    one.discard()
    assert os.listdir(here) == os.listdir(workspaces.root / ".uploads") == []
    for _ in range(10):  # its bytes don't count any more
        other = await workspaces.begin_upload(session)
        await other.write(b"x" * 900)
        other.discard()


async def test_files_that_go_while_uploads_are_open_make_room(
    workspaces: Workspaces, session: Owner, here: Path
) -> None:
    (here / "old").write_bytes(b"x" * 2000)
    first, second = [await workspaces.begin_upload(session) for _ in range(2)]
    await first.write(b"x" * 500)
    with pytest.raises(TooLargeError):
        await second.write(b"x")
    second.discard()
    (here / "old").unlink()
    await first.write(b"x" * 500)
    await first.commit("new")
    assert os.listdir(here) == ["new"]


async def test_many_uploads_of_one_body_look_at_the_files_once(
    workspaces: Workspaces, session: Owner, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    used_bytes = folder.used_bytes
    monkeypatch.setattr(
        folder, "used_bytes", lambda root, **options: looks.append(root) or used_bytes(root, **options)
    )
    uploads = [await workspaces.begin_upload(session) for _ in range(10)]
    for number, one in enumerate(uploads):
        await one.commit(str(number))
    assert len(looks) == 1


@pytest.mark.parametrize("path", ["/".join("d" * 63), "d"])
async def test_files_that_can_not_be_counted_leave_no_room(
    workspaces: Workspaces, session: Owner, here: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr("interpreter.workspace.local.MAX_SUMMED", 100)
    (here / path).mkdir(parents=True)
    (here / path / "many").write_bytes(b"x" * 2000)
    with pytest.raises(TooLargeError):
        await upload(workspaces, session, "more", b"x" * 600)
    for number in range(100):
        (here / str(number)).touch()
    with pytest.raises(TooLargeError, match="too many"):
        await upload(workspaces, session, "more", b"x")


async def test_uploads_to_a_session_that_ended_leave_nothing(
    workspaces: Workspaces, session: Owner, here: Path
) -> None:
    one = await workspaces.begin_upload(session)
    await one.write(b"x")
    workspaces.remove(session.id)
    with pytest.raises(NotFoundError):
        await one.commit("a/b")
    assert not here.exists()
    assert os.listdir(workspaces.root / ".uploads") == []


async def test_sparse_files_count_with_what_they_take(
    workspaces: Workspaces, session: Owner, here: Path
) -> None:
    with (here / "sparse").open("wb") as file:
        file.truncate(10**12)
    await upload(workspaces, session, "a", b"x" * 900)
    with pytest.raises(TooLargeError):
        await upload(workspaces, session, "b", b"x" * 1001)


async def test_pages_are_right_however_many_files_there_are(
    workspaces: Workspaces, session: Owner, here: Path
) -> None:
    names = sorted(f"d{n % 3}/f{n:03}" for n in range(200))
    for name in names:
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).touch()
    files, seen, after, more = workspaces.files(session), [], None, True
    while more:
        page = await files.list(limit=33, after=after)
        seen += [info.path for info in page.files]
        after, more = seen[-1], page.has_more
    assert seen == names


# -- races --------------------------------------------------------------------------------------


def swap_for_ever(here: Path, secret: Path, stop: threading.Event) -> None:
    """What hostile code does: ``d`` is a folder, a link that leads out, a pipe, and a folder again."""
    good, bad = here / "good", here / "bad"
    good.mkdir()
    (good / "f").write_text("mine")
    bad.symlink_to(secret.parent)
    while not stop.is_set():
        for other in (good, bad):
            try:
                os.rename(other, here / "d")
                os.rename(here / "d", other)
            except OSError:  # an upload made the folder anew
                os.rename(here / "d", here / f"old{len(os.listdir(here))}")


@pytest.fixture
def swapping(here: Path, tmp_path: Path) -> Iterator[Path]:
    secret = tmp_path / "elsewhere" / "f"
    secret.parent.mkdir()
    secret.write_text("secret")
    stop = threading.Event()
    thread = threading.Thread(target=swap_for_ever, args=(here, secret, stop))
    thread.start()
    yield secret
    stop.set()
    thread.join()
    assert secret.read_text() == "secret"
    assert os.listdir(secret.parent) == ["f"]


def read(root: int) -> str:
    descriptor = folder.open_file(root, ["d", "f"])
    with os.fdopen(descriptor) as file:
        return file.read()


def write(root: int, source: Path) -> None:
    source.write_text("upload")
    folder.place(root, ["d", "f"], str(source))


@pytest.mark.parametrize("step", ["read", "write", "delete", "scan", "page", "used"])
def test_folders_that_are_swapped_for_links_do_not_lead_out(
    root: int, swapping: Path, tmp_path: Path, step: str
) -> None:
    work: dict[str, Callable[[], object]] = {
        "read": lambda: read(root),
        "write": lambda: write(root, tmp_path / "source"),
        "delete": lambda: folder.delete(root, ["d", "f"]),
        "scan": lambda: folder.scan(root, 100),
        "page": lambda: folder.page(root, limit=10, after=None, descending=False, max_entries=100),
        "used": lambda: folder.used_bytes(root, max_entries=100),
    }
    for _ in range(300):
        try:
            found = work[step]()
        except OSError:
            continue
        assert "secret" not in str(found)
        assert found != len("secret")


async def test_errors_tell_no_paths(workspaces: Workspaces, session: Owner, here: Path) -> None:
    (here / "d").mkdir()
    files = workspaces.files(session)
    for path in ("none", "d", "d/none"):
        with pytest.raises(InterpreterError) as raised:
            await files.open(path)
        assert str(here) not in raised.value.message
        assert raised.value.message.endswith(".")
