"""What tests of files and of the record start from; `api` is each test file's own, where it sets its limits."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakes import Api
from files_kit import FilesClient, files_of
from recordkit import recording

from interpreter.record import Recorder


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    api = await Api.start(tmp_path)
    yield api
    await api.aclose()


@pytest.fixture
async def session_id(api: Api) -> str:
    return await api.make_session()


@pytest.fixture
def folder(tmp_path: Path, session_id: str) -> Path:
    """The session's workspace."""
    return tmp_path / "workspaces" / session_id


@pytest.fixture
async def client(api: Api, session_id: str) -> AsyncIterator[FilesClient]:
    """Of the session's files."""
    async with files_of(api, session_id) as client:
        yield client


@pytest.fixture
async def recorder(tmp_path: Path) -> AsyncIterator[Recorder]:
    async with recording(tmp_path / "record") as opened:
        yield opened


@pytest.fixture
async def recorded_api(tmp_path: Path, recorder: Recorder) -> AsyncIterator[Api]:
    """The API in front of the recorder."""
    api = await Api.start(tmp_path, recorder=recorder)
    yield api
    await api.aclose()
