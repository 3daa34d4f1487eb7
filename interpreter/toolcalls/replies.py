"""The answers to calls as messages that the client appends to its conversation, in the calls' dialect."""

from collections.abc import Sequence
from typing import Any

from interpreter.models import JSON
from interpreter.toolcalls.calls import Answer, CallKind, Dialect
from interpreter.toolcalls.displays import images

_MAX_IMAGE_BYTES = 1024**2  # base64 of all images of one request's answers


def tool_messages(dialect: Dialect, answers: Sequence[Answer]) -> list[JSON]:
    """The messages that answer the calls, in the order of ``answers``.

    - ``openai-chat``: one ``tool`` message per call (``function`` for the legacy form), content a string.
    - ``openai-responses``: one ``function_call_output`` item per call, output a string.
    - ``anthropic``: one user message with all ``tool_result`` blocks, as the API demands.
    - ``gemini``: one content of role ``user`` with all ``functionResponse`` parts.
    - ``mcp``: one ``tools/call`` result per call.

    Anthropic's and MCP's results hold small images beside the text; text itself never holds base64.
    """
    if dialect is Dialect.OPENAI_CHAT:
        return [_chat_message(answer) for answer in answers]
    if dialect is Dialect.OPENAI_RESPONSES:
        return [_responses_item(answer) for answer in answers]
    if dialect is Dialect.GEMINI:
        return [{"role": "user", "parts": [_gemini_part(answer) for answer in answers]}] if answers else []
    looks = _images(answers)
    if dialect is Dialect.MCP:
        return [_mcp_result(a, look) for a, look in zip(answers, looks, strict=True)]
    blocks = [_anthropic_block(a, look) for a, look in zip(answers, looks, strict=True)]
    return [{"role": "user", "content": blocks}] if blocks else []


def _chat_message(answer: Answer) -> JSON:
    if answer.call.kind is CallKind.LEGACY:
        return {"role": "function", "name": answer.call.name, "content": answer.text}
    return {"role": "tool", "tool_call_id": answer.call.call_id, "content": answer.text}


def _responses_item(answer: Answer) -> JSON:
    custom = answer.call.kind is CallKind.CUSTOM
    return {
        "type": "custom_tool_call_output" if custom else "function_call_output",
        "call_id": answer.call.call_id,
        "output": answer.text,
    }


def _gemini_part(answer: Answer) -> JSON:
    """`output` and `error` are the keys that Gemini's FunctionResponse gives a meaning to."""
    response: JSON = {"name": answer.call.name}
    if answer.call.id_given:  # Gemini's own calls often have none, and an unknown one is refused
        response["id"] = answer.call.call_id
    response["response"] = {"error" if answer.is_error else "output": answer.text}
    return {"functionResponse": response}


def _images(answers: Sequence[Answer]) -> list[list[tuple[str, str]]]:
    """Per answer the images to show, as MIME type and base64. Errors show none: Anthropic refuses that."""
    left = _MAX_IMAGE_BYTES
    looks: list[list[tuple[str, str]]] = []
    for answer in answers:
        found = images(answer.run.folded.outputs, left) if answer.run and not answer.is_error else []
        left -= sum(len(image.data) for image in found)
        looks.append([(image.mime_type, image.data) for image in found])
    return looks


def _anthropic_block(answer: Answer, look: Sequence[tuple[str, str]]) -> JSON:
    content: list[JSON] = [{"type": "text", "text": answer.text}]
    content += [
        {"type": "image", "source": {"type": "base64", "media_type": mime_type, "data": data}}
        for mime_type, data in look
    ]
    return {
        "type": "tool_result",
        "tool_use_id": answer.call.call_id,
        "content": content,
        "is_error": answer.is_error,
    }


def _mcp_result(answer: Answer, look: Sequence[tuple[str, str]]) -> JSON:
    content: list[JSON] = [{"type": "text", "text": answer.text}]
    content += [{"type": "image", "mimeType": mime_type, "data": data} for mime_type, data in look]
    result: JSON = {"content": content, "isError": answer.is_error}
    if answer.run is not None:
        result["structuredContent"] = _structured(answer)
    return result


def _structured(answer: Answer) -> JSON:
    """The same for programs; with the text, as some clients show a model nothing else."""
    run = answer.run
    if run is None:
        return {"output": answer.text}
    files: list[dict[str, Any]] = [file.as_json() for file in run.files]
    return {
        "session_id": run.session_id,
        "run_id": run.id,
        "status": run.status.value,
        "output": answer.text,
        "files": files,
    }
