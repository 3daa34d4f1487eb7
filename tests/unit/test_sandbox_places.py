"""Folders, uids, control groups and workspaces of sandboxes, on a disk but without a sandbox."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from interpreter.gateway_extension.sandbox.cgroups import ControlGroup, Parents, find_parents, sweep_groups
from interpreter.gateway_extension.sandbox.folders import Instance, KernelFolder, sweep
from interpreter.gateway_extension.sandbox.limits import Limits
from interpreter.gateway_extension.sandbox.probe import ADVICE, GENERAL_ADVICE, advice, enforced_limits
from interpreter.gateway_extension.sandbox.removal import remove_tree
from interpreter.gateway_extension.sandbox.uids import NoUidLeftError, UidPool
from interpreter.gateway_extension.sandbox.workspace import WorkspaceError, check_workspace, measure


def prepared(tmp_path: Path) -> KernelFolder:
    folder = KernelFolder(tmp_path / "k")
    folder.prepare(os.geteuid())
    return folder


def test_sockets_are_published_when_all_are_there(tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as two:
        one.bind(str(folder.sockets / "k-1"))
        assert not folder.publish([1, 2], os.geteuid())
        two.bind(str(folder.sockets / "k:2"))  # as implementations other than libzmq's name it
        assert folder.publish([1, 2], os.geteuid())
    assert sorted(path.name for path in folder.published.iterdir()) == ["k-1", "k-2"]


@pytest.mark.parametrize("kind", ["link", "file", "fifo"])
def test_what_is_no_socket_is_never_published(tmp_path: Path, kind: str) -> None:
    folder = prepared(tmp_path)
    path = folder.sockets / "k-1"
    if kind == "link":
        path.symlink_to("/dev/null")
    elif kind == "file":
        path.write_text("x")
    else:
        os.mkfifo(path)
    with pytest.raises(ValueError, match="something else"):
        folder.publish([1], os.geteuid())
    assert list(folder.published.iterdir()) == []


def test_a_path_too_long_for_a_socket_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="runtime_dir is too long"):
        Instance(tmp_path / ("x" * 60)).kernel_folder()


def test_folders_of_dead_processes_are_swept_and_of_living_ones_not(tmp_path: Path) -> None:
    living = Instance(tmp_path)
    code = f"from interpreter.gateway_extension.sandbox.folders import Instance; import pathlib, os; print(Instance(pathlib.Path({str(tmp_path)!r})).name, flush=True); os._exit(0)"
    dead = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert (tmp_path / dead).exists()
    assert Instance(tmp_path).dead == [dead]
    assert not (tmp_path / dead).exists()
    assert living.path.exists()


def test_a_runtime_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(PermissionError, match="own user"):
        Instance(tmp_path / "link")


def test_uids_are_exclusive_until_released(tmp_path: Path) -> None:
    one, two = UidPool(tmp_path, 5000, 5001), UidPool(tmp_path, 5000, 5001)
    first, second = one.acquire(), two.acquire()
    assert {first.uid, second.uid} == {5000, 5001}
    assert two.find(first.uid) is None
    with pytest.raises(NoUidLeftError):
        one.acquire()
    first.release()
    first.release()
    assert two.acquire().uid == first.uid
    assert two.find(1) is None


def test_system_uids_are_no_range(tmp_path: Path) -> None:
    for first, last in ((0, 5000), (5000, 4000)):
        with pytest.raises(ValueError, match="uid_range"):
            UidPool(tmp_path, first, last)


def test_workspaces_lie_below_their_root_or_away_from_everything(tmp_path: Path) -> None:
    (tmp_path / "root/session").mkdir(parents=True)
    (tmp_path / "root/out").symlink_to("/usr")
    root, session = str(tmp_path / "root"), str(tmp_path / "root/session")
    assert check_workspace(session, root=root, runtime_dir="/run/x") == session
    assert check_workspace(session, root="", runtime_dir="/run/x") == session
    for path in (root, str(tmp_path), f"{root}/..", f"{root}/out", f"{root}/none"):
        with pytest.raises(WorkspaceError):
            check_workspace(path, root=root, runtime_dir="/run/x")
    for path in ("/", "/usr", "/etc", "/usr/share", sys.prefix, os.path.expanduser("~"), "/run"):
        with pytest.raises(WorkspaceError):
            check_workspace(path, root="", runtime_dir="/run/x")


def used(path: Path, **options: int) -> tuple[int, int, bool]:
    fd = os.open(path, os.O_RDONLY)
    try:
        usage = measure(fd, max_files=options.get("max_files", 1000))
    finally:
        os.close(fd)
    return usage.size, usage.files, usage.complete


def test_measuring_counts_links_once_and_follows_none(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(100_000))
    os.link(tmp_path / "a", tmp_path / "b")
    (tmp_path / "out").symlink_to("/usr")
    (tmp_path / "new\nline").write_text("x")
    size, files, complete = used(tmp_path)
    assert 100_000 <= size < 200_000
    assert (files, complete) == (4, True)


def test_measuring_gives_up_on_too_many_or_too_deep(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).write_text("")
    assert used(tmp_path, max_files=10)[2] is False
    deep = tmp_path / "d"
    for _ in range(70):
        deep.mkdir()
        deep = deep / "d"
    assert used(tmp_path)[2] is False


@pytest.mark.parametrize("mode", [0, 0o400, 0o100, 0o600])
@pytest.mark.parametrize("closed", ["closed", "."])
def test_measuring_opens_what_was_closed_to_hide(tmp_path: Path, closed: str, mode: int) -> None:
    """Of an ordinary user's gateway the kernel is the same user, who may close its folders to it."""
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed/file").write_bytes(bytes(50_000))
    fd = os.open(tmp_path, os.O_RDONLY)
    (tmp_path / closed).chmod(mode)
    try:
        assert measure(fd, max_files=100).size >= 50_000
    finally:
        os.close(fd)
        tmp_path.chmod(0o700)


def test_removing_opens_what_was_closed_and_follows_no_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    path = tmp_path / "tree"
    (path / "a/b/c").mkdir(parents=True)
    (path / "a/b/c/file").write_text("x")
    (path / "moved-0").mkdir()
    (path / "a/link").symlink_to(outside)
    os.mkfifo(path / "a/fifo")
    for folder, mode in (("a/b/c", 0), ("a/b", 0o500), ("a", 0), (".", 0)):
        (path / folder).chmod(mode)
    remove_tree(path)
    assert not path.exists()
    assert (outside / "kept").exists()
    remove_tree(path)


def test_removing_never_touches_what_is_above(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    tmp_path.chmod(0o755)
    remove_tree(tmp_path / "missing")
    remove_tree(tmp_path / "tree")
    assert tmp_path.stat().st_mode & 0o7777 == 0o755


def test_removing_a_link_removes_the_link(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    remove_tree(tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_removing_a_nest_deeper_than_any_path(tmp_path: Path) -> None:
    top = os.open(tmp_path, os.O_RDONLY)
    os.mkdir("tree", dir_fd=top)
    here = os.open("tree", os.O_RDONLY, dir_fd=top)
    for _ in range(5000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    os.close(top)
    remove_tree(tmp_path / "tree")
    assert list(tmp_path.iterdir()) == []


def fake_proc(tmp_path: Path, mounts: str, groups: str) -> Path:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/mountinfo").write_text(mounts)
    (tmp_path / "proc/cgroup").write_text(groups)
    return tmp_path / "proc"


def test_version_2_needs_a_delegated_group(tmp_path: Path) -> None:
    tree = tmp_path / "fs/service"
    (tree / "leaf").mkdir(parents=True)
    (tree / "cgroup.subtree_control").write_text("cpu memory pids\n")
    proc = fake_proc(tmp_path, f"31 23 0:28 / {tmp_path}/fs rw - cgroup2 cgroup2 rw\n", "0::/service/leaf\n")
    parents = find_parents(proc)
    assert (parents.version, set(parents.folders.values())) == (2, {tree})
    (tree / "cgroup.subtree_control").write_text("\n")
    assert find_parents(proc).version == 0


def test_version_1_uses_the_controllers_that_are_writable(tmp_path: Path) -> None:
    lines = ""
    for name in ("memory", "pids"):
        (tmp_path / "fs" / name).mkdir(parents=True)
        (tmp_path / "fs" / name / "cgroup.procs").write_text("")
        lines += f"31 23 0:28 / {tmp_path}/fs/{name} rw - cgroup cgroup rw,{name}\n"
    parents = find_parents(fake_proc(tmp_path, lines, "4:memory:/elsewhere\n8:pids:/\n"))
    assert (parents.version, parents.controllers) == (1, ("memory", "pids"))


def test_nowhere_to_make_groups_means_rlimits_and_watchdog(tmp_path: Path) -> None:
    parents = find_parents(fake_proc(tmp_path, "", ""))
    assert parents.version == 0
    enforced = enforced_limits(parents)
    assert enforced["memory_bytes"] == "rlimit per process + watchdog"
    assert enforced["cpu_quota"] == "not enforced"
    assert set(enforced) == set(Limits.__dataclass_fields__)


def test_groups_of_version_2_get_their_limits_and_tell_of_kills(tmp_path: Path) -> None:
    parents = Parents(2, dict.fromkeys(("memory", "pids", "cpu"), tmp_path))
    folder = tmp_path / "jks-abc-1"
    folder.mkdir()
    for name in (
        "memory.max",
        "memory.swap.max",
        "pids.max",
        "cpu.max",
        "cpu.weight",
        "cpu.stat",
        "memory.events",
    ):
        (folder / name).write_text("")
    group = ControlGroup(parents, "abc-1", Limits(memory_bytes=2**30, cpu_quota=1.5, max_processes=77))
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    assert texts["memory.max"] == str(2**30)
    assert texts["memory.swap.max"] == "0"
    assert texts["pids.max"] == "79"  # and bubblewrap's own two
    assert texts["cpu.max"] == "150000 100000"
    assert texts["cpu.weight"] == "100"
    assert group.oom_kills() == 0
    (folder / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    (folder / "cpu.stat").write_text("usage_usec 2500000\n")
    assert (group.oom_kills(), group.cpu_seconds()) == (2, 2.5)
    (folder / "cpu.stat").write_text("usage_usec 3500000\n")
    assert group.cpu_seconds() == 3.5
    assert group.procs_files == [str(folder / "cgroup.procs")]


@pytest.mark.parametrize(
    ("version", "name", "key"), [(1, "usage_in_bytes", "total_rss"), (2, "current", "anon")]
)
def test_what_processes_read_of_files_is_not_their_memory(
    tmp_path: Path, version: int, name: str, key: str
) -> None:
    group = ControlGroup(Parents(version, {"memory": tmp_path}), "abc-1", Limits())
    assert not group.holds_more_than(0)  # what can't be read counts for nothing
    whole, parts = tmp_path / f"jks-abc-1/memory.{name}", tmp_path / "jks-abc-1/memory.stat"
    whole.write_text("5000\n")
    parts.write_text(f"cache 3000\n{key} 2000\n{key}_huge 9000\n")
    assert group.holds_more_than(1999)
    assert not group.holds_more_than(2000)
    parts.write_text(f"cache 0\n{key} 5000\n")
    assert group.holds_more_than(2000)


def test_groups_of_dead_gateways_are_swept(tmp_path: Path) -> None:
    for name in ("jks-dead-1", "jks-live-1", "jks-old-1", "jks-busy-1"):
        (tmp_path / name).mkdir()
    (tmp_path / "jks-busy-1/process").touch()
    for name in ("jks-old-1", "jks-busy-1"):
        os.utime(tmp_path / name, (0, 0))
    sweep_groups(Parents(1, {"memory": tmp_path}), ["dead"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["jks-busy-1", "jks-live-1"]


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "systempaths=unconfined"),
        ("bwrap: setting up uid map: Permission denied", "apparmor_restrict_unprivileged_userns"),
        ("bwrap: No permissions to create a new namespace, likely because ...", "unprivileged_userns_clone"),
        ("launcher: unshare the mount namespace (needs CAP_SYS_ADMIN): ...", "ordinary user"),
    ],
)
def test_each_known_failure_has_its_advice(reason: str, word: str) -> None:
    assert word in advice(reason)
    assert len(ADVICE) >= 4


def test_an_unknown_failure_gets_the_general_advice() -> None:
    assert advice("something else") == GENERAL_ADVICE


def test_what_other_gateways_remove_during_a_sweep_stops_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first start of a gateway sweeps, while others end kernels, or end themselves."""
    (tmp_path / "jks-gone-1").symlink_to(tmp_path / "nowhere")  # listed, but not there when it is looked at
    sweep_groups(Parents(1, {"memory": tmp_path}), ["dead"])
    (tmp_path / "jks-gone-1").unlink()
    other = tmp_path / "other"
    other.mkdir()

    def is_dir(path: Path) -> bool:
        if path == other:
            path.rmdir()
        return True

    monkeypatch.setattr(Path, "is_dir", is_dir)
    assert sweep(tmp_path) == []
