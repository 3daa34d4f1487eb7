"""The handlers of Onyx."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from interpreter.api.base import Toolbox
from interpreter.api.files import FileHandler
from interpreter.api.operations import Access, Answer, Operation
from interpreter.api.receivers import MultipartReceiver
from interpreter.api.sse import EVENT_STREAM, KEEPALIVE
from interpreter.api.validity import while_valid
from interpreter.errors import (
    InterpreterError,
    InvalidRequestError,
    NotFoundError,
    TooLargeError,
    UnavailableError,
)
from interpreter.frontends.chats import ChatSessions
from interpreter.frontends.dialect import (
    JSON_TYPE,
    copy_file,
    seconds_of,
    text_of,
)
from interpreter.frontends.form_uploads import FormUploadHandler
from interpreter.frontends.keys import KeyHandler
from interpreter.frontends.languages import cell_of
from interpreter.frontends.onyx import answers
from interpreter.frontends.onyx.answers import FileRef
from interpreter.frontends.saved_pictures import save_pictures
from interpreter.frontends.storages import Owner, Storage, Storages
from interpreter.frontends.wording import reworded
from interpreter.models import JSON, Run
from interpreter.workspace import FileInfo

if TYPE_CHECKING:
    from interpreter.runs import ActiveRun, RecordedRun
    from interpreter.sessions import Session

_TAG = "Onyx"
_DEFAULT_TTL = 900.0  # seconds
_DEFAULT_BASH_TIMEOUT = 30.0  # seconds
_OWN = Owner()
_SHOWN_STATUSES = frozenset({401, 403, 405})


def _operation(
    name: str,
    summary: str,
    access: Access = Access.RUN,
    *,
    status: int = 200,
    kind: str = JSON_TYPE,
    upload: str | None = None,
) -> Operation:
    return Operation(
        name, summary, _TAG, {status: Answer("What came of it.", {kind: None})}, access, upload=upload
    )


class OnyxHandler(KeyHandler):
    """What all routes share: files by their ids, and errors as FastAPI's."""

    def initialize(  # type: ignore[override]
        self, toolbox: Toolbox, route: str, chats: ChatSessions, storages: Storages
    ) -> None:
        super().initialize(toolbox, route, chats)
        self.storages = storages

    def error_of(self, error: InterpreterError) -> JSON:
        return {"detail": error.message}

    async def stored(self, file_id: str) -> tuple[Storage, FileInfo]:
        """A stored file: each has a folder of its own, whose id is the file's. Raises NotFoundError."""
        storage = self.storages.find(self.identity, file_id, _OWN)
        listing = await storage.files.list(limit=1)
        if storage.session is not None or not listing.files:
            raise NotFoundError("There is no such file; it may have expired.", param="file_id")
        return storage, listing.files[0]

    async def stage(self, session: "Session", refs: Sequence[FileRef]) -> None:
        """Put stored files into a session. Raises NotFoundError, InvalidRequestError, TooLargeError."""
        for ref in refs:
            storage, info = await self.stored(ref.file_id)
            file = await storage.files.open(info.path)
            await copy_file(file, partial(self.services.workspaces.begin_upload, session), ref.path)

    async def store(self, session: "Session", path: str) -> str:
        """Keep a file of a session; its id."""
        source = await self.files_of(session).open(path)
        folder = self.storages.make(self.identity, _OWN)
        await copy_file(source, partial(self.storages.begin_upload, folder), path)
        return folder.id


class ExecuteHandler(OnyxHandler):
    """``/onyx/v1/execute``"""

    operations: ClassVar = {"POST": _operation("onyxExecute", "Run code for Onyx")}

    async def do_post(self) -> None:
        body = self.body_object()
        session = await self.begin(body)
        try:
            run = await self.wait_for(await self.submit(session, body))
            files, lost = await self.keep_files(session, run)
            self.reply({**answers.answer(run, note=lost), "files": files})
        finally:
            await self.services.sessions.delete(self.principal, session.info.id)

    async def begin(self, body: dict[str, Any]) -> "Session":
        """A session with the files that the code is to find."""
        if body.get("stdin"):
            raise InvalidRequestError("There is no stdin here; put the input into the code.", param="stdin")
        self.request_of(text_of(body, "code"), answers.timeout_of(body, answers.DEFAULT_TIMEOUT))
        refs = answers.read_files(body)
        session = await self.services.sessions.create(self.principal)
        try:
            await self.stage(session, refs)
        except InterpreterError:
            await self.services.sessions.delete(self.principal, session.info.id)
            raise
        return session

    async def submit(self, session: "Session", body: dict[str, Any]) -> "ActiveRun | RecordedRun":
        """Begin the run."""
        timeout = answers.timeout_of(body, answers.DEFAULT_TIMEOUT)
        request = self.request_of(body["code"], timeout)
        request = replace(request, code=cell_of("py", request.code, ()))
        return await self.services.runs.submit(self.principal, session, request)

    async def keep_files(self, session: "Session", run: Run) -> tuple[list[JSON], str]:
        """What the code made, kept under ids: files, and figures that it only showed; and why some are not."""
        paths = [file.path for file in await save_pictures(self.services, session, run)]
        paths += [file.path for file in run.files if file.change != "deleted"]
        kept: list[JSON] = []
        lost: list[str] = []
        for path in paths[: answers.MAX_FILES]:
            try:
                kept.append({"path": path, "kind": "file", "file_id": await self.store(session, path)})
            except NotFoundError:
                pass  # gone again
            except (TooLargeError, UnavailableError) as error:
                lost.append(f"{path} was not kept: {error.message}\n")
        return kept, "".join(lost)

    def show_error(self, error: InterpreterError) -> None:
        if error.status in _SHOWN_STATUSES or error.status == 500:
            super().show_error(error)
        else:
            self.show_refusal(reworded(error))

    def show_refusal(self, error: InterpreterError) -> None:
        """Say why the code was not run."""
        self.reply(answers.refusal(error.message))


class StreamHandler(ExecuteHandler):
    """``/onyx/v1/execute/stream``"""

    operations: ClassVar = {
        "POST": _operation("onyxExecuteStream", "Run code for Onyx, with live output", kind=EVENT_STREAM)
    }

    async def do_post(self) -> None:
        body = self.body_object()
        session = await self.begin(body)
        try:
            active = await self.submit(session, body)
            if not await self._stream_valid(active):
                return
            run = await active.wait()
            files, lost = await self.keep_files(session, run)
            stdout, stderr = answers.rest_of(run)
            for name, text in (("stdout", stdout), ("stderr", stderr + lost)):
                if text:
                    self.write(answers.event("output", {"stream": name, "data": text}))
            self.write(answers.event("result", {**answers.outcome(run), "files": files}))
        finally:
            await self.services.sessions.delete(self.principal, session.info.id)

    async def _stream_valid(self, active: "ActiveRun | RecordedRun") -> bool:
        """Stream what the run prints; False when the token ended before the run."""
        ended = False
        try:
            ended = await while_valid(
                self._stream_output(active), self.services.tokens, self.principal.token_id
            )
        finally:
            if not ended:
                await self._abandon(active)
        return ended

    async def _stream_output(self, active: "ActiveRun | RecordedRun") -> None:
        self._begin()
        events, ended = active.events(), False
        following = asyncio.ensure_future(anext(events, None))
        try:
            while not ended:
                done, _ = await asyncio.wait({following}, timeout=self.settings_.keepalive_interval)
                if not done:
                    self.write(KEEPALIVE)
                elif (event := following.result()) is None:
                    ended = True
                else:
                    following = asyncio.ensure_future(anext(events, None))
                    if (printed := answers.printed(event)) is not None:
                        self.write(answers.event("output", {"stream": printed[0], "data": printed[1]}))
                await self.flush()
        finally:
            following.cancel()
            await asyncio.wait({following})

    def _begin(self) -> None:
        self.set_header("Content-Type", EVENT_STREAM)
        self.set_header("X-Accel-Buffering", "no")

    def show_refusal(self, error: InterpreterError) -> None:
        result = answers.refusal(error.message)
        text = result.pop("stderr")
        del result["stdout"]
        self.set_status(200)
        self._begin()
        self.write(answers.event("output", {"stream": "stderr", "data": text}))
        self.finish(answers.event("result", result))


class FilesHandler(FormUploadHandler, OnyxHandler):
    """``/onyx/v1/files``"""

    operations: ClassVar = {
        "POST": _operation("onyxUpload", "Upload a file for Onyx", status=201, upload="multipart/form-data")
    }
    _file_id = ""

    async def make_receiver(self) -> MultipartReceiver:
        folder = self.storages.make(self.identity, _OWN)
        self._file_id = folder.id
        return MultipartReceiver(partial(self.storages.begin_upload, folder), self.content_type)

    async def do_post(self) -> None:
        info, *more = await self.finish_upload()
        if more:
            raise InvalidRequestError("Send one file at a time.", param="file")
        self.reply({"file_id": self._file_id, "filename": info.path, "size_bytes": info.size}, 201)


class FileContentHandler(OnyxHandler, FileHandler):
    """``/onyx/v1/files/{file_id}``"""

    operations: ClassVar = {
        "GET": _operation("onyxDownload", "Read a file of Onyx", kind="*/*"),
        "DELETE": _operation("onyxDeleteFile", "Delete a file of Onyx", status=204),
    }

    async def do_get(self, file_id: str) -> None:  # type: ignore[override]
        storage, info = await self.stored(file_id)
        file = await storage.files.open(info.path)
        try:
            await self._send(file)
        finally:
            await file.aclose()

    async def do_delete(self, file_id: str) -> None:  # type: ignore[override]
        storage, info = await self.stored(file_id)
        await storage.files.delete(info.path)
        self.set_status(204)


class SessionsHandler(OnyxHandler):
    """``/onyx/v1/sessions``"""

    operations: ClassVar = {"POST": _operation("onyxSession", "Make a session for Onyx", status=201)}

    async def do_post(self) -> None:
        body = self.body_object()
        lifetime = seconds_of(body, "ttl_seconds") or _DEFAULT_TTL
        refs = answers.read_files(body)
        session = await self.services.sessions.create(
            self.principal, idle_timeout=min(lifetime, self.settings_.cull_idle_timeout)
        )
        try:
            await self.stage(session, refs)
        except InterpreterError:
            await self.services.sessions.delete(self.principal, session.info.id)
            raise
        expires_at = self.services.clock() + timedelta(seconds=session.info.idle_timeout)
        self.reply({"session_id": session.info.id, "expires_at": expires_at.timestamp()}, 201)


class SessionHandler(OnyxHandler):
    """``/onyx/v1/sessions/{session_id}``"""

    operations: ClassVar = {"DELETE": _operation("onyxEndSession", "End a session of Onyx", status=204)}

    async def do_delete(self, session_id: str) -> None:
        await self.services.sessions.delete(self.principal, self.session_id_of(session_id))
        self.set_status(204)


class BashHandler(OnyxHandler):
    """``/onyx/v1/sessions/{session_id}/bash``"""

    operations: ClassVar = {"POST": _operation("onyxBash", "Run a command in a session of Onyx")}

    async def do_post(self, session_id: str) -> None:
        body = self.body_object()
        session = self.services.sessions.get(self.principal, self.session_id_of(session_id))
        timeout = answers.timeout_of(body, _DEFAULT_BASH_TIMEOUT)
        run = await self.execute(session, cell_of("bash", text_of(body, "cmd"), ()), timeout)
        self.reply(answers.answer(run, "bash"))


class HealthHandler(OnyxHandler):
    """``/onyx/health``"""

    operations: ClassVar = {
        "GET": _operation("onyxHealth", "Whether the service can be reached", Access.PUBLIC)
    }

    async def do_get(self) -> None:
        self.reply({"status": "ok", "version": "0.4.0"})  # by which Onyx knows that there are sessions
