"""What the service makes of the sandbox's probe, and what sessions may ask for."""

from dataclasses import fields
from pathlib import Path

import pytest

from interpreter.errors import InvalidRequestError, SettingsError
from interpreter.gateway_extension.sandbox import BubblewrapProvisioner, Probe
from interpreter.gateway_extension.sandbox.limits import SMALLEST, Limits
from interpreter.kernels import isolation
from interpreter.kernels.isolation import EXTERNAL, Isolation, find_isolation, isolation_of
from interpreter.settings import Settings, validate

WORKS = Probe(True, None, None, True, True, {"memory_bytes": "rlimit", "cpu_quota": "not enforced"})
FAILS = Probe(False, "No permissions to create a new namespace", "Allow user namespaces", True, True, {})
NO_PROC = Probe(True, "kernels run without /proc", "Unmask it", False, True, {"memory_bytes": "rlimit"})

BOXED, BARE = Isolation(True), Isolation(False)


def test_a_machine_where_it_works_says_what_enforces_each_limit() -> None:
    found = isolation_of(WORKS)
    assert found.sandboxed is True
    assert (
        found.sentence
        == "Kernels run in a sandbox. Limits: memory_bytes by rlimit; cpu_quota by not enforced."
    )


def test_what_works_with_a_drawback_says_so() -> None:
    assert isolation_of(NO_PROC).sentence.endswith("Kernels run without /proc. Unmask it.")


def test_a_machine_where_it_fails_says_why_and_what_to_do() -> None:
    assert isolation_of(FAILS).sentence == (
        "Kernels run without a sandbox: No permissions to create a new namespace. Allow user namespaces."
    )


async def test_without_a_sandbox_the_service_starts_on_loopback_or_when_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(isolation, "probe", lambda _: FAILS)
    assert (await find_isolation(Settings(), is_local=True)).sandboxed is False
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    told = Settings(ip="0.0.0.0", allow_unsandboxed=True)
    assert (await find_isolation(told, is_local=False)).sandboxed is False
    with pytest.raises(SettingsError, match=r"No permissions.*Allow user.*allow_unsandboxed"):
        await find_isolation(Settings(ip="0.0.0.0"), is_local=False)


async def test_an_external_gateway_is_not_spoken_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "probe", lambda _: pytest.fail("its machine is another"))
    found = await find_isolation(Settings(gateway_url="http://gw"), is_local=False)
    ready, detail = await found.check()
    assert (found.sandboxed, ready) == (None, True)
    assert detail.startswith("Unknown")


async def test_a_quota_that_nothing_enforces_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(isolation, "probe", lambda _: WORKS)
    await find_isolation(Settings(kernel_cpus=1.5), is_local=True)
    assert "kernel_cpus can't be enforced" in caplog.text


async def test_a_host_that_is_none_stops_the_start() -> None:
    with pytest.raises(SettingsError, match="kernel_allowed_hosts"):
        await find_isolation(Settings(kernel_allowed_hosts="pypi.org, not a host"), is_local=True)


@pytest.mark.parametrize(
    ("found", "asked", "chosen"),
    [
        (BOXED, None, "none"),
        (BOXED, "allowlist", "allowlist"),
        (EXTERNAL, None, None),
        (EXTERNAL, "none", "none"),
        (BARE, None, None),
    ],
)
def test_network_of_a_session(found: Isolation, asked: str | None, chosen: str | None) -> None:
    assert found.choose_network(asked, Settings()) == chosen


@pytest.mark.parametrize(
    ("found", "asked", "code"),
    [
        (BOXED, "full", "network_not_allowed"),
        (EXTERNAL, "full", "network_not_allowed"),
        (BARE, "none", "network_not_enforced"),
    ],
)
def test_a_network_that_is_refused(found: Isolation, asked: str, code: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        found.choose_network(asked, Settings())
    assert (refused.value.param, refused.value.code) == ("network", code)


def test_what_is_given_unasked_may_be_asked_for() -> None:
    settings = Settings(kernel_network="full", kernel_allowed_networks="none")
    assert BOXED.choose_network("full", settings) == "full"
    assert BARE.choose_network("full", settings) == "full"


def test_the_provisioner_knows_every_option() -> None:
    settings = Settings(
        kernel_allowed_hosts="pypi.org, files.pythonhosted.org", kernel_memory_bytes=256 * 1024**2
    )
    options = isolation.provisioner_options(settings, workspace_root=Path("/w"), runtime_dir=Path("/r"))
    assert set(options) <= set(BubblewrapProvisioner.class_traits(config=True))
    assert options["allowed_hosts"] == ["pypi.org", "files.pythonhosted.org"]
    assert options["allowed_networks"] == ["none", "allowlist"]
    made = BubblewrapProvisioner(**options)
    assert made.find_limits({}).memory_bytes == 256 * 1024**2
    assert made.find_limits({}).tmp_bytes == 256 * 1024**2


def test_each_limit_has_a_setting_and_no_kernelspec_gets_above_it(tmp_path: Path) -> None:
    settings = Settings(
        max_workspace_files=7,
        kernel_tmp_bytes=2 * 1024**2,
        kernel_shm_bytes=3 * 1024**2,
        kernel_cpu_seconds=60.0,
        kernel_wall_seconds=90.0,
        kernel_uid_range=" 300000 - 300999",
        kernel_read_only_paths=f"{tmp_path}, /srv/data",
        fork_server=True,
        fork_server_imports="numpy, json",
    )
    options = isolation.provisioner_options(settings, workspace_root=Path("/w"), runtime_dir=Path("/r"))
    assert set(options["max_limits"]) == {field.name for field in fields(Limits)} - {"cpu_share"}
    made = BubblewrapProvisioner(**options)
    limits = made.find_limits({"KERNEL_LIMITS": '{"wall_seconds": 0, "tmp_bytes": 9999999999}'})
    assert (limits.max_workspace_files, limits.tmp_bytes, limits.shm_bytes) == (7, 2 * 1024**2, 3 * 1024**2)
    assert (limits.cpu_seconds, limits.wall_seconds) == (60.0, 90.0)
    assert made.uid_range == [300000, 300999]
    assert made.read_only_paths == [str(tmp_path), "/srv/data"]
    assert (made.fork_server, made.fork_server_imports) == (True, ["numpy", "json"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kernel_uid_range", "0-1000"),
        ("kernel_uid_range", "5000-4000"),
        ("kernel_uid_range", "5000"),
        ("kernel_read_only_paths", "data"),
        ("fork_server_imports", "numpy, -c"),
        ("kernel_cpu_seconds", 0.5),
        ("kernel_tmp_bytes", 10),
        ("max_workspace_files", 0),
    ],
)
def test_values_that_can_not_work_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=name):
        validate(Settings(**{name: value}))


@pytest.mark.parametrize("path", ["nowhere", "state", "state/inner", "", "/", "/mnt", "/tmp"])
async def test_no_folder_is_shown_that_is_missing_or_must_not_be(tmp_path: Path, path: str) -> None:
    (tmp_path / "state/inner").mkdir(parents=True)
    settings = Settings(state_dir=str(tmp_path / "state"), kernel_read_only_paths=str(tmp_path / path))
    with pytest.raises(SettingsError, match="kernel_read_only_paths"):
        await find_isolation(settings, is_local=True)


@pytest.mark.parametrize("limit", SMALLEST)
def test_a_limit_that_no_kernel_could_start_with_is_refused(limit: str) -> None:
    setting = f"kernel_{limit}"
    validate(Settings(**{setting: SMALLEST[limit]}))
    with pytest.raises(SettingsError, match=f"{setting} must be at least {SMALLEST[limit]}"):
        validate(Settings(**{setting: SMALLEST[limit] - 1}))


def test_a_network_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SettingsError, match="kernel_allowed_networks: 'some'"):
        validate(Settings(kernel_allowed_networks="none, some"))
