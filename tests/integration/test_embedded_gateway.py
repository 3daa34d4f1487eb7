"""The gateway that the service starts for itself: its life, its secrets, and that nothing survives it."""

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
from gateway_fixtures import descendants, embedded_gateway, wait_gone

from interpreter.errors import SettingsError
from interpreter.kernels.embedded import EmbeddedGateway
from interpreter.service import Service
from interpreter.settings import Settings

ENDLESS_C_LOOP = "sum(range(10**13))"
START_DAEMON = (
    "import subprocess\n"
    "child = subprocess.Popen(['sleep', '1000'], start_new_session=True, env={}); print('begun')"
)


async def test_a_session_works_in_its_own_workspace(tmp_path: Path) -> None:
    async with embedded_gateway(tmp_path) as (_, client):
        (tmp_path / "workspaces" / "ses_1").mkdir()
        async with client.kernel(path="ses_1", env={"KERNEL_SESSION_ID": "ses_1"}) as (_, channels):
            text = await channels.text("import os; print(os.getcwd(), os.environ['KERNEL_SESSION_ID'])")
    assert text == "/mnt/data ses_1\n"


async def test_a_long_state_dir_is_no_obstacle(tmp_path: Path) -> None:
    async with embedded_gateway(tmp_path / ("long" * 40)) as (_, client), client.kernel() as (_, channels):
        assert await channels.text("print(1)") == "1\n"


async def test_secrets_stay_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "interpreter")
    monkeypatch.setenv("INTERPRETER_TOKEN", "service-secret")
    async with embedded_gateway(tmp_path) as (gateway, client), client.kernel() as (_, channels):
        assert gateway.pid is not None
        processes = descendants(gateway.pid)
        assert len(processes) > 3, "supervisor, gateway, sandbox, kernel"
        for process in processes:
            seen = f"{process.cmdline()} {_environ(process.pid)}"
            assert gateway.token not in seen
            assert "service-secret" not in seen
        # An unprivileged process of the same user can't read the gateway's memory either.
        assert Path(f"/proc/{processes[1].pid}/environ").stat().st_uid == 0
        text = await channels.text("import os; print(dict(os.environ))")
        assert gateway.token not in text
    assert caplog.records
    assert gateway.token not in caplog.text
    assert all(record.levelno == logging.DEBUG for record in caplog.records)


async def test_a_gateway_that_dies_is_back_at_the_same_address_and_its_kernels_are_gone(
    tmp_path: Path,
) -> None:
    told = asyncio.Event()
    async with embedded_gateway(tmp_path, told.set) as (gateway, client):
        busy = await client.connect(await client.start_kernel())
        await busy.text("print(1)")
        await busy.begin(ENDLESS_C_LOOP)
        assert gateway.pid is not None
        processes = descendants(gateway.pid)
        processes[1].send_signal(signal.SIGKILL)
        await asyncio.wait_for(told.wait(), 60)
        assert gateway.problem is not None
        assert gateway.token not in gateway.problem
        assert await wait_gone(processes) == []
        await busy.drain()
        await _recovered(gateway)
        assert gateway.url == client.url
        assert (await client.ask("GET", "/api/kernels")).json == []
        async with client.kernel() as (_, channels):
            assert await channels.text("print(2)") == "2\n"


async def test_the_supervisors_death_takes_the_gateway_along(tmp_path: Path) -> None:
    told = asyncio.Event()
    async with embedded_gateway(tmp_path, told.set) as (gateway, client):
        await client.start_kernel()
        assert gateway.pid is not None
        processes = descendants(gateway.pid)
        processes[0].send_signal(signal.SIGKILL)
        await asyncio.wait_for(told.wait(), 60)
        assert await wait_gone(processes) == []
        await _recovered(gateway)
        assert (await client.ask("GET", "/api")).status == 200


async def test_aclose_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    async with embedded_gateway(tmp_path) as (gateway, client):
        opened = await client.connect(await client.start_kernel())
        await opened.text(START_DAEMON)
        await opened.begin(ENDLESS_C_LOOP)
        assert gateway.pid is not None
        processes = descendants(gateway.pid)
        assert _daemons(processes)
        runtime_dir = Path((tmp_path / "state/gateway/runtime_dir").read_text())
        assert runtime_dir.is_dir()
        await gateway.aclose()
        assert await wait_gone(processes, 0) == []
        await opened.drain()
    assert not runtime_dir.exists()
    assert gateway.problem is not None


async def test_nothing_survives_a_service_that_is_killed(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _SERVICE,
        str(tmp_path),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"begun\n"
    processes = descendants(process.pid)
    assert _daemons(processes)
    process.kill()
    await process.wait()
    runtime_dir = Path((tmp_path / "state/gateway/runtime_dir").read_text())
    assert await wait_gone(processes[1:]) == []
    assert not runtime_dir.exists()


async def test_what_a_killed_service_left_in_tmp_is_swept_at_the_next_start(tmp_path: Path) -> None:
    left = tmp_path / "ji-left"
    left.mkdir()
    note = tmp_path / "state" / "gateway" / "runtime_dir"
    note.parent.mkdir(parents=True)
    note.write_text(str(left))
    async with embedded_gateway(tmp_path):
        assert not left.exists()


async def test_any_environment_with_ipykernel_serves(tmp_path: Path) -> None:
    async with (
        embedded_gateway(tmp_path, kernel_env_dir=sys.prefix) as (_, client),
        client.kernel() as (_, channels),
    ):
        assert await channels.text("import sys; print(sys.prefix)") == f"{sys.prefix}\n"


async def test_an_environment_without_python_is_named_at_start(tmp_path: Path) -> None:
    gateway = EmbeddedGateway(
        Settings(kernel_env_dir=str(tmp_path / "none")),
        state_dir=tmp_path,
        workspace_root=tmp_path,
        on_exit=lambda: None,
    )
    with pytest.raises(SettingsError, match="kernel_env_dir"):
        await gateway.start()
    await gateway.aclose()


def _environ(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_text()
    except PermissionError:  # the gateway's, unless root asks
        return ""


def _daemons(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that `START_DAEMON` started: in a sandbox, yet below the gateway."""
    return [process for process in processes if process.cmdline() == ["sleep", "1000"]]


async def _recovered(gateway: EmbeddedGateway) -> None:
    async with asyncio.timeout(60):
        while gateway.problem is not None:
            await asyncio.sleep(0.02)


_SERVICE = f"""
import asyncio, sys
from pathlib import Path
from gateway_fixtures import embedded_gateway
async def main():
    async with embedded_gateway(Path(sys.argv[1])) as (gateway, client):
        opened = await client.connect(await client.start_kernel())
        begun = await opened.text({START_DAEMON!r})
        await opened.begin({ENDLESS_C_LOOP!r})
        print(begun.strip(), flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_a_kernel_name_that_is_not_there_stops_the_start_with_a_sentence(tmp_path: Path) -> None:
    folders = {"state_dir": str(tmp_path / "state"), "record_dir": str(tmp_path / "notebooks")}
    service = Service(Settings(kernel_name="nosuch", port=0, **folders))
    with pytest.raises(SettingsError, match=r"^The gateway has no kernelspec 'nosuch'; set kernel_name to"):
        await service.start()
