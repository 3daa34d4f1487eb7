"""The sandbox's description becomes bubblewrap options, limits and variables (pure)."""

import resource
from pathlib import Path

import pytest

from interpreter.gateway_extension.sandbox.command import Bind, Box, Descriptors, box_files, bwrap_arguments
from interpreter.gateway_extension.sandbox.environment import kernel_environment, program_roots, system_binds
from interpreter.gateway_extension.sandbox.limits import Limits, size_text

FDS = Descriptors(status=10, block=11, seccomp=12, files={"/etc/passwd": 13})


def box(**changes: object) -> Box:
    values: dict[str, object] = {"argv": ["true"], "binds": [Bind("/usr", "/usr")], "env": {"A": "1"}}
    return Box(**(values | changes))  # type: ignore[arg-type]


def triples(arguments: list[str], option: str) -> list[tuple[str, str]]:
    return [(arguments[i + 1], arguments[i + 2]) for i, word in enumerate(arguments) if word == option]


def test_every_namespace_is_new_and_nothing_is_inherited() -> None:
    arguments = bwrap_arguments(box(), FDS)
    for kind in ("user", "pid", "net", "ipc", "uts"):
        assert f"--unshare-{kind}" in arguments
    for option in (
        "--unshare-cgroup-try",
        "--disable-userns",
        "--die-with-parent",
        "--new-session",
        "--clearenv",
    ):
        assert option in arguments
    assert arguments[arguments.index("--cap-drop") + 1] == "ALL"


def test_only_what_is_writable_is_bound_writable() -> None:
    binds = [Bind("/usr", "/usr"), Bind("/w", "/mnt/data", writable=True), Bind("/c", "/run/c.json")]
    arguments = bwrap_arguments(box(binds=binds), FDS)
    assert triples(arguments, "--bind") == [("/w", "/mnt/data")]
    assert ("/c", "/run/c.json") in triples(arguments, "--ro-bind")


def test_staged_sources_replace_the_hosts_paths() -> None:
    arguments = bwrap_arguments(box(), FDS, {"/usr": "/mnt/0"})
    assert ("/mnt/0", "/usr") in triples(arguments, "--ro-bind")
    assert ("/usr", "/usr") not in triples(arguments, "--ro-bind")


def test_kernel_parameters_are_read_only_and_devices_too() -> None:
    arguments = bwrap_arguments(box(masked=("/proc/keys",)), FDS)
    assert ("/proc/sys", "/proc/sys") in triples(arguments, "--ro-bind-try")
    assert ("/dev/null", "/proc/keys") in triples(arguments, "--ro-bind")
    read_only = [arguments[i + 1] for i, word in enumerate(arguments) if word == "--remount-ro"]
    assert read_only == ["/proc", "/dev", "/"]


def test_without_a_proc_there_is_an_empty_folder() -> None:
    arguments = bwrap_arguments(box(proc=False), FDS)
    assert "--proc" not in arguments
    assert arguments[arguments.index("/proc") - 1] == "--dir"


def test_what_lies_in_tmp_is_bound_after_the_private_tmp() -> None:
    arguments = bwrap_arguments(box(binds=[Bind("/usr", "/usr"), Bind("/tmp/x", "/tmp/x")]), FDS)
    assert arguments.index("/tmp/x") > arguments.index("/tmp")


def test_generated_files_name_no_user_of_the_host() -> None:
    assert box_files()["/etc/passwd"].startswith(b"user:x:1000:")
    assert b"root" not in box_files()["/etc/passwd"]


def test_only_kernel_variables_and_the_kernelspecs_own_pass() -> None:
    caller = {
        "KERNEL_ID": "k",
        "SERVICE_TOKEN": "s",
        "LC_ALL": "C",
        "OWN": "o",
        "JPY_PARENT_PID": "1",
        "PATH": "/x",
    }
    env = kernel_environment(caller, {"OWN": "${X}"}, program="/env/bin/python")
    assert env["KERNEL_ID"] == "k"
    assert env["OWN"] == "o"
    assert env["LC_ALL"] == "C"
    assert env["HOME"] == "/home/user"
    assert env["PATH"].startswith("/env/bin:")
    assert not {"SERVICE_TOKEN", "JPY_PARENT_PID"} & set(env)


def test_a_proxy_is_named_for_every_spelling_and_nothing_goes_around_it() -> None:
    env = kernel_environment(
        {"no_proxy": "*"}, {"no_proxy": ""}, program="python", proxy="http://127.0.0.1:1"
    )
    assert {env[name] for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")} == {
        "http://127.0.0.1:1"
    }
    assert env["no_proxy"] == env["NO_PROXY"] == ""


def test_the_environment_of_a_program_is_each_prefix_on_the_way_to_the_interpreter(tmp_path: Path) -> None:
    base, middle, env = tmp_path / "base", tmp_path / "middle", tmp_path / "env"
    for folder in (base, env):
        (folder / "bin").mkdir(parents=True)
    (base / "bin/python3").write_text("")
    middle.symlink_to(base)
    (env / "bin/python").symlink_to(middle / "bin/python3")
    (env / "pyvenv.cfg").write_text(f"home = {middle}/bin\n")
    binds = {bind.dest: bind.source for bind in program_roots(str(env / "bin/python"))}
    assert binds == {str(env): str(env), str(middle): str(base), str(base): str(base)}


def test_a_system_program_needs_no_bind_and_no_wide_folder_is_ever_bound() -> None:
    assert program_roots("/usr/bin/env") == []
    assert program_roots("/bin/sh") == []
    assert program_roots("/opt/tool") == []
    assert {bind.dest for bind in system_binds()[0]} & {"/", "/etc", "/root", "/home", "/var"} == set()
    assert "/etc/shadow" not in {bind.dest for bind in system_binds()[0]}


def test_bounds_cut_and_an_unlimited_value_becomes_the_bound() -> None:
    limits = Limits(memory_bytes=8 * 2**30, cpu_seconds=0).bounded({"memory_bytes": 2**30, "cpu_seconds": 60})
    assert (limits.memory_bytes, limits.cpu_seconds) == (2**30, 60)


@pytest.mark.parametrize(
    "wish",
    [
        '{"memory_bytes": -1}',
        '{"memory_bytes": "x"}',
        '{"x": 1}',
        "[]",
        "{",
        '{"memory_bytes": 1}',
        '{"cpu_share": true}',
        '{"max_processes": NaN}',
    ],
)
def test_a_session_can_not_wish_its_limits_away(wish: str) -> None:
    try:
        limits = Limits().requested(wish)
    except ValueError:
        return
    assert limits == Limits()


def test_a_clean_memory_error_comes_before_the_wall() -> None:
    pairs = dict(Limits(memory_bytes=2**30).rlimits(own_uid=False))
    assert 0.9 * 2**30 < pairs[resource.RLIMIT_DATA] < 2**30
    assert pairs[resource.RLIMIT_CORE] == 1
    assert resource.RLIMIT_NPROC not in pairs


def test_sizes_are_for_people() -> None:
    assert [size_text(n) for n in (512 * 2**20, 3 * 2**30 // 2, 1000)] == ["512 MiB", "1.5 GiB", "1000 bytes"]


def test_the_filter_is_made_by_libseccomp_and_has_the_size_of_one() -> None:
    from interpreter.gateway_extension.sandbox.seccomp import seccomp_filter

    assert len(seccomp_filter()) % 8 == 0
    assert len(seccomp_filter()) > 800
