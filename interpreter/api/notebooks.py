"""The record for readers: list and search, the notebook as a file or a page, its verification."""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar
from urllib.parse import urlencode

from interpreter.api.browsers import PageOrJSON
from interpreter.api.notebook_page import read_page, when
from interpreter.api.operations import Answer, Operation
from interpreter.api.paging import page_of
from interpreter.api.query import read_time
from interpreter.api.streaming import send_file
from interpreter.errors import ConflictError, NotFoundError, UnavailableError
from interpreter.models import JSON, RunStatus

if TYPE_CHECKING:
    from interpreter.record import SessionRecord

_TAG = "Record"


def _with_page(description: str, schema: str) -> Answer:
    return Answer(description, {"application/json": schema, "text/html": None})


NOTEBOOK_TYPE = "application/x-ipynb+json"


class RecordHandler(PageOrJSON):
    """What handlers share that read one session's record."""

    @contextmanager
    def reading(self, session_id: str) -> Iterator[None]:
        """Tell what goes wrong while the journal is read: ConflictError when it is damaged."""
        try:
            yield
        except FileNotFoundError as error:
            raise _not_found() from error
        except OSError as error:
            raise UnavailableError("The record can't be read now; try again later.") from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            # What a damaged line holds may be anything.
            raise _damaged(session_id) from error

    async def find_record(self, session_id: str) -> "SessionRecord":
        """The record if there is one that the token may read; NotFoundError otherwise."""
        record = await self.services.recorder.find_session(self.session_id_of(session_id))
        if record is None or not self.principal.reads(record.info.owner_id):
            raise _not_found()
        return record


class NotebooksHandler(PageOrJSON):
    """``/v1/notebooks``"""

    operations: ClassVar = {
        "GET": Operation(
            "listNotebooks",
            "List and search the record",
            _TAG,
            {200: _with_page("The notebooks that the token may read.", "NotebookList")},
            description="One notebook per session, newest first. `run` tokens see their own, others all.",
            query="NotebooksQuery",
            page=True,
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
        found_page = page_of(records, query, id_of=lambda r: r.info.id, show=_show)
        self.add_header("Vary", "Accept")
        if not self.wants_page():
            self.reply(found_page)
            return
        following = {**query, "after": found_page["last_id"]}
        self.show_page(
            "notebooks.html",
            notebooks=found_page["data"],
            query=query,
            total=len(records),
            statuses=[status.value for status in RunStatus if status.is_final],
            next_url=f"/v1/notebooks?{urlencode(following)}" if found_page["has_more"] else None,
        )


class NotebookHandler(RecordHandler):
    """``/v1/notebooks/{session_id}``"""

    media_type: ClassVar[str] = NOTEBOOK_TYPE
    policy: ClassVar[str] = (
        "default-src 'none'; script-src 'none'; style-src 'self'; img-src data:; frame-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    """Nothing of an output runs in the page; what a frame holds can't go elsewhere."""

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
            if self.wants_page():
                with self.reading(record.info.id):
                    page = await asyncio.to_thread(read_page, notebook, record.info)
                self.show_page("notebook.html", record=record, info=record.info, page=page, when=when)
                return
            size = notebook.seek(0, os.SEEK_END)
            notebook.seek(0)
            self.set_header("Content-Type", NOTEBOOK_TYPE)
            how = "attachment" if download else "inline"
            self.set_header("Content-Disposition", f'{how}; filename="{record.info.id}.ipynb"')
            await send_file(self, notebook, size)

    async def _notebook(self, record: "SessionRecord") -> BinaryIO:
        """The notebook as a file; ConflictError when the journal is damaged, NotFoundError when it is gone."""
        with self.reading(record.info.id):
            notebook = await self.services.recorder.open_notebook(record.info.id)
        if notebook is None and await asyncio.to_thread(record.path.exists):
            raise _damaged(record.info.id)
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
            {200: _with_page("Whether the record is whole and unchanged.", "Verification")},
            page=True,
        )
    }

    async def do_get(self, session_id: str) -> None:
        if not self.principal.may_review:  # reviewers are told, too, of a record that is not there any more
            await self.find_record(session_id)
        result = await self.services.recorder.verify(self.session_id_of(session_id))
        if result is None:
            raise _not_found()
        found = {"valid": result.valid, "runs": result.runs, "problems": list(result.problems)}
        self.add_header("Vary", "Accept")
        if self.wants_page():
            self.show_page("verification.html", session_id=session_id, result=result)
        else:
            self.reply(found)


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
