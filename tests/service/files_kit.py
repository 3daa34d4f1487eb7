"""A client of one session's files, for the tests of their routes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fakes import Api


class FilesClient:
    """An HTTP client whose paths begin at the session's files."""

    def __init__(self, client: httpx.AsyncClient, base: str) -> None:
        self._client, self._base = client, base

    def __getattr__(self, method: str) -> Any:
        return lambda path, **options: self._client.request(method.upper(), self._base + path, **options)


@asynccontextmanager
async def files_of(api: Api, session_id: str) -> AsyncIterator[FilesClient]:
    """The files of a session, as an admin."""
    headers = {"Authorization": f"Bearer {api.secrets['admin']}"}
    async with httpx.AsyncClient(headers=headers, trust_env=False) as client:
        yield FilesClient(client, f"{api.url}/v1/sessions/{session_id}/files")
