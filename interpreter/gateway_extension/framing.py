"""ZeroMQ's framing, as it passes: messages that are too large lose what is too much. Pure.

After a greeting of 64 bytes come frames: a byte of flags, the size in one or eight bytes, and as many bytes. A
message is a row of frames of which all but the last have the flag ``MORE``. Commands are frames of their own.
"""

from collections.abc import Callable, Iterable

GREETING_BYTES = 64
MORE, LONG, COMMAND = 1, 2, 4
PART_BYTES = 128
"""What a part takes of memory beside its content."""
MAX_PARTS = 4096
"""Of a message. The service takes no more of one either (`interpreter.messages`), and each takes time."""
MAX_COMMAND_BYTES = 4096
MAX_COMMANDS = 100
"""Of a connection. Two kernels' sides say one each, at the start."""
LEFT_OUT = b'{"interpreter_left_out":'
"""How a part begins that stands for a larger one; its size and a brace follow."""


class ProtocolError(Exception):
    """What comes is not of the protocol, or no kernel would send it."""


def cost(sizes: Iterable[int]) -> int:
    """About how many bytes of memory a message with parts of these sizes takes."""
    return sum(size + PART_BYTES for size in sizes)


def left_out(part: bytes) -> int:
    """The size of what such a part stands for; 0 for any other."""
    number = part[len(LEFT_OUT) : -1]
    return int(number) if len(part) < 64 and part.startswith(LEFT_OUT) and number.isdigit() else 0


class Framing:
    """Follows one connection. ``on_message`` gets the `cost` of each message as it was passed on."""

    def __init__(self, max_message_bytes: int, on_message: Callable[[int], None]) -> None:
        self._max_message_bytes = max_message_bytes
        self._on_message = on_message
        self._greeting = b""
        self._head = b""  # the beginning of a frame whose size is not known yet
        self.left = 0
        """Bytes of the present frame that are still to come."""
        self._keeps = True  # whether they are passed on
        self._ends = False  # whether the message ends with them
        self._untold = 0  # bytes of the present message that were left out without a note
        self._passed = 0  # cost of the present message so far
        self._parts = 0  # of the present message so far
        self._commands = 0

    def passed(self, data: bytes) -> bytes:
        """What is to be passed on when this has come. Raises `ProtocolError`."""
        out: list[bytes | memoryview] = []
        view = memoryview(data)
        if len(self._greeting) < GREETING_BYTES:
            begin = view[: GREETING_BYTES - len(self._greeting)]
            self._greeting += begin
            _check_greeting(self._greeting)
            out.append(begin)
            view = view[len(begin) :]
        while view:
            if self.left:
                part = view[: self.left]
                view = view[len(part) :]
                self.left -= len(part)
                if self._keeps:
                    out.append(part)
            else:
                view = self._begin(view, out)
            if not self.left and self._ends:
                self._ends, self._untold, self._parts = False, 0, 0
                size, self._passed = self._passed, 0
                self._on_message(size)
        # A part of what came that is as long as it is the whole; a frame's head that was kept back is not.
        whole = len(out) == 1 and isinstance(out[0], memoryview) and len(out[0]) == len(data)
        return data if whole else b"".join(out)

    def _begin(self, view: memoryview, out: list[bytes | memoryview]) -> memoryview:
        """Reads a frame's flags and size, and decides on it."""
        had = len(self._head)
        flags = self._head[0] if had else view[0]
        needed = 9 if flags & LONG else 2
        head = self._head + bytes(view[: needed - had])
        view = view[len(head) - had :]
        if len(head) < needed:
            self._head = head
            return view
        self._head = b""
        self.left = int.from_bytes(head[1:], "big")
        self._decide(flags, head, out)
        return view

    def _decide(self, flags: int, head: bytes, out: list[bytes | memoryview]) -> None:
        if flags & COMMAND:
            self._commands += 1
            if flags & MORE or self.left > MAX_COMMAND_BYTES or self._commands > MAX_COMMANDS:
                raise ProtocolError
            self._keeps = True
            out.append(head)
            return
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise ProtocolError
        self._ends = not flags & MORE
        room = self._max_message_bytes - self._passed
        # What was left out without a note has to be told by the last part, whatever that one is.
        self._keeps = self.left + PART_BYTES <= room and not (self._ends and self._untold)
        if self._keeps:
            self._passed += self.left + PART_BYTES
            out.append(head)
        elif self._ends or room > 2 * PART_BYTES:
            note = b"%s%d}" % (LEFT_OUT, self.left + self._untold)
            self._untold = 0
            self._passed += len(note) + PART_BYTES
            out.append(bytes((flags & MORE, len(note))) + note)
        else:
            self._untold += self.left


def _check_greeting(begin: bytes) -> None:
    """ZMTP 3 without encryption: the framings of older versions, which a peer could ask for, are others."""
    wanted = {0: 0xFF, 9: 0x7F, 10: 3} | dict(enumerate(b"NULL".ljust(20, b"\0"), start=12))
    for place, value in wanted.items():
        if place < len(begin) and begin[place] != value:
            raise ProtocolError
