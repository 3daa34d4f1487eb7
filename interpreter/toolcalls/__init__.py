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
from interpreter.toolcalls.readable import best_text
from interpreter.toolcalls.reading import is_tool_name, read_call
from interpreter.toolcalls.replies import tool_messages
from interpreter.toolcalls.text import NO_OUTPUT, model_text, shorten, without_hints

__all__ = [
    "MAX_CALLS",
    "NO_OUTPUT",
    "TOOL_NAME",
    "Answer",
    "BadCall",
    "CallKind",
    "Dialect",
    "Invocation",
    "ToolCall",
    "answer_bad_call",
    "answer_run",
    "best_text",
    "is_tool_name",
    "model_text",
    "parse_tool_calls",
    "read_call",
    "shorten",
    "tool_definitions",
    "tool_messages",
    "without_hints",
]
