"""Message ids tell when messages of a kernel were lost on the way. Pure.

jupyter_client numbers what a process sends on all channels together: ``<session>_<pid>_<n>``. Other
servers may use other ids; then nothing is noticed.
"""

import re

from interpreter.messages import Message

_OUR_ID = re.compile(r"[0-9a-f]{32}")  # the form of `messages.new_msg_id`


def origin_of(message: Message) -> str | None:
    """The sender's part of a message id, None when it has another form."""
    numbered = _numbered(message)
    return numbered[0] if numbered else None


def _numbered(message: Message) -> tuple[str, int] | None:
    origin, _, number = message.msg_id.rpartition("_")
    return (origin, int(number)) if "_" in origin and number.isdecimal() and len(number) < 19 else None


class MessageCount:
    """What of a kernel's messages arrived, since it was made."""

    def __init__(self) -> None:
        self._origin: str | None = None
        self._first = 0
        self._last = 0
        self._seen = 0
        self._unseen_replies = 0

    def see(self, message: Message) -> None:
        """Count a message, if it is of the process that spoke first."""
        numbered = _numbered(message)
        if numbered is None:
            return
        origin, number = numbered
        if self._origin is None:
            self._origin, self._first, self._last = origin, number, number
        elif origin != self._origin:
            return
        self._first, self._last = min(self._first, number), max(self._last, number)
        self._seen += 1
        if message.execution_state == "idle" and not _OUR_ID.fullmatch(message.parent_id):
            self._unseen_replies += 1  # what answers another client goes to that client only

    @property
    def missing(self) -> int:
        """How many messages between the first and the last did not arrive."""
        if not self._seen:
            return 0
        return max(0, self._last - self._first + 1 - self._seen - self._unseen_replies)
