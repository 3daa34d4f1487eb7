"""What an iopub message tells of its kernel's activity: pure functions on the parts of a message.

The rules are those of ``MappingKernelManager.start_watching_activity`` (jupyter_server), which
subscribes to each kernel a second time and reads all its output once more to apply them.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from interpreter.jsontext import load_utf8

GATEWAY_STATES = ("dead", "restarting")
"""States that only the gateway tells of."""
_MAX_PART_BYTES = 65536  # no real header or status is larger


def activity(parts: Sequence[bytes], is_tracked: Callable[[str], bool], state: str) -> tuple[bool, str]:
    """Whether the message counts as activity, and the kernel's ``execution_state`` after it.

    `parts` as in `bounding`; `is_tracked` says whether a message type is what a user does; `state` is
    the kernel's so far. A message that is no such thing, or says what only the gateway does, changes nothing.
    """
    if max(map(len, parts[:2])) > _MAX_PART_BYTES:
        return False, state
    try:
        msg_type = _text(_load(parts[0]).get("msg_type"))
        if state == "busy" and msg_type != "status":
            return True, state  # whatever a busy kernel says is activity, whoever asked
        parent_type = _read(parts[1], "msg_type")
        active = is_tracked(msg_type) or is_tracked(parent_type) or state == "busy"
        if msg_type != "status":
            return active, state
        if len(parts[3]) > _MAX_PART_BYTES:
            return False, state
        told = _read(parts[3], "execution_state")
    except (ValueError, AttributeError, IndexError, RecursionError):
        return False, state
    if told in GATEWAY_STATES:
        return False, state
    if is_tracked(parent_type):
        return active, told
    return active, "idle" if state == "starting" and told != "starting" else state


@lru_cache(maxsize=64)  # all messages of a run have the same parent, and most states are one of two
def _read(part: bytes, name: str) -> str:
    return _text(_load(part).get(name))


def _load(part: bytes) -> Any:
    return load_utf8(part)[0]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
