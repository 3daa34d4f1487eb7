"""System calls that are many in one (ioctl, prctl, options of sockets): what may be asked for, all else is not there.

Each Linux brings more of them, and one of those may hold memory that is on nobody's account. Programs can do
without what their system does not know. These lists hold what interpreters, compilers, shells and network libraries
ask for. They are BPF in front of what libseccomp makes, which knows no "none of these". (Pure.)
"""

import errno
import struct
import sys
from collections.abc import Callable, Collection, Mapping

_SOL_IP, _SOL_SOCKET, _SOL_TCP, _SOL_UDP, _SOL_IPV6, _SOL_NETLINK = 0, 1, 6, 17, 41, 270

# Options of sockets, by level. Not among them: filters, which share their room with all processes of a host; time
# stamps, UDP's GRO and encapsulation, for which the system rewrites itself while all processors wait; busy polling;
# pages of the sender's or the receiver's that the network keeps, or shows (SO_ZEROCOPY, TCP_ZEROCOPY_RECEIVE); TLS within the
# kernel (TCP_ULP); signatures of TCP, for which a program of the host's looks for the module of a cipher.
SOCKET_OPTIONS: Mapping[int, Collection[int]] = {
    _SOL_IP: (1, 2, 8, 10, 11, 12, 13, 14, 15, 24, 32, 33, 34, 35, 36, 39, 40, 49, 50),
    # SO_DEBUG, REUSEADDR, TYPE, ERROR, DONTROUTE, BROADCAST, SNDBUF, RCVBUF, KEEPALIVE, OOBINLINE, PRIORITY, LINGER,
    # REUSEPORT, PASSCRED, PEERCRED, RCVLOWAT, SNDLOWAT, RCVTIMEO, SNDTIMEO, BINDTODEVICE, PEERNAME, ACCEPTCONN, PEERSEC,
    # PROTOCOL, DOMAIN, RXQ_OVFL, PEEK_OFF, MAX_PACING_RATE, INCOMING_CPU, INCOMING_NAPI_ID, PEERGROUPS, both new TIMEO
    _SOL_SOCKET: (
        *range(1, 11), 12, 13, *range(15, 22), 25, 28, 30, 31, 38, 39, 40, 42, 47, 49, 56, 59, 66, 67,
    ),
    # TCP_NODELAY to CONGESTION, USER_TIMEOUT, FASTOPEN, NOTSENT_LOWAT, FASTOPEN_CONNECT
    _SOL_TCP: (*range(1, 14), 18, 23, 25, 30),
    _SOL_UDP: (1, 103),  # UDP_CORK, UDP_SEGMENT
    _SOL_IPV6: (1, *range(16, 22), 23, 24, 25, 26, 29, 49, 50, 51, 52, 66, 67, 70, 78),
    _SOL_NETLINK: (1, 2, 3, 10, 11, 12),
}  # fmt: skip

# prctl: PDEATHSIG, DUMPABLE, KEEPCAPS, NAME, GET_SECCOMP, CAPBSET, GET_TSC, GET_SECUREBITS, TIMERSLACK, CHILD_SUBREAPER,
# NO_NEW_PRIVS, THP_DISABLE, CAP_AMBIENT, GET_SPECULATION_CTRL; of 64-bit ARM: vectors, keys and tags of pointers
PROCESS_OPTIONS = (
    1, 2, 3, 4, 7, 8, 15, 16, 21, 23, 24, 25, 27, 29, 30, 36, 37, 38, 39, 41, 42, 47, 52,
    50, 51, 54, 55, 56, 60, 61, 63, 64,
)  # fmt: skip
# arch_prctl: the registers FS and GS, CPUID, the matrix registers (AMX) of a process itself, shadow stacks
MACHINE_OPTIONS = (*range(0x1001, 0x1005), 0x1011, *range(0x1021, 0x1024), *range(0x5001, 0x5006))

# ioctl: of terminals, but not those that type for others (TIOCSTI, TIOCLINUX) or look for a module (TIOCSETD);
# of what is read and written; of network devices, to look only; of files their flags. Not those that reserve,
# exchange or compare pieces of files, as by file systems that can't.
REQUESTS = (
    *range(0x5401, 0x5412), 0x5413, 0x5414, 0x5415, 0x541B, 0x5420, 0x5421, 0x5422, 0x5424, 0x5425, 0x5429,
    0x802C542A, 0x402C542B, 0x402C542C, 0x402C542D,  # TCGETS2, TCSETS2 and so on
    0x80045430, 0x40045431, 0x80045432, 0x40045436, 0x80045438, 0x80045439, 0x80045440, 0x5441,  # TIOCGPTN …
    0x5450, 0x5451, 0x5452, 0x5460,  # FIONCLEX, FIOCLEX, FIOASYNC, FIOQSIZE
    *range(0x8901, 0x8906),  # FIOSETOWN … SIOCATMARK
    0x8910, 0x8912, 0x8913, 0x8915, 0x8917, 0x8919, 0x891B, 0x891D, 0x8921, 0x8927, 0x8933, 0x8942, 0x8946, 0x894B, 0x8970,
    0x80086601,  # FS_IOC_GETFLAGS
)  # fmt: skip

# Of BPF: instructions, and where in the description of a system call its parts are
_LOAD, _GO, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x05, 0x15, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_REFUSE = 0x0005_0000  # SECCOMP_RET_ERRNO
_LOWER_HALF = 0 if sys.byteorder == "little" else 4  # of an argument: the system looks at no more of these

_Steps = list[tuple[int, int, int, int]]


def requests_filter(architecture: int, number: Callable[[str], int]) -> bytes:
    """BPF that refuses what is not in the lists above, and leaves all else to what follows it.

    ``number`` tells that of a system call, negative: this machine has none.
    """
    steps: _Steps = []
    for name, check in (
        ("ioctl", _one_of(REQUESTS, 1, errno.ENOTTY)),
        ("prctl", _one_of(PROCESS_OPTIONS, 0, errno.EINVAL)),
        ("arch_prctl", _one_of(MACHINE_OPTIONS, 0, errno.EINVAL)),
        ("setsockopt", _one_of_a_level()),
        ("getsockopt", _one_of_a_level()),
    ):
        if number(name) >= 0:
            steps += [(_LOAD, 0, 0, _NUMBER), *_only_if(number(name), check)]
    steps = [(_LOAD, 0, 0, _ARCHITECTURE), *_only_if(architecture, steps)]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _one_of(values: Collection[int], argument: int, error: int) -> _Steps:
    """Goes on behind these steps if the argument is one of the values."""
    left = len(values)
    jumps = [(_JUMP_IF_EQUAL, left - at, 0, value) for at, value in enumerate(values)]
    return [_load(argument), *jumps, (_RETURN, 0, 0, _REFUSE | error)]


def _one_of_a_level() -> _Steps:
    steps: _Steps = [(_RETURN, 0, 0, _REFUSE | errno.ENOPROTOOPT)]
    for level, names in SOCKET_OPTIONS.items():
        of_level = [*_one_of(names, 2, errno.ENOPROTOOPT), (_GO, 0, 0, len(steps))]
        steps = [(_JUMP_IF_EQUAL, 0, len(of_level), level), *of_level, *steps]
    return [_load(1), *steps]


def _only_if(value: int, steps: _Steps) -> _Steps:
    return [(_JUMP_IF_EQUAL, 1, 0, value), (_GO, 0, 0, len(steps)), *steps]


def _load(argument: int) -> tuple[int, int, int, int]:
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * argument + _LOWER_HALF)
