"""The record for readers: list and search, the notebook as a file or a page, its verification."""

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

from interpreter.api.accept import weight
from interpreter.api.base import BaseHandler
from interpreter.api.notebook_page import render_page
from interpreter.api.operations import Answer, Operation, json_answer
from interpreter.api.paging import page_of
from interpreter.api.query import read_time
from interpreter.api.streaming import send_file
from interpreter.errors import ConflictError, NotFoundError, UnavailableError
from interpreter.models import JSON

if TYPE_CHECKING:
    from interpreter.record import SessionRecord

_TAG = "Record"
NOTEBOOK_TYPE = "application/x-ipynb+json"
_PAGE_POLICY = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' "
    "'unsafe-eval'; img-src data:; font-src data:; media-src data:; frame-ancestors 'none'"
)
"""Outputs may hold any script. It runs without this service's origin (so without its cookie) and
without a network; charts that bring their own code still draw."""


class RecordHandler(BaseHandler):
    """What handlers share that read one session's record."""

    async def find_record(self, session_id: str) -> "SessionRecord":
        """The record if there is one that the token may read; NotFoundError otherwise."""
        record = await self.services.recorder.find_session(self.session_id_of(session_id))
        if record is None or not self.principal.reads(record.info.owner_id):
            raise _not_found()
        return record


class NotebooksHandler(BaseHandler):
    """``/v1/notebooks``"""

    operations: ClassVar = {
        "GET": Operation(
            "listNotebooks",
            "List and search the record",
            _TAG,
            {200: json_answer("The notebooks that the token may read.", "NotebookList")},
            description="One notebook per session, newest first. `run` tokens see their own, others all.",
            query="NotebooksQuery",
        )
    }

    async def do_get(self) -> None:
        query = self.read_query()
        wanted = _filter(query)
        found = set(await self.services.recorder.search(query["q"])) if "q" in query else None
        records = [
            record
            for record in await self.services.recorder.list_sessions()
            if self.principal.reads(record.info.owner_id)
            and (found is None or record.info.id in found)
            and wanted(record)
        ]
        self.reply(page_of(records, query, id_of=lambda r: r.info.id, show=_show))


class NotebookHandler(RecordHandler):
    """``/v1/notebooks/{session_id}``"""

    operations: ClassVar = {
        "GET": Operation(
            "getNotebook",
            "Read a session's notebook",
            _TAG,
            {
                200: Answer(
                    "The notebook; a page with `Accept: text/html`.",
                    {NOTEBOOK_TYPE: "NotebookFile", "text/html": None},
                )
            },
            query="NotebookQuery",
            page=True,
        )
    }

    async def do_get(self, session_id: str) -> None:
        record = await self.find_record(session_id)
        download = "download" in self.read_query()
        self.add_header("Vary", "Accept")
        with await self._notebook(record) as notebook:
            size = notebook.seek(0, os.SEEK_END)
            notebook.seek(0)
            if self.wants_page():
                page = await asyncio.to_thread(
                    render_page, notebook, size, record.info.id, f"/v1/notebooks/{record.info.id}?download=1"
                )
                self.set_header("Content-Type", "text/html; charset=utf-8")
                self.set_header("Content-Security-Policy", _PAGE_POLICY)
                self.finish(page)
                return
            self.set_header("Content-Type", NOTEBOOK_TYPE)
            how = "attachment" if download else "inline"
            self.set_header("Content-Disposition", f'{how}; filename="{record.info.id}.ipynb"')
            await send_file(self, notebook, size)

    def wants_page(self) -> bool:
        """A browser's weights decide; what names both alike gets the page, unless it is for download."""
        if self.get_query_argument("download", ""):
            return False
        header = self.request.headers.get("Accept", "")
        page = weight(header, "text/html")
        other = max(weight(header, NOTEBOOK_TYPE), weight(header, "application/json"))
        return self.accepts_html() and page >= other

    async def _notebook(self, record: "SessionRecord") -> BinaryIO:
        """The notebook as a file; ConflictError when the journal is damaged, NotFoundError when it is gone."""
        session_id = record.info.id
        try:
            notebook = await self.services.recorder.open_notebook(session_id)
            if notebook is None and await asyncio.to_thread(record.path.exists):
                raise _damaged(session_id)
        except FileNotFoundError:
            notebook = None
        except OSError as error:
            raise UnavailableError("The record can't be read now; try again later.") from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            # What a damaged line holds may be anything.
            raise _damaged(session_id) from error
        if notebook is None:
            raise _not_found()
        return notebook


class VerifyHandler(RecordHandler):
    """``/v1/notebooks/{session_id}/verify``"""

    operations: ClassVar = {
        "GET": Operation(
            "verifyNotebook",
            "Verify a session's record",
            _TAG,
            {200: json_answer("Whether the record is whole and unchanged.", "Verification")},
        )
    }

    async def do_get(self, session_id: str) -> None:
        if not self.principal.may_review:  # reviewers are told, too, of a record that is not there any more
            await self.find_record(session_id)
        result = await self.services.recorder.verify(self.session_id_of(session_id))
        if result is None:
            raise _not_found()
        self.reply({"valid": result.valid, "runs": result.runs, "problems": list(result.problems)})


def _show(record: "SessionRecord") -> JSON:
    return {"id": record.info.id, **record.as_json()}


def _filter(query: Mapping[str, Any]) -> "Callable[[SessionRecord], bool]":
    since = read_time(query["since"], "since") if "since" in query else None
    until = read_time(query["until"], "until") if "until" in query else None

    def wanted(record: "SessionRecord") -> bool:
        info = record.info
        return (
            query.get("session_id", info.id) == info.id
            and query.get("kernel_name", info.kernel_name) == info.kernel_name
            and ("status" not in query or query["status"] in record.statuses)
            and (since is None or record.last_activity_at >= since)
            and (until is None or info.created_at <= until)
        )

    return wanted


def _damaged(session_id: str) -> ConflictError:
    return ConflictError(
        f"The record of this session is damaged; GET /v1/notebooks/{session_id}/verify says where.",
        code="record_damaged",
    )


def _not_found() -> NotFoundError:
    return NotFoundError("There is no such notebook; list yours with GET /v1/notebooks.")
