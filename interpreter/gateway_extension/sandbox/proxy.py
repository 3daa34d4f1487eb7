"""The only way out of a sandbox: an HTTP and CONNECT proxy that knows where a session may go.

``python -I -S proxy.py`` runs one per kernel that has a network policy. The sandbox's network namespace has
nothing but loopback; this program enters it once, in a child, to open a listening socket on its
127.0.0.1, and stays outside itself. So there is no route, no DNS and no host socket inside to be got at.

It resolves names itself and connects to exactly the address that it has checked: addresses that are not
public (loopback, private, link-local, cloud metadata, the host's own) are refused even for listed names,
unless the address itself is listed. Of a connection that is no tunnel one request is sent on, with the body that its
head announces: all else would go by unread, and could ask the same server for another host. Standard library only.
"""

import asyncio
import concurrent.futures.thread
import contextlib
import ctypes
import encodings.idna
import errno
import fcntl
import ipaddress
import json
import os
import re
import socket
import sys
from dataclasses import dataclass

# Imported on first use else, when the plain user may not be able to read the standard library any more.
LOADED_EARLY = (concurrent.futures.thread, encodings.idna)

PORT, DEFAULT_PORTS = 3128, (80, 443)
MAX_HEAD, MAX_CONNECTIONS, SOCKET_BUFFER = 32 * 1024, 64, 256 * 1024
# The last is how long the place of a connection stays taken after its end. For a minute the host goes without the
# port that it went out by, and all sessions share its ports towards one server: none must take them all.
CONNECT_TIMEOUT, IDLE_TIMEOUT, PLACE_TIME = 20.0, 300.0, 4.0
NS_GET_USERNS, CLONE_NEWUSER, CLONE_NEWNET = 0xB701, 0x10000000, 0x40000000

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Not public although `ipaddress` of some versions says so: NAT64, 6to4, Teredo (they wrap IPv4
# addresses), site-local, documentation, segment routing, protocol assignments (a cloud's metadata is there), and
# Azure's host agent.
REFUSED_NETWORKS: tuple[Network, ...] = tuple(map(ipaddress.ip_network, (
    "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "fec0::/10", "3fff::/20", "5f00::/16", "192.0.0.0/24",
    "192.88.99.0/24", "168.63.129.16/32",
)))  # fmt: skip

_ENTRY = re.compile(r"(?:\[(.*)\]|([^:]*|.*:.*:.*))(?::([0-9]+))?")
_LISTED_NAME = re.compile(r"(?:\*\.)?[0-9a-z-]+(?:\.[0-9a-z-]+)*")  # else as xn--…, as it is asked for
# What two programs could read in different ways is refused, not repaired: only what these match whole is sent on.
_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE = re.compile(rf"({_NAME}) ([!-~]+) HTTP/1\.([01])".encode())
_HEADER = re.compile(rf"({_NAME}):([\t -~\x80-\xff]*)".encode("latin-1"))
_AUTHORITY = r"(?P<host>\[[0-9A-Za-z:.%]+\]|[0-9A-Za-z._~-]+)(?::(?P<port>[1-9][0-9]{0,4}))?"
_CONNECT_TARGET = re.compile(_AUTHORITY)
_TARGET = re.compile(rf"(?i:http)://(?P<authority>{_AUTHORITY})(?P<path>[/?][^#]*)?(?:#.*)?")
_NOT_SENT_ON = frozenset((b"connection", b"keep-alive", b"host", b"upgrade", b"te", b"trailer"))
_LENGTH = re.compile(rb"\r\ncontent-length:[\t ]*([0-9]+)[\t ]*\r\n", re.IGNORECASE)
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[\t ]*(?:;[\t -~]*)?\r\n")


class RefusedError(Exception):
    """The policy says no; the text is for the user."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of the list: a host name, ``*.domain``, an address or a network, with or without port."""

    name: str
    network: Network | None
    ports: tuple[int, ...]

    @classmethod
    def parse(cls, entry: str) -> "Rule":
        """Read ``host``, ``*.host``, ``10.0.0.0/8`` or ``[::1]:80``. Raises ValueError."""
        parts = _ENTRY.fullmatch(entry.strip().lower())
        text = (parts[1] or parts[2] or "") if parts else ""
        ports = (_port(parts[3]),) if parts and parts[3] else DEFAULT_PORTS
        with contextlib.suppress(ValueError):
            return cls("", ipaddress.ip_network(text, strict=False), ports)
        text = text.rstrip(".")
        if not _LISTED_NAME.fullmatch(text):
            raise ValueError(f"not a host name or address: {entry!r}")
        return cls(text, None, ports)

    def names(self, host: str, port: int) -> bool:
        """Whether the rule allows this host name (or literal address) and port."""
        if (address := _literal(host)) is not None:
            return self.covers(address, port)
        named = host == self.name or (self.name.startswith("*.") and host.endswith(self.name[1:]))
        return named and port in self.ports

    def covers(self, address: Address, port: int) -> bool:
        """Whether the rule lists this very address and port."""
        return self.network is not None and port in self.ports and address in self.network


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise ValueError(f"not a port: {text!r}")
    return int(text)


def _literal(host: str) -> Address | None:
    with contextlib.suppress(ValueError):
        address: Address = ipaddress.ip_address(host)
        return getattr(address, "ipv4_mapped", None) or address
    return None


@dataclass(frozen=True, slots=True)
class Policy:
    """Where a session may go: the listed hosts, or with ``public`` every public address."""

    rules: tuple[Rule, ...]
    public: bool

    def check_host(self, host: str, port: int) -> None:
        """Raises `RefusedError` unless this name and port may be asked for."""
        if not self.public and not any(rule.names(host, port) for rule in self.rules):
            raise RefusedError(f"The network policy of this session does not allow {host}:{port}.")

    def check_address(self, address: Address, port: int, host: str) -> None:
        """Raises `RefusedError` unless this address may be connected to."""
        if any(rule.covers(address, port) for rule in self.rules):
            return
        if not is_public(address) or is_local(address):
            raise RefusedError(f"{host} is not at a public address, and this network policy wants one.")


def is_public(address: Address) -> bool:
    """Whether an address belongs to the open internet."""
    address = getattr(address, "ipv4_mapped", None) or address
    if any(address in network for network in REFUSED_NETWORKS):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def is_local(address: Address) -> bool:
    """Whether an address is one of this host's own: only those can be bound. When in doubt, it is."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError as error:
        return error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    return True


async def resolve(policy: Policy, host: str, port: int) -> tuple[int, str]:
    """(family, address) to connect to; every address of the name must be allowed, or it is refused."""
    try:
        infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, RuntimeError) as error:  # the last: no thread can be started for it
        raise RefusedError(f"The host name {host} can't be resolved.") from error
    found = [address for info in infos if (address := _literal(str(info[4][0]))) is not None]
    for address in found:
        policy.check_address(address, port, host)
    first = min(found, key=lambda address: address.version)
    return (socket.AF_INET if first.version == 4 else socket.AF_INET6), str(first)


def parse_head(head: bytes) -> tuple[str, str, int, bytes]:
    """(method, host, port, what to send on) of a proxy request's head. Raises ValueError."""
    line, _, rest = head.partition(b"\r\n")
    if (parts := _REQUEST_LINE.fullmatch(line)) is None:
        raise ValueError("not a request line of HTTP/1.0 or HTTP/1.1")
    method, target = parts[1].decode("ascii"), parts[2].decode("ascii")
    url = (_CONNECT_TARGET if method == "CONNECT" else _TARGET).fullmatch(target)
    if url is None or (method == "CONNECT" and url["port"] is None):
        raise ValueError("not a target of a proxy request")
    host, port = _host(url["host"]), _port(url["port"] or "80")
    if method == "CONNECT":
        return method, host, port, b""
    path = url["path"] or "/"
    first = f"{method} {path if path.startswith('/') else '/' + path} HTTP/1.1"
    ours = f"{first}\r\nHost: {url['authority']}\r\nConnection: close".encode("ascii")
    return method, host, port, b"\r\n".join([ours, *_headers(rest, chunks=parts[3] == b"1"), b"", b""])


def _host(text: str) -> str:
    if text.startswith("["):
        return str(ipaddress.IPv6Address(text[1:-1]))
    host = text.rstrip(".").lower()
    if not host:
        raise ValueError("no host")
    return host


def _headers(rest: bytes, *, chunks: bool) -> list[bytes]:
    """The header lines to send on. Raises ValueError if it is not plain from them where the body ends."""
    kept, lengths, encodings = [], [], []
    for line in rest.split(b"\r\n"):
        if not line:
            continue
        if (parts := _HEADER.fullmatch(line)) is None:
            raise ValueError("a header that servers read in different ways")
        name, value = parts[1].lower(), parts[2].strip(b" \t")
        if name == b"content-length":
            lengths.append(value)
        elif name == b"transfer-encoding":
            encodings.append(value.lower())
        if name not in _NOT_SENT_ON and not name.startswith(b"proxy-"):
            kept.append(line)
    if len(lengths) + len(encodings) > 1 or not all(text.isdigit() and len(text) <= 18 for text in lengths):
        raise ValueError("more than one length of the body, or none that all can read")
    if encodings and not (chunks and encodings == [b"chunked"]):  # HTTP/1.0 has no chunks
        raise ValueError("a transfer encoding that servers read in different ways")
    return kept


class Proxy:
    """Serves one listening socket under one policy."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._accepting = asyncio.Lock()

    async def run(self, listener: socket.socket) -> None:
        """Serve who connects, for good. Who finds no place waits in the sandbox: nothing here is spent on them."""
        listener.setblocking(False)
        async with asyncio.TaskGroup() as places:
            for _ in range(MAX_CONNECTIONS):
                places.create_task(self._serve_in_turn(listener))

    async def _serve_in_turn(self, listener: socket.socket) -> None:
        while True:
            with contextlib.suppress(Exception):  # what goes wrong with one client is nothing to the others
                async with self._accepting:
                    client, _ = await asyncio.get_running_loop().sock_accept(listener)
                await self._serve(*await asyncio.open_connection(sock=client, limit=MAX_HEAD))
            await asyncio.sleep(PLACE_TIME)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client connection, from its first byte to its end."""
        try:
            await self._answer(reader, writer)
        except RefusedError as refusal:
            await _reply(writer, "403 Forbidden", str(refusal))
        except (ValueError, UnicodeError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await _reply(writer, "400 Bad Request", "This is an HTTP proxy.")
        except TimeoutError:
            await _reply(writer, "504 Gateway Timeout", "The host did not answer in time.")
        except OSError:
            await _reply(writer, "502 Bad Gateway", "The host can't be reached.")
        finally:
            await _close(writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            head = await reader.readuntil(b"\r\n\r\n")
            method, host, port, forward = parse_head(head)
            self._policy.check_host(host, port)
            family, address = await resolve(self._policy, host, port)
            up_reader, up_writer = await asyncio.open_connection(address, port, family=family)
        try:
            for end in (writer, up_writer):  # the host has one amount for all of what they would grow to
                for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                    end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)
            async with asyncio.timeout(IDLE_TIMEOUT) as idle, asyncio.TaskGroup() as group:
                out, back = Way(reader, up_writer, idle), Way(up_reader, writer, idle)
                if tunnel := method == "CONNECT":
                    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                up_writer.write(forward)
                task = group.create_task(out.send_all() if tunnel else out.send_body(forward))
                await back.send_all()
                if not tunnel:
                    task.cancel()  # the answer is complete
        except* (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            pass  # either side hung up, or the body is not one: the connection is over
        finally:
            await _close(up_writer)


@dataclass(frozen=True, slots=True)
class Way:
    """One direction of a connection, which has ended when nothing has gone either way for too long."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    idle: asyncio.Timeout

    async def send_all(self) -> None:
        with contextlib.suppress(EOFError):
            await self._send(sys.maxsize)
        self.writer.write_eof()

    async def _send(self, size: int) -> None:
        while size:
            if not (data := await self.reader.read(min(size, 65536))):
                raise EOFError
            self.writer.write(data)
            await self.writer.drain()
            size -= len(data)
            if not self.idle.expired():
                self.idle.reschedule(asyncio.get_running_loop().time() + IDLE_TIMEOUT)

    async def send_body(self, head: bytes) -> None:
        """What belongs to the request with this head, and nothing that comes after it."""
        if b"\r\ntransfer-encoding:" in head.lower():  # which is chunked, or it would have been refused
            await self._send_chunks()
        elif length := _LENGTH.search(head):
            await self._send(int(length[1]))
        while await self.reader.read(65536):
            pass  # another request, say
        # Not before the client does: some servers give up their answer for one that has ended its side.
        self.writer.write_eof()

    async def _send_chunks(self) -> None:
        """Without what may stand beside the sizes and at the end. Raises ValueError."""
        while True:
            line = await self.reader.readuntil(b"\r\n")
            if (parts := _CHUNK.fullmatch(line)) is None:
                raise ValueError("not the size of a chunk")
            if not (size := int(parts[1], 16)):
                break
            self.writer.write(b"%x\r\n" % size)
            await self._send(size)
            if await self.reader.readexactly(2) != b"\r\n":
                raise ValueError("a chunk of another size")
            self.writer.write(b"\r\n")
        while await self.reader.readuntil(b"\r\n") != b"\r\n":
            pass
        self.writer.write(b"0\r\n\r\n")


async def _reply(writer: asyncio.StreamWriter, status: str, text: str) -> None:
    body = text.encode() + b"\n"
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    with contextlib.suppress(OSError):
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        async with asyncio.timeout(IDLE_TIMEOUT):
            await writer.wait_closed()
    except OSError:  # as a timeout is: nobody takes what is left to be sent
        writer.transport.abort()


def listen_inside(pid: int, port: int) -> socket.socket:
    """A socket that listens on the loopback of the sandbox that ``pid`` is in."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if (child := os.fork()) == 0:
            try:
                _enter(pid)
                with socket.create_server(("127.0.0.1", port), backlog=MAX_CONNECTIONS) as server:
                    socket.send_fds(theirs, [b"x"], [server.fileno()])
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        theirs.close()
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    if not fds:
        raise OSError("the sandbox's network can't be entered")
    return socket.socket(fileno=fds[0])


def _enter(pid: int) -> None:
    # The user namespace that owns the network namespace gives the right to enter it; it is not the one
    # that the process is in now (bubblewrap nests a second one to forbid further ones).
    libc = ctypes.CDLL(None, use_errno=True)
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    owner = fcntl.ioctl(network, NS_GET_USERNS)
    for handle, kind in ((owner, CLONE_NEWUSER), (network, CLONE_NEWNET)):
        if libc.setns(handle, kind) != 0:
            raise OSError(ctypes.get_errno(), "setns")


async def _serve(listener: socket.socket, policy: Policy) -> None:
    print("ready", flush=True)  # noqa: T201  (the gateway waits for this line)
    asyncio.get_running_loop().add_reader(0, os._exit, 0)  # the gateway holds our stdin: its end is ours
    await Proxy(policy).run(listener)


def main() -> None:
    """Read the plan from the first line of stdin, listen, serve until stdin ends."""
    plan = json.loads(sys.stdin.buffer.readline())
    os.nice(10)  # as the sandbox itself: the gateway goes first
    listener = listen_inside(plan["pid"], PORT)
    if plan["uid"] is not None:
        os.setgroups([])
        os.setresgid(plan["uid"], plan["uid"], plan["uid"])
        os.setresuid(plan["uid"], plan["uid"], plan["uid"])
    policy = Policy(tuple(Rule.parse(entry) for entry in plan["hosts"]), plan["public"])
    asyncio.run(_serve(listener, policy))


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, KeyError) as problem:
        sys.stdout.write(f"{problem}\n")  # which the gateway reads
        sys.exit(1)
