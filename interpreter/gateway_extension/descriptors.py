"""Descriptors that a peer sends along with bytes (``SCM_RIGHTS``): refused, or closed where it may take long.

Who receives and does not take them closes them. The last reference to a socket that lingers, or to a file without a
name, can take as long as the sender likes to close, and the event loop would wait for it.
"""

import array
import os
import socket
import threading

SO_PASSRIGHTS = 83
"""Of Linux 6.16: whether a Unix socket takes descriptors (``include/uapi/asm-generic/socket.h``)."""
_MAX_DESCRIPTORS = 253
"""``SCM_MAX_FD``: of one message."""
_ANCILLARY_BYTES = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)


class DescriptorsSentError(Exception):
    """The peer has sent descriptors; they are on their way out."""


def refuse_descriptors(one: socket.socket) -> bool:
    """Whoever sends descriptors to this Unix socket, or to one that it accepts, gets an error.

    To be called before it connects or listens. False: the system can't do that.
    """
    try:
        one.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
    except OSError:
        return False
    return True


def takes_descriptors(one: socket.socket) -> bool:
    """Whether a peer can send descriptors to this socket."""
    if one.family != socket.AF_UNIX:
        return False
    try:
        return bool(one.getsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS))
    except OSError:
        return True


def receive(one: socket.socket, size: int) -> bytes:
    """As ``recv``. Raises DescriptorsSentError, OSError."""
    data, ancillary, _, _ = one.recvmsg(size, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
    if not ancillary:
        return data
    sent = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            sent.frombytes(content[: len(content) - len(content) % sent.itemsize])
    _in_a_thread(*sent)
    raise DescriptorsSentError


def close(one: socket.socket) -> None:
    """Closes a socket in which descriptors may wait that nobody has received."""
    _in_a_thread(one.detach())


def _in_a_thread(*descriptors: int) -> None:
    """One may block for ever, and must not keep the process from its end."""
    threading.Thread(target=_close_all, args=(descriptors,), name="closing", daemon=True).start()


def _close_all(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
