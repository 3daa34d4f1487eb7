"""ZeroMQ's framing: the messages in what a kernel sends, without what is too large, and the bytes of one for it. Pure.

After a greeting of 64 bytes come frames: a byte of flags, the size in one or eight bytes, and as many bytes. A
message is a row of frames of which all but the last have the flag ``MORE``. Commands are frames of their own; the
first, ``READY``, says what kind of socket speaks. A subscription is a message, too: a 1 and the topic.

Source of the protocol: https://rfc.zeromq.org/spec/23/ (ZMTP 3.0).
"""

from collections.abc import Iterable, Sequence

MORE, LONG, COMMAND = 1, 2, 4
PART_BYTES = 128
"""What a part takes of memory beside its content."""
MAX_PARTS = 4096
"""Of a message. The service takes no more of one either (`interpreter.messages`), and each takes time."""
SMALL_BYTES = 1024
"""Of a part. So much stays of a message that has to make room: headers are smaller."""
MAX_COMMAND_BYTES = 4096
MAX_COMMANDS = 100
"""Of a connection. A kernel's side says one, at the start."""
LEFT_OUT = b'{"interpreter_left_out":'
"""How a part begins that stands for a larger one; its size and a brace follow."""
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
"""ZMTP 3.0, without encryption."""
SUBSCRIPTION = b"\x00\x01\x01"
"""To all topics."""
_READY = b"\x05READY"

Message = tuple[list[bytes], int]
"""Parts, and their `cost`."""


class ProtocolError(Exception):
    """What comes is not of the protocol, or no kernel would send it."""


def cost(sizes: Iterable[int]) -> int:
    """About how many bytes of memory a message with parts of these sizes takes."""
    return sum(size + PART_BYTES for size in sizes)


def left_out(part: bytes) -> int:
    """The size of what such a part stands for; 0 for any other."""
    number = part[len(LEFT_OUT) : -1]
    return int(number) if len(part) < 64 and part.startswith(LEFT_OUT) and number.isdigit() else 0


def without_large(parts: list[bytes]) -> list[bytes]:
    """The message without its large parts; a note stands for each."""
    return [_note(len(part)) if len(part) > SMALL_BYTES else part for part in parts]


def ready(socket_type: bytes, identity: bytes | None = None) -> bytes:
    """The command with which a socket of this type begins, as ``b"DEALER"``."""
    properties = {b"Socket-Type": socket_type} | ({} if identity is None else {b"Identity": identity})
    told = (bytes((len(n),)) + n + len(v).to_bytes(4, "big") + v for n, v in properties.items())
    return _frame(COMMAND, _READY + b"".join(told))


def framed(parts: "Sequence[bytes | memoryview]") -> bytes:
    """A message as it is sent."""
    wholes = [part if isinstance(part, bytes) else bytes(part) for part in parts]
    return b"".join([*(_frame(MORE, part) for part in wholes[:-1]), _frame(0, wholes[-1])])


def _frame(flags: int, content: bytes) -> bytes:
    size = len(content)
    if size < 256:
        return bytes((flags, size)) + content
    return bytes((flags | LONG,)) + size.to_bytes(8, "big") + content


class Framing:
    """Reads one connection. Of a message more than ``max_message_bytes`` (a `cost`) is left out."""

    def __init__(self, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes
        self._begin = b""  # of the greeting, or of a frame whose size is not known yet
        self.is_greeted = self.is_ready = False
        """What the other side has said so far."""
        self.left = 0
        """Bytes of the present frame that are still to come."""
        self._content = (
            bytearray()
        )  # of the present frame, as far as it has come; a list would take more than that
        self._flags = self._size = 0  # of the present frame
        self._keeps = True
        self._parts: list[bytes] = []  # of the present message
        self._count = 0
        self._cost = 0
        self._untold = 0  # bytes of the present message that were left out without a note
        self._commands = 0

    @property
    def held(self) -> int:
        """About how many bytes of memory the present message takes so far."""
        return self._cost + len(self._content)

    def make_room(self) -> None:
        """Leaves out what is large of the present message."""
        self._parts = without_large(self._parts)
        self._cost = cost(map(len, self._parts))
        if len(self._content) > MAX_COMMAND_BYTES:
            self._content = bytearray()
            self._keeps = False
            self._add(_note(self._size))

    def take(self, data: bytes) -> list[Message]:
        """The messages that are whole with this. Raises `ProtocolError`."""
        if self._begin:
            data = self._begin + data
            self._begin = b""
        place = 0
        if not self.is_greeted:
            _check_greeting(data[: len(GREETING)])
            if len(data) < len(GREETING):
                self._begin = data
                return []
            self.is_greeted = True
            place = len(GREETING)
        messages: list[Message] = []
        end = len(data)
        while place < end:
            if not self.left:
                flags = data[place]
                content = place + (9 if flags & LONG else 2)
                if content > end:
                    self._begin = data[place:]
                    break
                self.left = int.from_bytes(data[place + 1 : content], "big")
                self._decide(flags)
                place = content
            upto = min(end, place + self.left)
            self.left -= upto - place
            if not self.left:
                self._end_frame(data[place:upto], messages)
            elif self._keeps:
                self._content += data[place:upto]
            place = upto
        return messages

    def _decide(self, flags: int) -> None:
        """Whether the frame that begins is kept."""
        self._flags, self._size = flags, self.left
        if flags & COMMAND:
            self._commands += 1
            if flags & MORE or self.left > MAX_COMMAND_BYTES or self._commands > MAX_COMMANDS or self._count:
                raise ProtocolError
            self._keeps = True
            return
        self._count += 1
        if self._count > MAX_PARTS or not self.is_ready:
            raise ProtocolError
        room = self._max_message_bytes - self._cost
        # What was left out without a note has to be told by the last part, whatever that one is.
        ends = not flags & MORE
        self._keeps = self.left + PART_BYTES <= room and not (ends and self._untold)
        if self._keeps:
            return
        if ends or room > 2 * PART_BYTES:
            self._add(_note(self.left + self._untold))
            self._untold = 0
        else:
            self._untold += self.left

    def _add(self, part: bytes) -> None:
        self._parts.append(part)
        self._cost += len(part) + PART_BYTES

    def _end_frame(self, content: bytes, messages: list[Message]) -> None:
        if self._keeps:
            if self._content:
                self._content += content
                content = bytes(self._content)
                self._content = bytearray()
            if self._flags & COMMAND:
                self.is_ready = self.is_ready or content.startswith(_READY)
                return
            self._add(content)
        if not self._flags & MORE:
            messages.append((self._parts, self._cost))
            self._parts = []
            self._count = self._cost = self._untold = 0


def _note(size: int) -> bytes:
    return b"%s%d}" % (LEFT_OUT, size)


def _check_greeting(begin: bytes) -> None:
    """ZMTP 3 without encryption: the framings of older versions, which a peer could ask for, are others."""
    wanted = {0: 0xFF, 9: 0x7F, 10: 3} | dict(enumerate(b"NULL".ljust(20, b"\0"), start=12))
    for place, value in wanted.items():
        if place < len(begin) and begin[place] != value:
            raise ProtocolError
