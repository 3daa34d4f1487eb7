"""What takes long of a large message, done before it is folded. Pure, and for a thread."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from interpreter.messages import Message
from interpreter.outputs.bundles import measured

_DISPLAYS = frozenset({"display_data", "execute_result", "update_display_data"})
_MAX_PAYLOAD = 64  # items that are looked at


def prepared(message: Message) -> Message:
    """The message with all JSON in its displays and pages cleaned and measured, in steps that hold up nobody.

    `OutputFolder.feed` takes messages with and without it.
    """
    content = message.content
    if message.msg_type in _DISPLAYS:
        data, metadata = measured(content.get("data"), content.get("metadata"))
        return replace(message, content={**content, "data": data, "metadata": metadata})
    if message.msg_type == "execute_reply" and isinstance(payload := content.get("payload"), list):
        return replace(message, content={**content, "payload": [*map(_page, payload[:_MAX_PAYLOAD])]})
    return message


def _page(item: Any) -> Any:
    if not isinstance(item, Mapping) or "data" not in item:
        return item
    return {**item, "data": measured(item["data"], None)[0]}
