"""Files of kernels on a disk that the service does not share, reached through the kernel itself.

The kernel is sent a small module that keeps the session's folder, and is asked between runs. So
it works for Python kernels only, and waits while the kernel is busy: with
``gateway_workspace_path`` set, neither holds.
"""

import ast
import asyncio
import base64
import binascii
import contextlib
import json
import os
import secrets
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Protocol, TypeVar

from interpreter.errors import InterpreterError, UnavailableError
from interpreter.kernels.kernel import KernelDiedError
from interpreter.models import SessionInfo
from interpreter.sessions import Session
from interpreter.workspace import (
    MAX_SCANNED_FILES,
    UNKNOWN,
    FileInfo,
    Files,
    Listing,
    Snapshot,
    Upload,
    Uploads,
    folder,
    parse_path,
)
from interpreter.workspace.files import file_error

T = TypeVar("T")

CHUNK_BYTES = 512 * 1024  # of a file, in one message
BUSY_TIMEOUT = 20.0  # seconds that a kernel may take to answer, what it runs included
SNAPSHOT_TIMEOUT = 5.0  # seconds; kernels are asked when they are idle
_ABORTED_RETRIES = 3  # a run that fails aborts what waits behind it

_FOLDER_MODULE = "_interpreter_folder"
_AGENT_MODULE = "_interpreter_agent"


class AskableKernel(Protocol):
    """A kernel, as far as it is needed here."""

    @property
    def dead(self) -> bool: ...
    async def evaluate(self, code: str, expressions: Mapping[str, str]) -> Mapping[str, Any]: ...


class HasKernel(Protocol):
    """A session, as far as it is needed here."""

    @property
    def info(self) -> SessionInfo: ...
    @property
    def kernel(self) -> AskableKernel | None: ...


class SessionFiles(Protocol):
    """Where the files of sessions are: on a disk of ours (`Workspaces`), or behind their kernels."""

    def files(self, session: Session) -> Files:
        """The files of a session."""

    async def begin_upload(self, session: Session) -> Upload:
        """An upload of one file to a session. Raises NotFoundError, UnavailableError."""


class KernelWorkspaces:
    """The files of all sessions, each behind its kernel."""

    def __init__(self, uploads: Uploads) -> None:
        self._uploads = uploads

    def files(self, session: HasKernel) -> "KernelFiles":
        """The files of a session."""
        return KernelFiles(session)

    async def begin_upload(self, session: HasKernel) -> Upload:
        """An upload of one file. Raises UnavailableError (no kernel, a busy one, one without Python)."""
        return await self._uploads.begin(session.info.id, self.files(session))

    async def session_ends(self, session: HasKernel, reason: str) -> None:
        """Delete the session's files as far as its kernel does it; an end hook of `SessionManager`."""
        if reason != "shutdown":
            await self.files(session).remove()


class KernelFiles:
    """The files of one session. Implements `interpreter.workspace.Files`."""

    def __init__(self, session: HasKernel) -> None:
        self._session = session

    async def list(self, *, limit: int, after: str | None = None, descending: bool = False) -> Listing:
        """See `Files.list`."""

        def read(value: Any) -> Listing:
            found, more = value
            return Listing(tuple(_info(item) for item in found[:limit]), bool(more))

        return await self._ask("page", limit, after, descending, read=read)

    async def open(self, path: str) -> "KernelOpenFile":
        """See `Files.open`."""
        parse_path(path)
        entry, first = await self.read(path, 0, CHUNK_BYTES)
        return KernelOpenFile(self, entry, first)

    async def put(self, path: str, source: Path) -> FileInfo:
        """See `Files.put`. The file is read and sent in pieces."""
        parse_path(path)
        upload = secrets.token_hex(16)
        try:
            offset = 0
            while (piece := await asyncio.to_thread(_read_piece, source, offset)) or not offset:
                content = base64.b64encode(piece).decode()
                await self._ask("append", upload, offset, content, read=_nothing, making=True)
                offset += len(piece)
                if len(piece) < CHUNK_BYTES:
                    break
            return await self._ask("place", upload, path, read=_info, making=True)
        except (InterpreterError, asyncio.CancelledError):
            with contextlib.suppress(InterpreterError):
                await asyncio.shield(self._ask("discard", upload, read=_nothing))
            raise

    async def find(self, path: str) -> FileInfo | None:
        """See `Files.find`."""
        parse_path(path)
        try:
            return await self._ask("stat", path, read=_info, making=True)
        except InterpreterError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    async def delete(self, path: str) -> None:
        """See `Files.delete`."""
        parse_path(path)
        await self._ask("delete", path, read=_nothing)

    async def used_bytes(self) -> int:
        """See `Files.used_bytes`."""
        return await self._ask("used", read=int)

    def glance(self) -> Snapshot | None:
        """See `Files.glance`: a kernel has to be asked."""
        return None

    async def snapshot(self) -> Snapshot:
        """See `Files.snapshot`. `UNKNOWN` when the kernel can't be asked; it also enters its folder."""

        def read(value: Any) -> Snapshot:
            found, complete, taken_at, unnamed = value
            entries = [_entry(item) for item in found[:MAX_SCANNED_FILES]]
            files = {entry.path: entry for entry in entries}
            return Snapshot(files, bool(complete), int(taken_at), int(unnamed))

        try:
            return await self._ask("scan", MAX_SCANNED_FILES, read=read, timeout=SNAPSHOT_TIMEOUT)
        except InterpreterError:
            return UNKNOWN

    async def remove(self) -> None:
        """Delete the whole folder, if the kernel can be asked."""
        with contextlib.suppress(InterpreterError):
            await self._ask("remove", read=_nothing, timeout=SNAPSHOT_TIMEOUT)

    async def read(self, path: str, offset: int, size: int) -> tuple[folder.Entry, bytes]:
        """The file as it is now, and at most ``size`` (up to `CHUNK_BYTES`) bytes of it."""

        def read(value: Any) -> tuple[folder.Entry, bytes]:
            entry, content = value
            return _entry(entry), base64.b64decode(content, validate=True)[:size]

        return await self._ask("read", path, offset, min(size, CHUNK_BYTES), read=read)

    async def _ask(
        self,
        operation: str,
        *arguments: Any,
        read: Callable[[Any], T],
        making: bool = False,
        timeout: float = BUSY_TIMEOUT,
    ) -> T:
        kernel = self._kernel()
        try:
            async with asyncio.timeout(timeout):
                text = await _call(kernel, self._session.info.id, operation, list(arguments))
        except TimeoutError as error:
            raise UnavailableError(
                "The kernel is busy, and on this gateway files are reached through it: wait for the run or "
                "interrupt it (or have gateway_workspace_path set).",
                code="kernel_busy",
                retry_after=5,
            ) from error
        except KernelDiedError as error:
            raise _no_kernel() from error
        return _read_answer(text, read, making)

    def _kernel(self) -> AskableKernel:
        if self._session.info.language != "python":
            raise UnavailableError(
                "The files of this session can't be reached: its gateway does not share its disk with the "
                "service, which needs gateway_workspace_path for kernels other than Python.",
                code="files_not_shared",
            )
        kernel = self._session.kernel
        if kernel is None or kernel.dead:
            raise _no_kernel()
        return kernel


class KernelOpenFile:
    """A file that is read piece by piece; it ends early when it is not the same any more."""

    def __init__(self, files: KernelFiles, entry: folder.Entry, first: bytes) -> None:
        self.info = FileInfo.of(entry)
        self._files = files
        self._entry = entry
        self._first = first

    async def read(self, offset: int, size: int) -> bytes:
        """See `OpenFile.read`."""
        if offset < len(self._first):
            return self._first[offset : offset + size]
        if offset >= self._entry.size:
            return b""
        entry, content = await self._files.read(self._entry.path, offset, size)
        return content if entry == self._entry else b""

    async def aclose(self) -> None:
        """See `OpenFile.aclose`."""
        self._first = b""


async def _call(kernel: AskableKernel, session_id: str, operation: str, arguments: list[Any]) -> str:
    """What the module in the kernel answers; it is sent there when it is missing."""
    text = await _evaluate(kernel, _expression(session_id, operation, arguments))
    if text == "missing":
        await _evaluate(kernel, _installation(session_id))
        text = await _evaluate(kernel, _expression(session_id, operation, arguments))
    return text


async def _evaluate(kernel: AskableKernel, expression: str) -> str:
    for _ in range(_ABORTED_RETRIES):
        reply = await kernel.evaluate("", {"answer": expression})
        if reply.get("status") == "aborted":
            continue
        try:
            text = ast.literal_eval(reply["user_expressions"]["answer"]["data"]["text/plain"])
        except (LookupError, TypeError, ValueError, SyntaxError, MemoryError, RecursionError) as error:
            raise _nonsense() from error
        if isinstance(text, str):
            return text
    raise _nonsense()


def _expression(session_id: str, operation: str, arguments: list[Any]) -> str:
    return (
        f"(lambda modules: modules[{_AGENT_MODULE!r}].call(modules[{_FOLDER_MODULE!r}], {session_id!a}, "
        f"{operation!a}, {arguments!a}) if {_AGENT_MODULE!r} in modules else 'missing')"
        "(__import__('sys').modules)"
    )


def _installation(session_id: str) -> str:
    package = resources.files("interpreter.workspace")
    steps = []
    for module, file in ((_FOLDER_MODULE, "folder.py"), (_AGENT_MODULE, "agent.py")):
        source = (package / file).read_text("utf-8")
        steps.append(f"modules.__setitem__({module!r}, types.ModuleType({module!r}))")
        steps.append(f"exec({source!a}, modules[{module!r}].__dict__)")
    steps.append(f"modules[{_AGENT_MODULE!r}].enter({session_id!a})")
    return f"(lambda modules, types: ({', '.join(steps)}, 'ready')[-1])(__import__('sys').modules, __import__('types'))"


def _read_answer(text: str, read: Callable[[Any], T], making: bool) -> T:
    """The value of an answer, which the session's code may have forged: its form is checked."""
    try:
        answer = json.loads(text)
        if "value" in answer:
            return read(answer["value"])
        cause = _os_error(str(answer["error"]), int(answer["errno"] or 0))
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, binascii.Error) as error:
        raise _nonsense() from error
    raise file_error(cause, making=making) from cause


def _os_error(name: str, number: int) -> OSError:
    kinds = {kind.__name__: kind for kind in (folder.LeavesFolderError, folder.NotAFileError)}
    return kinds[name](number, "in the kernel") if name in kinds else OSError(number, "in the kernel")


def _entry(value: Any) -> folder.Entry:
    path, *numbers = value
    try:
        parse_path(path)
    except InterpreterError as error:
        raise ValueError("no path of a file") from error
    size, modified, changed, inode = (int(number) for number in numbers)
    if size < 0:
        raise ValueError("no size of a file")
    return folder.Entry(path, size, modified, changed, inode)


def _info(value: Any) -> FileInfo:
    return FileInfo.of(_entry(value))


def _nothing(value: Any) -> None:
    del value


def _read_piece(source: Path, offset: int) -> bytes:
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, CHUNK_BYTES, offset)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise file_error(error) from error


def _no_kernel() -> UnavailableError:
    return UnavailableError(
        "The session has no kernel now, and on this gateway files are reached through it; run code first.",
        code="no_kernel",
        retry_after=1,
    )


def _nonsense() -> UnavailableError:
    return UnavailableError(
        "The kernel did not answer for its files; restart it (or have gateway_workspace_path set).",
        code="files_not_shared",
    )
