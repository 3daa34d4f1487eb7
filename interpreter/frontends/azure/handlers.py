"""The handlers of Azure's dynamic sessions."""

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from interpreter.api.files import FileHandler
from interpreter.api.operations import Access, Answer, Operation
from interpreter.errors import InterpreterError, InvalidRequestError, NotFoundError
from interpreter.frontends.azure.answers import describe_file, outcome_of, pictures_of, shell_answer
from interpreter.frontends.chats import check_chat_key
from interpreter.frontends.dialect import JSON_TYPE, DialectHandler, seconds_of, text_of
from interpreter.frontends.form_uploads import FormReceiver, FormUploadHandler, local_path
from interpreter.frontends.languages import cell_of
from interpreter.frontends.saved_pictures import save_pictures
from interpreter.models import JSON

if TYPE_CHECKING:
    from interpreter.sessions import Session

_TAG = "Azure dynamic sessions"
_MAX_IDENTIFIER = 200
_MAX_LISTED = 1000


def _operation(
    name: str, summary: str, access: Access = Access.RUN, upload: str | None = None, kind: str = JSON_TYPE
) -> Operation:
    return Operation(
        name, summary, _TAG, {200: Answer("What came of it.", {kind: None})}, access, upload=upload
    )


class AzureHandler(DialectHandler):
    """What all routes share: the identifier, and errors as Azure's."""

    @property
    def identifier(self) -> str:
        """What the client names its session by. Raises InvalidRequestError."""
        value = self.get_query_argument("identifier", "")
        return check_chat_key(value, "identifier", _MAX_IDENTIFIER)

    @property
    def chat(self) -> str:
        """The key of its session."""
        return f"azure:{self.identifier}"

    async def session(self) -> "Session":
        """The session of the identifier, made when there is none."""
        return (await self.chats.session_of(self.principal, self.chat)).session

    def known_session(self) -> "Session":
        """The session of the identifier; NotFoundError when there is none."""
        session = self.chats.find(self.principal, self.chat)
        if session is None:
            raise NotFoundError("There is no session with this identifier.", param="identifier")
        return session

    def error_of(self, error: InterpreterError) -> JSON:
        code = error.code or error.type
        self.set_header("x-ms-error-code", code)
        return {"error": {"code": code, "message": error.message, "target": error.param}}


class ExecuteHandler(AzureHandler):
    """``/azure/code/execute`` and ``/azure/executions``"""

    operations: ClassVar = {"POST": _operation("azureExecute", "Run code in a session")}

    async def do_post(self) -> None:
        body = self.body_object()
        asked = body.get("properties", body)
        if not isinstance(asked, dict):
            raise InvalidRequestError("`properties` must be an object.", param="properties")
        identifier = self.identifier
        timeout = seconds_of(asked, "timeoutInSeconds")
        if "shellCommand" in asked:
            command = text_of(asked, "shellCommand")
            run = await self.execute(await self.session(), cell_of("bash", command, ()), timeout)
            self.reply(shell_answer(run, identifier))
            return
        code = _code_of(asked)
        session = await self.session()
        run = await self.execute(session, code, timeout)
        saved = await save_pictures(self.services, session, run) if len(pictures_of(run)) > 1 else []
        outcome = outcome_of(run, [file.path for file in saved])
        older = "properties" in body
        self.reply(outcome.as_properties() if older else outcome.as_execution(run.id, identifier))


class FilesHandler(FormUploadHandler, AzureHandler):
    """``/azure/files`` and ``/azure/files/upload``"""

    operations: ClassVar = {
        "GET": _operation("azureListFiles", "List the files of a session"),
        "POST": _operation("azureUpload", "Upload files to a session", upload="multipart/form-data"),
    }

    async def make_receiver(self) -> FormReceiver:
        begin = partial(self.services.workspaces.begin_upload, await self.session())
        return FormReceiver(begin, self.content_type)

    async def do_get(self) -> None:
        session = self.chats.find(self.principal, self.chat)
        if session is None:
            self.reply({"value": []})
            return
        listing = await self.files_of(session).list(limit=_MAX_LISTED)
        self.reply({"value": [describe_file(file) for file in listing.files]})

    async def do_post(self) -> None:
        files = [describe_file(file) for file in await self.finish_upload()]
        self.reply({**files[0], "value": files})


class ContentHandler(AzureHandler, FileHandler):
    """``/azure/files/content/{path}`` and ``/azure/files/{path}/content``"""

    operations: ClassVar = {
        "GET": _operation("azureDownload", "Read a file of a session", kind="*/*"),
    }

    async def do_get(self, path: str) -> None:  # type: ignore[override]
        file = await self.files_of(self.known_session()).open(local_path(path))
        try:
            await self._send(file)
        finally:
            await file.aclose()


class FileInfoHandler(AzureHandler):
    """``/azure/files/{path}``"""

    operations: ClassVar = {
        "GET": _operation("azureFile", "Look at a file of a session"),
        "DELETE": _operation("azureDeleteFile", "Delete a file of a session"),
    }

    async def do_get(self, path: str) -> None:
        info = await self.files_of(self.known_session()).find(local_path(path))
        if info is None:
            raise NotFoundError("There is no such file.", param="path")
        self.reply(describe_file(info))

    async def do_delete(self, path: str) -> None:
        await self.files_of(self.known_session()).delete(local_path(path))
        self.set_status(204)


class SessionHandler(AzureHandler):
    """``/azure/session``"""

    operations: ClassVar = {"DELETE": _operation("azureEndSession", "End a session")}

    async def do_delete(self) -> None:
        await self.chats.end(self.principal, self.chat)
        self.set_status(204)


def _code_of(asked: dict[str, Any]) -> str:
    if text_of(asked, "executionType", "synchronous").lower() != "synchronous":
        raise InvalidRequestError("Only synchronous executions are served.", param="executionType")
    if text_of(asked, "codeInputType", "inline").lower() != "inline":
        raise InvalidRequestError("Only inline code is served.", param="codeInputType")
    return text_of(asked, "code" if "code" in asked or "pythonCode" not in asked else "pythonCode")
