"""What keeps the log from being flooded: code in a session can bring about some warnings as often as it likes."""

import logging
import time

PERIOD = 60.0  # seconds
MOST = 200  # warnings and errors of one kind in that time; the lines of the gateway's errors are of one kind


class Repetitions(logging.Filter):
    """Of warnings and errors that the same line of code writes, lets so many pass in a period; the last one says so."""

    def __init__(self) -> None:
        super().__init__()
        self._begin = 0.0
        self._counts: dict[tuple[str, int], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is written."""
        if record.levelno < logging.WARNING:
            return True
        now = time.monotonic()
        if now >= self._begin + PERIOD:
            self._begin = now
            self._counts.clear()
        kind = record.pathname, record.lineno
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        if count == MOST:
            record.msg = (
                f"{record.getMessage()} (More of this kind is left out for {PERIOD:g} seconds at most.)"
            )
            record.args = ()
        return count <= MOST
