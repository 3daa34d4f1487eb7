"""Where the proxy of a sandbox lets requests go."""

import asyncio
import ipaddress
import resource
import socket

import pytest
from proxy_kit import running

from interpreter.gateway_extension.sandbox.proxy import (
    Policy,
    RefusedError,
    Rule,
    is_local,
    is_public,
    parse_head,
    resolve,
)


def policy(*entries: str, public: bool = False) -> Policy:
    return Policy(tuple(Rule.parse(entry) for entry in entries), public)


def allows(rules: Policy, host: str, port: int) -> bool:
    try:
        rules.check_host(host, port)
    except RefusedError:
        return False
    return True


@pytest.mark.parametrize(
    ("entry", "host", "port", "allowed"),
    [
        ("pypi.org", "pypi.org", 443, True),
        ("pypi.org", "pypi.org", 80, True),
        ("pypi.org", "pypi.org", 22, False),
        ("pypi.org:8443", "pypi.org", 8443, True),
        ("pypi.org:8443", "pypi.org", 443, False),
        ("PyPI.org.", "pypi.org", 443, True),
        ("pypi.org", "notpypi.org", 443, False),
        ("pypi.org", "pypi.org.evil.example", 443, False),
        ("pypi.org", "files.pypi.org", 443, False),
        ("*.pypi.org", "files.pypi.org", 443, True),
        ("*.pypi.org", "a.b.pypi.org", 443, True),
        ("*.pypi.org", "pypi.org", 443, False),
        ("*.pypi.org", "evilpypi.org", 443, False),
        ("10.0.0.0/8", "10.1.2.3", 443, True),
        ("10.0.0.0/8", "11.1.2.3", 443, False),
        ("*.3.4", "1.2.3.4", 443, False),
        ("xn--bcher-kva.example", "xn--bcher-kva.example", 443, True),
        ("[::1]:80", "::1", 80, True),
        ("127.0.0.1", "::ffff:127.0.0.1", 80, True),
    ],
)
def test_only_listed_hosts_and_ports(entry: str, host: str, port: int, allowed: bool) -> None:
    assert allows(policy(entry), host, port) is allowed


@pytest.mark.parametrize(
    "entry",
    [
        "", "http://pypi.org", "pypi.org/simple", "*", "a b", "pypi.org:0", "pypi.org:x", "*.", "a..b", "[]", "[::1]x",
        "bücher.example", "pypi。org", "ｐｙｐｉ.org", "pуpi.org",
    ],
)  # fmt: skip
def test_an_entry_that_is_no_host_is_an_error(entry: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        Rule.parse(entry)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254",
        "100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "224.0.0.1", "255.255.255.255",
        "198.18.0.1", "240.0.0.1", "::", "::1", "fe80::1", "fd00:ec2::254", "fc00::1", "ff02::1", "fec0::1",
        "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2001:0:1::1",
        "3fff::1", "5f00::1", "192.88.99.1", "::127.0.0.1", "::1%lo", "fe80::1%lo",
    ],
)  # fmt: skip
def test_addresses_that_are_not_of_the_internet_are_refused(address: str) -> None:
    parsed = ipaddress.ip_address(address)
    assert not is_public(parsed)
    with pytest.raises(RefusedError):
        policy("some.host", public=True).check_address(parsed, 443, "some.host")


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700:4700::1111"])
def test_public_addresses_pass(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))
    assert not is_local(ipaddress.ip_address(address))


def test_the_hosts_own_address_is_known() -> None:
    assert is_local(ipaddress.ip_address("127.0.0.1"))


def test_an_address_is_the_hosts_own_when_it_can_not_be_told() -> None:
    _, hard = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))  # as if all descriptors were in use
    try:
        with pytest.raises(RefusedError):
            policy(public=True).check_address(ipaddress.ip_address("1.1.1.1"), 443, "some.host")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_a_listed_name_at_a_private_address_needs_that_address_listed() -> None:
    with pytest.raises(RefusedError, match="not at a public address"):
        await resolve(policy("localhost"), "localhost", 80)
    family, address = await resolve(policy("localhost", "127.0.0.1", "::1"), "localhost", 80)
    assert (family, address) == (socket.AF_INET, "127.0.0.1")


@pytest.mark.parametrize("public", [False, True])
@pytest.mark.parametrize("entry", ["127.0.0.1:8443", "127.0.0.0/8:8443", "127.0.0.1"])
async def test_an_address_that_is_not_public_is_reached_at_its_listed_ports_only(
    entry: str, public: bool
) -> None:
    listed = 8443 if entry.endswith(":8443") else 443
    rules = policy("localhost", "localhost:8443", "localhost:9", entry, "[::1]:8443", "::1", public=public)
    for port in (443, 8443, 9):
        for host in ("127.0.0.1", "localhost", "127.1", "2130706433", "::ffff:127.0.0.1"):
            if port == listed:
                assert await resolve(rules, host, port) == (socket.AF_INET, "127.0.0.1")
            else:
                with pytest.raises(RefusedError, match="not at a public address"):
                    await resolve(rules, host, port)


async def test_a_name_that_does_not_resolve_is_refused() -> None:
    with pytest.raises(RefusedError, match="can't be resolved"):
        await resolve(policy(), "no-such-host.invalid", 80)


def test_heads_of_both_kinds() -> None:
    assert parse_head(b"CONNECT PyPI.org:443 HTTP/1.1\r\nHost: x\r\n\r\n") == (
        "CONNECT",
        "pypi.org",
        443,
        b"",
    )
    method, host, port, forward = parse_head(
        b"GET http://h.example:81/a?b HTTP/1.1\r\nHost: other\r\nProxy-Authorization: s\r\nAccept: */*\r\n\r\n"
    )
    assert (method, host, port) == ("GET", "h.example", 81)
    assert forward == b"GET /a?b HTTP/1.1\r\nHost: h.example:81\r\nConnection: close\r\nAccept: */*\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"CONNECT pypi.org HTTP/1.1\r\n\r\n",
        b"GET file:///etc/passwd HTTP/1.1\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET http:// HTTP/1.1\r\n\r\n",
        b"CONNECT [::1:443 HTTP/1.1\r\n\r\n",
        b"\xff\xfe x HTTP/1.1\r\n\r\n",
        b"GET http://pypi.org/ HTTP/1.1\r\nHost : evil\r\n\r\n",
        b"GET http://pypi.org/ HTTP/1.1\r\nX: y\r\n Host: evil\r\n\r\n",
        b"GET http://pypi.org/ HTTP/1.1\r\nX: y\nHost: evil\r\n\r\n",
    ],
)
def test_what_is_no_proxy_request_is_refused(head: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  (the texts are of several libraries)
        parse_head(head)


@pytest.mark.parametrize(
    "line",
    [
        *(b"GET http://h/a?%cX-Inj:1 HTTP/1.1" % byte for byte in (*range(33), 127, 128, 255)),
        *(b"G%cET http://h/ HTTP/1.1" % byte for byte in (*b'\t\r\n\0"(),/:;<=>?@[\\]{}', 127, 128)),
        b"GET  http://h/ HTTP/1.1",
        b" GET http://h/ HTTP/1.1",
        b"GET http://h/ HTTP/1.1 ",
        b"GET http://h/ HTTP/1.1\n",
        b"GET http://h/ HTTP/1.2",
        b"GET http://h/ HTTP/1.10",
        b"CON\tNECT h:443 HTTP/1.1",
        b"CONNECT h\t:443 HTTP/1.1",
    ],
)
def test_a_request_line_is_three_words_of_visible_ascii(line: bytes) -> None:
    with pytest.raises(ValueError, match="request line"):
        parse_head(line + b"\r\n\r\n")


@pytest.mark.parametrize(
    "target",
    [
        b"http://127.0.0.1:8931\\@127.0.0.1:9555/", b"http://h\\evil/", b"http://u:p@h/", b"http://@h/", b"http://h%2f/",
        b"http://h:/", b"http://h:0/", b"http://h:99999/", b"http://[h]/", b"http://[::1]x/", b"http://./", b"http:/h/",
    ],
)  # fmt: skip
def test_an_authority_that_programs_read_in_different_ways_is_refused(target: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  (the texts are of several libraries)
        parse_head(b"GET %s HTTP/1.1\r\n\r\n" % target)
    connect = target.removeprefix(b"http://").rstrip(b"/")
    with pytest.raises(ValueError):  # noqa: PT011
        parse_head(b"CONNECT %s HTTP/1.1\r\n\r\n" % connect)


@pytest.mark.parametrize(
    ("target", "host", "path"),
    [
        (b"HTTP://H.example.", "h.example", b"/"),
        (b"http://h?q=1", "h", b"/?q=1"),
        (b"http://h//x/../y?a@b\\c#part", "h", b"//x/../y?a@b\\c"),
        (b"http://[::1]:80/", "::1", b"/"),
    ],
)
def test_what_follows_the_authority_is_sent_on_as_it_came(target: bytes, host: str, path: bytes) -> None:
    _, found, port, forward = parse_head(b"GET %s HTTP/1.1\r\n\r\n" % target)
    assert (found, port) == (host, 80)
    assert forward.startswith(b"GET %s HTTP/1.1\r\nHost: " % path)


@pytest.mark.parametrize("byte", [*(set(range(32)) - {9}), 127])
def test_a_header_with_a_control_byte_is_refused(byte: int) -> None:
    with pytest.raises(ValueError, match="header"):
        parse_head(b"GET http://h/ HTTP/1.1\r\nX: a%cb\r\n\r\n" % byte)


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked",
        b"transfer-encoding: chunked\r\nX: y\r\ncontent-length: 5",
        b"Content-Length: 5\r\nContent-Length: 6",
        b"Content-Length: 5, 6",
        b"Content-Length: +5",
        b"Content-Length:",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        b"Transfer-Encoding: xchunked",
    ],
)
async def test_a_body_of_two_lengths_is_a_400(headers: bytes) -> None:
    answer = await ask(policy("h"), b"POST http://h/ HTTP/1.1\r\n" + headers + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")


def test_chunks_are_of_http_1_1_only() -> None:
    rest = b"\r\nTransfer-Encoding: Chunked\r\n\r\n"
    assert parse_head(b"POST http://h/ HTTP/1.1" + rest)[3].endswith(rest)
    with pytest.raises(ValueError, match="transfer encoding"):
        parse_head(b"POST http://h/ HTTP/1.0" + rest)
    assert b"Content-Length: 5" in parse_head(b"POST http://h/ HTTP/1.0\r\nContent-Length: 5\r\n\r\n")[3]


async def ask(rules: Policy, request: bytes) -> bytes:
    async with running(rules) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    return answer


async def test_a_refusal_is_a_403_with_a_sentence() -> None:
    answer = await ask(policy("pypi.org"), b"CONNECT example.org:443 HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert answer.endswith(b"The network policy of this session does not allow example.org:443.\n")


async def test_nonsense_is_a_400_and_silence_of_the_host_a_502() -> None:
    assert (await ask(policy(), b"hello\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    answer = await ask(policy(f"127.0.0.1:{port}"), f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 502 ")


async def test_a_tunnel_carries_bytes_both_ways() -> None:
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read(100)).upper())
        await writer.drain()
        writer.close()

    host = await asyncio.start_server(shout, "127.0.0.1", 0)
    async with host:
        port = host.sockets[0].getsockname()[1]
        async with running(policy(f"127.0.0.1:{port}")) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode())
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            writer.write(b"quiet")
            assert await reader.read() == b"QUIET"
            writer.close()
            await writer.wait_closed()
