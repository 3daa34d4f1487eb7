"""The handlers of the tool server."""

import base64
import binascii
from typing import ClassVar

from interpreter.api.operations import Answer, Operation
from interpreter.errors import InvalidRequestError
from interpreter.frontends.dialect import JSON_TYPE, DialectHandler
from interpreter.frontends.form_uploads import local_path
from interpreter.frontends.tool_handlers import (
    PICTURE_TYPES,
    TAG,
    ToolHandler,
    describe_file,
    tool_operations,
)
from interpreter.frontends.tool_server import document as tools
from interpreter.frontends.tool_server.document import PREFIX
from interpreter.toolcalls import TOOL_NAME, shorten

_MAX_LISTED = 200


class ListFilesHandler(ToolHandler):
    """``/openapi-tools/list_files``"""

    tool = tools.LIST_FILES
    operations: ClassVar = tool_operations(tool)

    async def do_post(self) -> None:
        arguments = self.arguments()
        session = self.known_session(arguments)
        listing = await self.files_of(session).list(limit=_MAX_LISTED)
        files = [describe_file(file) for file in listing.files]
        self.reply({"session_id": session.info.id, "files": files, "has_more": listing.has_more})


class ReadFileHandler(ToolHandler):
    """``/openapi-tools/read_file``"""

    tool = tools.READ_FILE
    operations: ClassVar = tool_operations(tool)

    async def do_post(self) -> None:
        arguments = self.arguments()
        session = self.known_session(arguments)
        info, content = await self.load(session, local_path(arguments["path"]), self.settings_.max_mime_bytes)
        if info.mime_type in PICTURE_TYPES:
            self.set_header("Content-Type", info.mime_type)
            self.finish(content)
            return
        try:
            text = content.decode()
        except UnicodeDecodeError:
            raise InvalidRequestError(
                f"The file is no text; read it with {TOOL_NAME}.", param="path"
            ) from None
        shown = shorten(text, self.settings_.max_model_text_bytes, "the file")
        self.reply({"session_id": session.info.id, **describe_file(info), "content": shown})


class WriteFileHandler(ToolHandler):
    """``/openapi-tools/write_file``"""

    tool = tools.WRITE_FILE
    operations: ClassVar = tool_operations(tool)

    async def do_post(self) -> None:
        arguments = self.arguments()
        content = _content(arguments["content"], arguments.get("encoding", "utf-8"))
        session, notes = await self.session_of(arguments)
        info = await self.save(session, local_path(arguments["path"]), content)
        self.reply(
            {"session_id": session.info.id, **describe_file(info), **({"notes": notes} if notes else {})}
        )


class DeleteFileHandler(ToolHandler):
    """``/openapi-tools/delete_file``"""

    tool = tools.DELETE_FILE
    operations: ClassVar = tool_operations(tool)

    async def do_post(self) -> None:
        arguments = self.arguments()
        session = self.known_session(arguments)
        path = local_path(arguments["path"])
        await self.files_of(session).delete(path)
        self.reply({"session_id": session.info.id, "path": path})


class RestartHandler(ToolHandler):
    """``/openapi-tools/restart_session``"""

    tool = tools.RESTART_SESSION
    operations: ClassVar = tool_operations(tool)

    async def do_post(self) -> None:
        arguments = self.arguments()
        session = self.known_session(arguments)
        await self.services.runs.restart(self.principal, session.info.id)
        self.reply({"session_id": session.info.id})


class DocumentHandler(DialectHandler):
    """``/openapi-tools/openapi.json``"""

    operations: ClassVar = {
        "GET": Operation(
            "getToolServerDocument",
            "The tool server's OpenAPI document",
            TAG,
            {200: Answer("The document.", {JSON_TYPE: None})},
        )
    }

    async def do_get(self) -> None:
        self.reply(tools.build_document(f"{self.request.protocol}://{self.request.host}{PREFIX}"))


def _content(text: str, encoding: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True) if encoding == "base64" else text.encode()
    except binascii.Error:
        raise InvalidRequestError("`content` is no base64.", param="content") from None
    except UnicodeEncodeError:
        raise InvalidRequestError("`content` has half of a surrogate pair.", param="content") from None
