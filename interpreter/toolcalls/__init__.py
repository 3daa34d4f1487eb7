"""Tool calls in five dialects: schemas out, calls in, code out of calls, text and messages back. Pure."""

from interpreter.toolcalls.calls import (
    TOOL_NAME,
    Answer,
    BadCall,
    CallKind,
    Dialect,
    Invocation,
    ToolCall,
    answer_bad_call,
    answer_run,
)
from interpreter.toolcalls.definitions import tool_definitions
from interpreter.toolcalls.parsing import MAX_CALLS, parse_tool_calls
from interpreter.toolcalls.reading import is_tool_name, read_call
from interpreter.toolcalls.replies import tool_messages
from interpreter.toolcalls.text import model_text, shorten

__all__ = [
    "MAX_CALLS",
    "TOOL_NAME",
    "Answer",
    "BadCall",
    "CallKind",
    "Dialect",
    "Invocation",
    "ToolCall",
    "answer_bad_call",
    "answer_run",
    "is_tool_name",
    "model_text",
    "parse_tool_calls",
    "read_call",
    "shorten",
    "tool_definitions",
    "tool_messages",
]
