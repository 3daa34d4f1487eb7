"""What MCP's methods do, whatever carries the messages."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from interpreter import __version__
from interpreter.api.runs import check_code
from interpreter.api.services import Services
from interpreter.errors import InterpreterError, InvalidRequestError, NotFoundError
from interpreter.frontends.chats import ChatSessions
from interpreter.frontends.fitted import fit_pictures
from interpreter.frontends.form_uploads import local_path
from interpreter.frontends.images import ImageShrinker
from interpreter.frontends.mcp import protocol, tools
from interpreter.frontends.mcp.protocol import Message, RpcError
from interpreter.frontends.mcp.tools import Form
from interpreter.frontends.wording import reworded
from interpreter.models import JSON, Principal, RunRequest, is_id
from interpreter.toolcalls import (
    TOOL_NAME,
    BadCall,
    Dialect,
    Invocation,
    ToolCall,
    answer_run,
    read_call,
    shorten,
)

if TYPE_CHECKING:
    from interpreter.runs import ActiveRun, RecordedRun
    from interpreter.sessions import Session
    from interpreter.workspace import Files

SERVER_INFO: JSON = {
    "name": "jupyter-code-interpreter",
    "title": "Jupyter Code Interpreter",
    "version": __version__,
}
CAPABILITIES: JSON = {"tools": {}, "resources": {}, "prompts": {}}
STATELESS_IDLE_TIMEOUT = 900.0  # seconds; nobody may ever come back to a session that a call alone made
_GONE = "The client went away."
_TOOLS_TTL = 3_600_000  # milliseconds
_OF_MODERN = ("ttlMs", "cacheScope")
_PAGE = 100
_MAX_NOTICE_BYTES = 16 * 1024
_CLEANUP = "cleanup_session"
_TEXT_TOOL = "python"  # what gpt-oss' model calls the tool
_LOST = "The earlier session has ended: its variables and files are gone. This is a new one."


@dataclass(slots=True)
class Call:
    """A request that is being answered, and how: filled by whoever carries it."""

    principal: Principal
    modern: bool = False
    version: str = protocol.LATEST_HANDSHAKE
    form: Form = Form.FULL
    chat: str | None = None
    """Selects the session where the arguments name none; None: a new one for each call."""
    leaving_cancels: bool = True
    """Whether the run ends when the client goes away before its answer."""
    run_id: str | None = None
    cancelled: bool = False

    @property
    def links(self) -> bool:
        """Whether the client knows resource links."""
        return self.version >= protocol.LINKS_SINCE


class McpServer:
    """Answers requests. One for all carriers; it keeps nothing but the sessions of chats."""

    def __init__(self, services: Services, *, info: JSON = SERVER_INFO, instructions: str = "") -> None:
        self.services = services
        self.chats = ChatSessions(services)
        self._info = info
        self._shrinker = ImageShrinker()
        self._instructions = instructions or tools.INSTRUCTIONS

    async def respond(self, message: Message, call: Call) -> AsyncGenerator[JSON, None]:
        """The messages that answer a request: notices of progress, then the response.

        Raises RpcError for what breaks the protocol. Closed or cancelled before its end it cancels the
        run, if the call says so.
        """
        if message.method == "tools/call":
            async with contextlib.aclosing(self._call_tool(message, call)) as steps:
                async for step in steps:
                    yield step if "method" in step else self._response(message, call, step)
        else:
            yield self._response(message, call, await self._answer(message, call))

    async def cancel(self, call: Call) -> None:
        """Cancel what a call runs; its answer still comes."""
        call.cancelled = True
        if call.run_id is not None:
            await self.services.runs.cancel(call.principal, call.run_id, reason="the MCP client cancelled it")

    def _response(self, message: Message, call: Call, result: JSON) -> JSON:
        if call.modern:
            result = protocol.complete(result, self._info)
        else:
            result = {name: value for name, value in result.items() if name not in _OF_MODERN}
        return protocol.response(message, result)

    async def _answer(self, message: Message, call: Call) -> JSON:
        match message.method:
            case "initialize" if not call.modern:
                return self._welcome(protocol.negotiate(message.params.get("protocolVersion")))
            case "ping" if not call.modern:
                return {}
            case "server/discover":
                return {
                    "supportedVersions": list(protocol.SUPPORTED_VERSIONS),
                    "capabilities": CAPABILITIES,
                    "instructions": self._instructions,
                    **_cache(_TOOLS_TTL, "public"),
                }
            case "tools/list":
                stateless = call.chat is None
                listed = tools.list_tools(call.form, stateless=stateless)
                return {"tools": listed, **_cache(_TOOLS_TTL, "private")}
            case "resources/list":
                return await self._list_resources(message, call)
            case "resources/templates/list":
                templates = [] if call.form is Form.TEXT else [tools.URI_TEMPLATE]
                return {"resourceTemplates": templates, **_cache(_TOOLS_TTL, "public")}
            case "resources/read":
                return await self._read_resource(message, call)
            case "prompts/list":  # there are none, but some clients take an error here for the end
                return {"prompts": [], **_cache(_TOOLS_TTL, "public")}
            case "prompts/get":
                raise RpcError(protocol.INVALID_PARAMS, "There is no such prompt.")
        raise RpcError(protocol.METHOD_NOT_FOUND, "There is no such method.")

    def _welcome(self, version: str) -> JSON:
        return {
            "protocolVersion": version,
            "capabilities": CAPABILITIES,
            "serverInfo": self._info,
            "instructions": self._instructions,
        }

    # -- tools ----------------------------------------------------------------------------------

    async def _call_tool(self, message: Message, call: Call) -> AsyncGenerator[JSON, None]:
        name, arguments = message.params.get("name"), message.params.get("arguments")
        if not isinstance(name, str):
            raise RpcError(protocol.INVALID_PARAMS, "`params.name` must name a tool.")
        if arguments is not None and not isinstance(arguments, dict):
            raise RpcError(protocol.INVALID_PARAMS, "`params.arguments` must be an object.")
        arguments = dict(arguments or {})
        try:
            if self._runs_code(name, call.form):
                async with contextlib.aclosing(self._run(message, call, arguments)) as steps:
                    async for step in steps:
                        yield step
            else:
                yield await self._other_tool(name, arguments, call)
        except InterpreterError as error:
            yield tools.text_result(reworded(error).message, is_error=call.form is not Form.TEXT)

    @staticmethod
    def _runs_code(name: str, form: Form) -> bool:
        return name == (_TEXT_TOOL if form is Form.TEXT else TOOL_NAME)

    async def _other_tool(self, name: str, arguments: JSON, call: Call) -> JSON:
        if name == _CLEANUP and call.form is Form.TEXT and call.chat is not None:
            await self.chats.end(call.principal, call.chat)
            return tools.text_result("")
        if name == tools.LIST_FILES and call.form is Form.FULL:
            session_id = self._known_session(arguments, call).info.id
            listing = await self._files(session_id, call).list(limit=_PAGE)
            return tools.files_result(session_id, listing.files, has_more=listing.has_more, links=call.links)
        if name == tools.RESTART_SESSION and call.form is Form.FULL:
            session = self._known_session(arguments, call)
            await self.services.runs.restart(call.principal, session.info.id)
            return tools.text_result(
                "The kernel was restarted: variables and imports are gone, files are kept."
            )
        raise RpcError(protocol.INVALID_PARAMS, f"There is no tool named {name[:80]!a}.")

    async def _run(self, message: Message, call: Call, arguments: JSON) -> AsyncGenerator[JSON, None]:
        asked_id = arguments.pop("session_id", None) or arguments.pop("container_id", None)
        tool_call = ToolCall(Dialect.MCP, str(message.id), TOOL_NAME, arguments, 0)
        read = read_call(tool_call)
        if isinstance(read, BadCall):
            is_text = call.form is Form.TEXT
            sentence = read.message.replace(TOOL_NAME, _TEXT_TOOL) if is_text else read.message
            yield tools.text_result(sentence, is_error=not is_text)
            return
        check_code(read.code, self.services.settings.max_code_bytes)
        session, notes, is_unnamed = await self._session_for(asked_id, call)
        told = False
        try:
            active = await self._submit(read, session, call)
            number = 0
            async for event in active.events():
                text = _printed(event.kind, event.data)
                if text and message.progress_token is not None:
                    number += 1
                    yield protocol.progress(message.progress_token, number, text)
            told = True
            run = await active.wait()
            if call.form is not Form.TEXT:
                run = await fit_pictures(run, tools.MAX_IMAGE_BYTES, self._shrinker)
            answer = answer_run(tool_call, run, self.services.settings.max_model_text_bytes, shows_rich=False)
            yield tools.run_result(
                answer,
                call.form,
                self.services.settings.max_model_text_bytes,
                notes,
                links=call.links,
            )
        except (asyncio.CancelledError, GeneratorExit):
            if not told and call.leaving_cancels:
                await self._abandon(session, call, discard=is_unnamed)
            raise
        except InterpreterError:
            if is_unnamed:
                await self.services.sessions.delete(call.principal, session.info.id)
            raise

    async def _submit(self, read: Invocation, session: "Session", call: Call) -> "ActiveRun | RecordedRun":
        timeout = read.timeout
        if timeout is not None:
            timeout = min(timeout, self.services.settings.max_execute_timeout)
        request = RunRequest(read.code, timeout=timeout, background=not call.leaving_cancels)
        if call.cancelled:
            raise InvalidRequestError("The call was cancelled before the code was run.")
        active = await self.services.runs.submit(call.principal, session, request)
        call.run_id = active.run.id
        if call.cancelled:
            await self.cancel(call)
        return active

    async def _abandon(self, session: "Session", call: Call, *, discard: bool) -> None:
        """The client went away; a session whose id it never learned goes, too."""
        if call.run_id is not None:
            await self.services.runs.cancel(call.principal, call.run_id, reason=_GONE)
        if discard:
            await self.services.sessions.delete(call.principal, session.info.id)

    # -- sessions -------------------------------------------------------------------------------

    async def _session_for(self, asked_id: Any, call: Call) -> "tuple[Session, list[str], bool]":
        """The session to run in, notes about it, and whether the client does not know its id yet."""
        if asked_id is not None:
            return self._session_of(asked_id, call), [], False
        if call.chat is not None:
            found = await self.chats.session_of(call.principal, call.chat)
            return found.session, [_LOST] if found.lost else [], False
        idle_timeout = min(STATELESS_IDLE_TIMEOUT, self.services.settings.cull_idle_timeout)
        session = await self.services.sessions.create(call.principal, idle_timeout=idle_timeout)
        note = f'New session "{session.info.id}"; pass it as session_id to keep variables and files.'
        return session, [note], True

    def _session_of(self, asked_id: Any, call: Call) -> "Session":
        if not isinstance(asked_id, str) or not is_id(asked_id):
            raise NotFoundError("There is no such session; leave session_id out to get a new one.")
        return self.services.sessions.get(call.principal, asked_id)

    def _known_session(self, arguments: JSON, call: Call) -> "Session":
        asked_id = arguments.get("session_id") or None
        if asked_id is not None:
            return self._session_of(asked_id, call)
        session = self.chats.find(call.principal, call.chat) if call.chat is not None else None
        if session is None:
            raise NotFoundError(f"There is no session yet; call {TOOL_NAME} first, or give session_id.")
        return session

    # -- resources ------------------------------------------------------------------------------

    def _files(self, session_id: str, call: Call) -> "Files":
        session = self.services.sessions.get(call.principal, session_id)
        self.services.sessions.touch(session)
        return self.services.workspaces.files(session)

    async def _list_resources(self, message: Message, call: Call) -> JSON:
        """The files of the chat's session; without one there is nothing to list."""
        found: JSON = {"resources": [], **_cache(0, "private")}
        session = self.chats.find(call.principal, call.chat) if call.chat is not None else None
        if session is None or call.form is not Form.FULL:
            return found
        cursor = message.params.get("cursor")
        after = cursor if isinstance(cursor, str) else None
        try:
            listing = await self._files(session.info.id, call).list(limit=_PAGE, after=after)
        except InterpreterError as error:
            raise RpcError(protocol.INTERNAL_ERROR, error.message) from error
        found["resources"] = [tools.resource_of(session.info.id, file) for file in listing.files]
        if listing.has_more:
            found["nextCursor"] = listing.files[-1].path
        return found

    async def _read_resource(self, message: Message, call: Call) -> JSON:
        uri = message.params.get("uri")
        if not isinstance(uri, str):
            raise RpcError(protocol.INVALID_PARAMS, "`params.uri` must be a string.")
        place = tools.parse_uri(uri)
        try:
            if place is None or not is_id(place[0]) or call.form is Form.TEXT:
                raise NotFoundError("There is no such resource.")
            content, mime_type = await self._content(place[0], local_path(place[1]), call)
        except InterpreterError as error:
            code = protocol.INVALID_PARAMS if call.modern else protocol.RESOURCE_NOT_FOUND
            raise RpcError(code, reworded(error).message, data={"uri": uri}) from error
        found = {"uri": uri, "mimeType": mime_type}
        try:
            if not mime_type.startswith(("image/", "audio/", "video/")):
                return {"contents": [{**found, "text": content.decode()}], **_cache(0, "private")}
        except UnicodeDecodeError:
            pass  # a file of bytes
        blob = base64.b64encode(content).decode()
        return {"contents": [{**found, "blob": blob}], **_cache(0, "private")}

    async def _content(self, session_id: str, path: str, call: Call) -> tuple[bytes, str]:
        limit = self.services.settings.max_mime_bytes
        file = await self._files(session_id, call).open(path)
        try:
            if file.info.size > limit:
                raise InvalidRequestError(
                    f"The file is over {limit} bytes; read parts of it with {TOOL_NAME}."
                )
            parts: list[bytes] = []
            size = 0
            while size < limit and (chunk := await file.read(size, min(1024**2, limit - size))):
                parts.append(chunk)
                size += len(chunk)
            return b"".join(parts), file.info.mime_type
        finally:
            await file.aclose()


def _cache(milliseconds: int, scope: str) -> JSON:
    """How long a client of the stateless era may keep a result."""
    return {"ttlMs": milliseconds, "cacheScope": scope}


def _printed(kind: str, data: JSON) -> str:
    """What an event says that a person would read while the code runs."""
    if kind != "output" or data["output"].get("output_type") != "stream":
        return ""
    return shorten(str(data["output"].get("text", "")), _MAX_NOTICE_BYTES, "output")
