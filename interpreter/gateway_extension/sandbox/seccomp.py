"""The system calls that a data-analysis kernel never needs, refused (libseccomp makes the bytecode).

The lists follow Docker's default profile and systemd's RestrictSUIDSGID and RestrictAddressFamilies.
"""

import errno
import functools
import io
import os
import tempfile
from typing import Any

from interpreter.gateway_extension.sandbox.requests import requests_filter

# Refused with EPERM, like a missing capability. System V memory, queues and semaphores would belong to no process
# (those of multiprocessing are POSIX's). Where memory comes from (mbind, set_mempolicy) is noted in memory that is
# on nobody's account.
FORBIDDEN = (
    "acct", "add_key", "bpf", "chroot", "clock_adjtime", "clock_settime", "create_module", "delete_module",
    "fanotify_init", "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "get_kernel_syms",
    "init_module", "ioperm", "iopl", "kcmp", "kexec_file_load", "kexec_load", "keyctl", "lookup_dcookie",
    "mbind", "migrate_pages", "modify_ldt", "mount", "mount_setattr", "move_mount", "move_pages", "msgget",
    "name_to_handle_at", "nfsservctl", "open_by_handle_at", "open_tree", "perf_event_open", "pidfd_getfd",
    "pivot_root", "process_madvise", "process_mrelease", "process_vm_readv", "process_vm_writev", "ptrace",
    "query_module", "quotactl", "quotactl_fd", "reboot", "request_key", "semctl", "semget", "semop", "semtimedop",
    "set_mempolicy", "set_mempolicy_home_node", "setdomainname", "sethostname",
    "setns", "settimeofday", "shmget", "stime", "swapoff", "swapon", "sysfs", "syslog", "umount", "umount2", "unshare",
    "uselib", "userfaultfd", "vhangup", "vm86", "vm86old", "_sysctl",
)  # fmt: skip

# Refused with ENOSYS: libraries then fall back (glibc: clone3 → clone; libuv, tokio: io_uring → epoll).
# openat2 takes its mode, and clone3 its flags, by pointer, where no filter can look. All processes of a host have
# one share of asynchronous I/O (io_setup), and of room for filters (seccomp): who takes all leaves others none. Who
# watches the files that all sandboxes see (inotify, cachestat, mincore) is told what others, and the host's programs,
# open.
# A byte that splice, vmsplice or sendfile put into a pipe or a socket holds its whole page, which may be a huge one
# and belongs to no process, nor any more to a file, then.
# Rules of Landlock are in memory that is on nobody's account, and keep deleted files on the disk. A sealed mapping
# (mseal) can't be looked at by the watchdog (see `hidden`).
MISSING = (
    "cachestat", "clone3", "inotify_add_watch", "inotify_init", "inotify_init1", "inotify_rm_watch", "io_cancel", "io_destroy", "io_getevents", "io_pgetevents", "io_setup", "io_submit",
    "io_uring_enter", "io_uring_register", "io_uring_setup", "landlock_add_rule", "landlock_create_ruleset",
    "landlock_restrict_self", "memfd_secret", "mseal", "openat2", "seccomp", "sendfile", "splice",
    "vmsplice",
)  # fmt: skip

# Has the system write what anybody on the host has not written yet, and wait for it. Who wants his own files to be on
# the disk has fsync.
DONE = ("sync", "syncfs")

# Refused with ENOSYS, too, but when it is the watchdog that has a stopped process make the call (see `tracing`).
TRACED = ("mincore",)

# Of those above, in a libseccomp that is too old to know them. From 424 on all machines share the numbers.
NUMBERS = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435,
    "openat2": 437, "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443,
    "landlock_create_ruleset": 444, "landlock_add_rule": 445, "landlock_restrict_self": 446,
    "memfd_secret": 447, "process_mrelease": 448, "set_mempolicy_home_node": 450, "cachestat": 451,
    "fchmodat2": 452, "close_range": 436, "mseal": 462,
}  # fmt: skip

# What Linux has got since this list was last looked through (setxattrat, open_tree_attr …) or will get:
# refused with ENOSYS, as by an older Linux, whose programs can do without.
UNKNOWN = range(463, 600)

# CLONE_NEWTIME is shared with the signal number in clone's flags, so only unshare could ask for it.
NAMESPACE_FLAGS = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
# A child of the kernel's own parent, which for a forked kernel is the fork server: it waits for kernels only, and
# the sandbox could not end before somebody has waited for all that was in it.
CLONE_PARENT = 0x8000
# The watchdog looks at what a process has open, not each of its threads: so those may not differ in it.
CLONE_FILES, CLONE_THREAD = 0x400, 0x10000
CLOSE_RANGE_UNSHARE = 0x2
# What ends the sandbox when the gateway is killed. Its first process has it too, whose memory the others can write
# in. Without it, or with a signal that may be ignored, they would live on.
PR_SET_PDEATHSIG, SIGKILL = 1, 9
PR_SET_DUMPABLE = 4  # who is not can't be looked at by a gateway that is an ordinary user

# unix, inet, inet6; and netlink, for its routing protocol only: libzmq's tcp bind calls getifaddrs and
# aborts the process without it.
SOCKET_FAMILIES = (1, 2, 10, 16)
UNIX, NETLINK = 1, 16
# Of the internet's: the default, TCP, UDP, each of its kind. Others (MPTCP, SCTP, UDP-Lite …) are nothing but more of the
# kernel's code to try, and for those that it does not have it starts a program of the host's, each time.
INTERNET_FAMILIES = (2, 10)
STREAM, DATAGRAM = 1, 2
TCP, UDP = 6, 17
PROTOCOLS = (0, TCP, UDP)
# How much may wait of what it sends (on a unix socket), or is sent (on one of netlink): at nobody's expense.
SOL_SOCKET, SOCKET_BUFFERS = 1, (7, 8)  # SO_SNDBUF, SO_RCVBUF
# A host's pool of huge pages (its database's, say) is no part of a control group's memory.
MAP_HUGETLB, MFD_HUGETLB = 0x40000, 0x4
# A dump goes to the host's program for dumps, whatever its size, unless the limit is 1 (see `Limits.rlimits`): it
# stays, and who sets it to 0 is told that there are none, which is so.
RLIMIT_CORE = 4

SET_ID_BITS = (0o4000, 0o2000)
MODE_ARGUMENTS = {
    "chmod": 1,
    "fchmod": 1,
    "fchmodat": 2,
    "fchmodat2": 2,
    "creat": 1,
    "mknod": 1,
    "mknodat": 2,
}
WHITEOUT = 0x4  # of renameat2: a device stands where the file was
TEMPORARY_FILE = os.O_TMPFILE & ~os.O_DIRECTORY  # a file without a name, which may get one later
OPEN_ARGUMENTS = {"open": (1, 2), "openat": (2, 3)}  # flags, mode
# To reserve room on a disk takes no time, however much it is, and with FALLOC_FL_KEEP_SIZE no limit of a file's size
# holds. Refused with EOPNOTSUPP, as by file systems that can't: programs then write. Only holes may be made.
PUNCH_HOLE = 0x03
# Who opens a file that somebody holds a lease of waits for up to 45 s: the gateway, and every session where the
# files of Python belong to the kernels' user.
LEASES = (1024, 1040)  # F_SETLEASE, F_SETDELEG
NOTIFY = 1026  # F_NOTIFY, which watches as inotify does
# The host keeps what has been read of a file, for all. Who can have it forget that makes others read from the disk
# again, and sees afterwards which files they read.
POSIX_FADV_DONTNEED = 4
# A thread of the system's own compares all pages of all processes that ask for it (KSM), and their pages become one.
# Who writes to his sees by the time whether somebody else has the same.
MADV_MERGEABLE = 12
MADV_PAGEOUT = 21


class SeccompUnavailableError(RuntimeError):
    """libseccomp or its Python binding is not installed."""


def _binding() -> Any:
    try:
        import pyseccomp  # type: ignore[import-untyped]  # noqa: PLC0415  (loads a system library)
    except (ImportError, OSError, RuntimeError, AttributeError, TypeError) as error:
        raise SeccompUnavailableError(
            "The seccomp filter can't be made: install libseccomp (Debian: libseccomp2) and pyseccomp."
        ) from error
    return pyseccomp


def _number(library: Any, name: str) -> int:
    try:
        number = int(library.resolve_syscall(library.Arch.NATIVE, name))
    except (OSError, ValueError):  # not known to this libseccomp or to this machine
        number = -1
    return number if number >= 0 else NUMBERS.get(name, -1)


def _deny(rules: Any, library: Any, action: int, name: str, *args: Any) -> None:
    number = _number(library, name)
    if number >= 0:
        rules.add_rule(action, number, *args)


def _socket_rules(rules: Any, library: Any) -> None:
    refused = library.ERRNO(errno.EAFNOSUPPORT)
    highest = max(SOCKET_FAMILIES)
    _deny(rules, library, refused, "socket", library.Arg(0, library.GT, highest))
    for family in set(range(highest)) - set(SOCKET_FAMILIES):
        _deny(rules, library, refused, "socket", library.Arg(0, library.EQ, family))
    # No other family has pairs: the system makes the sockets and then finds that out.
    _deny(rules, library, library.ERRNO(errno.EOPNOTSUPP), "socketpair", library.Arg(0, library.NE, UNIX))
    _deny(
        rules, library, refused, "socket",
        library.Arg(0, library.EQ, NETLINK), library.Arg(2, library.NE, 0),
    )  # fmt: skip
    unsupported = library.ERRNO(errno.EPROTONOSUPPORT)
    for family in INTERNET_FAMILIES:
        ours = library.Arg(0, library.EQ, family)
        _deny(rules, library, unsupported, "socket", ours, library.Arg(2, library.GT, max(PROTOCOLS)))
        for protocol in set(range(max(PROTOCOLS))) - set(PROTOCOLS):
            _deny(rules, library, unsupported, "socket", ours, library.Arg(2, library.EQ, protocol))
        for kind in set(range(16)) - {STREAM, DATAGRAM}:
            _deny(rules, library, unsupported, "socket", ours, library.Arg(1, library.MASKED_EQ, 0xF, kind))
        for kind, other in ((STREAM, UDP), (DATAGRAM, TCP)):
            of_kind = library.Arg(1, library.MASKED_EQ, 0xF, kind)
            _deny(rules, library, unsupported, "socket", ours, of_kind, library.Arg(2, library.EQ, other))


def _shared_resource_rules(rules: Any, library: Any) -> None:
    """What is one for all processes of a host, on no account of a sandbox's."""

    def low(position: int, value: int) -> Any:
        """The system looks at the lower half of such an argument only."""
        return library.Arg(position, library.MASKED_EQ, 0xFFFFFFFF, value)

    eperm, einval = library.ERRNO(errno.EPERM), library.ERRNO(errno.EINVAL)
    huge = library.Arg(3, library.MASKED_EQ, MAP_HUGETLB, MAP_HUGETLB)
    _deny(rules, library, library.ERRNO(errno.ENOMEM), "mmap", huge)
    huge = library.Arg(1, library.MASKED_EQ, MFD_HUGETLB, MFD_HUGETLB)
    _deny(rules, library, library.ERRNO(errno.ENOSYS), "memfd_create", huge)
    _deny(rules, library, einval, "madvise", low(2, MADV_MERGEABLE))
    done = library.ERRNO(0)
    # To have a process go on elsewhere is done by a thread of the system that goes before all others: who asks for it
    # again and again keeps all from running. Libraries ask without need, so it is no error; nothing changes.
    _deny(rules, library, done, "sched_setaffinity")
    for option in SOCKET_BUFFERS:
        _deny(rules, library, done, "setsockopt", low(1, SOL_SOCKET), low(2, option))
    _deny(rules, library, done, "setrlimit", low(0, RLIMIT_CORE))
    new, old = library.Arg(2, library.NE, 0), library.Arg(3, library.EQ, 0)
    _deny(rules, library, done, "prlimit64", low(1, RLIMIT_CORE), new, old)
    _deny(rules, library, eperm, "prlimit64", low(1, RLIMIT_CORE), new, library.Arg(3, library.NE, 0))


def _argument_rules(rules: Any, library: Any) -> None:
    eperm = library.ERRNO(errno.EPERM)
    for flag in (*NAMESPACE_FLAGS, CLONE_PARENT):
        _deny(rules, library, eperm, "clone", library.Arg(0, library.MASKED_EQ, flag, flag))
    for bit in SET_ID_BITS:
        for name, position in MODE_ARGUMENTS.items():
            _deny(rules, library, eperm, name, library.Arg(position, library.MASKED_EQ, bit, bit))
        for name, (flags, mode) in OPEN_ARGUMENTS.items():
            for makes in (os.O_CREAT, TEMPORARY_FILE):
                _deny(
                    rules, library, eperm, name,
                    library.Arg(flags, library.MASKED_EQ, makes, makes),
                    library.Arg(mode, library.MASKED_EQ, bit, bit),
                )  # fmt: skip
    whiteout = library.Arg(4, library.MASKED_EQ, WHITEOUT, WHITEOUT)
    _deny(rules, library, library.ERRNO(errno.EINVAL), "renameat2", whiteout)
    for command in LEASES:
        _deny(rules, library, eperm, "fcntl", library.Arg(1, library.MASKED_EQ, 0xFFFFFFFF, command))
    alone = library.Arg(0, library.MASKED_EQ, CLONE_FILES | CLONE_THREAD, CLONE_THREAD)
    _deny(rules, library, eperm, "clone", alone)
    unshare = library.Arg(2, library.MASKED_EQ, CLOSE_RANGE_UNSHARE, CLOSE_RANGE_UNSHARE)
    _deny(rules, library, library.ERRNO(errno.EINVAL), "close_range", unshare)
    _process_rules(rules, library)
    notify = library.Arg(1, library.MASKED_EQ, 0xFFFFFFFF, NOTIFY)
    _deny(rules, library, library.ERRNO(errno.EINVAL), "fcntl", notify)
    unsupported = library.ERRNO(errno.EOPNOTSUPP)
    _deny(rules, library, unsupported, "fallocate", library.Arg(1, library.NE, PUNCH_HOLE))


def _cached_file_rules(rules: Any, library: Any) -> None:
    """What the host has in memory of files stays there, and nobody is told what that is."""
    forget = library.Arg(3, library.MASKED_EQ, 0xFFFFFFFF, POSIX_FADV_DONTNEED)
    _deny(rules, library, library.ERRNO(0), "fadvise64", forget)  # an advice: nobody can tell
    forget = library.Arg(2, library.MASKED_EQ, 0xFFFFFFFF, MADV_PAGEOUT)
    _deny(rules, library, library.ERRNO(errno.EINVAL), "madvise", forget)
    # RWF_NOWAIT reads what is in memory only, RWF_DONTCACHE leaves it as it was.
    special = library.Arg(5, library.NE, 0)
    _deny(rules, library, library.ERRNO(errno.EOPNOTSUPP), "preadv2", special)


def _process_rules(rules: Any, library: Any) -> None:
    """What a process asks for itself, and gets told that it has it; so that libraries go on."""
    for option, *more in (
        (PR_SET_DUMPABLE,),
        (PR_SET_PDEATHSIG, library.Arg(1, library.NE, SIGKILL)),
    ):
        asked = library.Arg(0, library.MASKED_EQ, 0xFFFFFFFF, option)
        _deny(rules, library, library.ERRNO(0), "prctl", asked, *more)


@functools.cache
def seccomp_filter() -> bytes:
    """The filter as BPF bytecode for this machine. Raises `SeccompUnavailableError`."""
    library = _binding()
    rules = library.SyscallFilter(library.ALLOW)
    # The system calls of 32 bits and of x32: by default libseccomp ends the thread that tries one.
    rules.set_attr(library.Attr.ACT_BADARCH, library.ERRNO(errno.ENOSYS))
    for name in FORBIDDEN:
        _deny(rules, library, library.ERRNO(errno.EPERM), name)
    for name in MISSING:
        _deny(rules, library, library.ERRNO(errno.ENOSYS), name)
    for name in DONE:
        _deny(rules, library, library.ERRNO(0), name)
    for name in TRACED:
        _deny(rules, library, library.TRACE(0), name)
    for number in UNKNOWN:
        rules.add_rule(library.ERRNO(errno.ENOSYS), number)
    _argument_rules(rules, library)
    _cached_file_rules(rules, library)
    _socket_rules(rules, library)
    _shared_resource_rules(rules, library)
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0, io.SEEK_SET)
        return requests_filter(library.system_arch(), functools.partial(_number, library)) + file.read()
