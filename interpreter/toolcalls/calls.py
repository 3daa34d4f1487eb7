"""The nouns of a tool call: what came in, what it asks for, what goes back."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from interpreter.models import Run, RunStatus
from interpreter.toolcalls.text import model_text

TOOL_NAME = "execute_python"


class Dialect(StrEnum):
    """Whose shapes a call has, and so its answer."""

    OPENAI_CHAT = "openai-chat"
    OPENAI_RESPONSES = "openai-responses"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"
    MCP = "mcp"


class CallKind(StrEnum):
    """How the call carries its arguments.

    ``FUNCTION``: a JSON object, or the text of one. ``CUSTOM``: free text, OpenAI's custom tools.
    ``LEGACY``: Chat Completions' ``function_call``, the form before ``tool_calls``; it has no id.
    """

    FUNCTION = "function"
    CUSTOM = "custom"
    LEGACY = "legacy"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as a model made it; nothing about its arguments has been checked.

    ``index`` is its place among the calls of the request. ``call_id`` is never empty: where the
    call had none (``id_given`` is false) it was made from the call's place and content.
    """

    dialect: Dialect
    call_id: str
    name: str
    arguments: Any
    index: int
    kind: CallKind = CallKind.FUNCTION
    id_given: bool = True


@dataclass(frozen=True, slots=True)
class Invocation:
    """What a call asks for: the code, and a timeout in seconds or None."""

    code: str
    timeout: float | None


@dataclass(frozen=True, slots=True)
class BadCall:
    """Why a call can't be run, written for the model: what is wrong and how to call."""

    message: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one call; ``run`` is None when nothing ran."""

    call: ToolCall
    text: str
    is_error: bool
    run: Run | None


def answer_run(call: ToolCall, run: Run, max_bytes: int, *, shows_rich: bool = True) -> Answer:
    """The answer of a run: an error unless its status is ``ok``. The text is `model_text`'s."""
    text = model_text(run, max_bytes, shows_rich=shows_rich)
    return Answer(call, text, is_error=run.status is not RunStatus.OK, run=run)


def answer_bad_call(call: ToolCall, bad: BadCall) -> Answer:
    """The answer to a call that could not be read."""
    return Answer(call, bad.message, is_error=True, run=None)
