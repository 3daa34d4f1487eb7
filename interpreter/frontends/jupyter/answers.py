"""Answers to all requests but ``execute_request``: from the kernel when it is free, else what is known.

Sources: "Messaging in Jupyter" (jupyter-client.readthedocs.io). Completion, inspection and the
kernel's description are asked of IPython between runs; nothing of the client's is executed for them.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from interpreter.api.services import Services
from interpreter.errors import InterpreterError
from interpreter.frontends.asking import ask
from interpreter.messages import PROTOCOL_VERSION
from interpreter.models import JSON, Principal, SessionInfo
from interpreter.sessions import Session

MAX_HISTORY = 1000
_KERNEL = "__import__('IPython').get_ipython().kernel"
_INFO_FIELDS = ("implementation", "implementation_version", "language_info", "banner", "help_links")

Answer = Callable[[Services, Principal, Session, Mapping[str, Any]], Awaitable[JSON]]


async def answer(
    services: Services, principal: Principal, session: Session, msg_type: str, content: Mapping[str, Any]
) -> JSON | None:
    """The content of the reply; None for a message that has none. Never raises what the kernel does."""
    known = _ANSWERS.get(msg_type)
    if known is None:
        if not msg_type.endswith("_request"):
            return None
        sentence = f"{msg_type} is not available here."
        return {"status": "error", "ename": "NotSupportedError", "evalue": sentence, "traceback": [sentence]}
    try:
        return {"status": "ok", **await known(services, principal, session, content)}
    except InterpreterError as error:
        ename = type(error).__name__
        return {"status": "error", "ename": ename, "evalue": error.message, "traceback": [error.message]}


def describe_kernel(info: SessionInfo) -> JSON:
    """The content of a ``kernel_info_reply`` as far as it is known without the kernel."""
    language = info.language or "python"
    is_python = language == "python"
    described: JSON = {"name": language, "version": "", "mimetype": "text/plain", "file_extension": ".txt"}
    if is_python:
        described |= {
            "version": "3",
            "mimetype": "text/x-python",
            "file_extension": ".py",
            "pygments_lexer": "ipython3",
            "codemirror_mode": {"name": "ipython", "version": 3},
            "nbconvert_exporter": "python",
        }
    return {
        "protocol_version": PROTOCOL_VERSION,
        "implementation": "ipython" if is_python else info.kernel_name,
        "implementation_version": "",
        "language_info": described,
        "banner": f"{info.kernel_name}: each run is recorded.",
        "help_links": [],
        "debugger": False,
        "supported_features": [],
    }


async def _kernel_info(_: Services, __: Principal, session: Session, ___: Mapping[str, Any]) -> JSON:
    known = describe_kernel(session.info)
    told = await ask(session, f"{_KERNEL}.kernel_info")
    if isinstance(told, dict) and isinstance(told.get("language_info"), dict):
        known |= {name: told[name] for name in _INFO_FIELDS if name in told}
    return known


async def _complete(_: Services, __: Principal, session: Session, content: Mapping[str, Any]) -> JSON:
    code, position = _code(content)
    told = await ask(session, f"{_KERNEL}.do_complete({code!a}, {position})")
    if isinstance(told, dict) and isinstance(told.get("matches"), list):
        return told
    return {"matches": [], "cursor_start": position, "cursor_end": position, "metadata": {}}


async def _inspect(_: Services, __: Principal, session: Session, content: Mapping[str, Any]) -> JSON:
    code, position = _code(content)
    level = 1 if content.get("detail_level") == 1 else 0
    told = await ask(session, f"{_KERNEL}.do_inspect({code!a}, {position}, {level})")
    if isinstance(told, dict) and isinstance(told.get("data"), dict):
        return told
    return {"found": False, "data": {}, "metadata": {}}


async def _is_complete(_: Services, __: Principal, session: Session, content: Mapping[str, Any]) -> JSON:
    code, _position = _code(content)
    told = await ask(session, f"{_KERNEL}.do_is_complete({code!a})")
    return told if isinstance(told, dict) and "status" in told else {"status": "unknown"}


async def _history(
    services: Services, principal: Principal, session: Session, content: Mapping[str, Any]
) -> JSON:
    """The session's runs, from the record."""
    ids = await services.runs.list_ids(principal, session.id)
    wanted = content.get("n")
    count = wanted if isinstance(wanted, int) and 0 <= wanted <= MAX_HISTORY else MAX_HISTORY
    shown = [await services.runs.get(principal, run_id) for run_id in (ids[-count:] if count else [])]
    if content.get("output"):
        return {"history": [[0, run.number, [run.code, run.folded.result]] for run in shown]}
    return {"history": [[0, run.number, run.code] for run in shown]}


async def _comm_info(*_: object) -> JSON:
    return {"comms": {}}


async def _interrupt(
    services: Services, principal: Principal, session: Session, _: Mapping[str, Any]
) -> JSON:
    services.runs.interrupt(principal, session.id)
    return {}


def _code(content: Mapping[str, Any]) -> tuple[str, int]:
    """The code, and the cursor in it (its end when there is none)."""
    code, position = content.get("code"), content.get("cursor_pos")
    code = code if isinstance(code, str) else ""
    if isinstance(position, int) and not isinstance(position, bool) and 0 <= position <= len(code):
        return code, position
    return code, len(code)


_ANSWERS: Mapping[str, Answer] = {
    "kernel_info_request": _kernel_info,
    "complete_request": _complete,
    "inspect_request": _inspect,
    "is_complete_request": _is_complete,
    "history_request": _history,
    "comm_info_request": _comm_info,
    "interrupt_request": _interrupt,
}
