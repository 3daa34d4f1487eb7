"""For kernels that know TCP only: unix sockets of the host ↔ ports on the sandbox's loopback.

``python -I -S relay.py`` enters the sandbox's network namespace (file names are not part of that), waits
until the kernel listens on all its ports and then makes the sockets that the gateway connects to. ZeroMQ's
protocol is the same over both, so bytes are passed on as they are. Nothing of the host gets reachable: who
listens is outside, who connects is outside. Standard library only; shares no module with the other
programs that run alone.
"""

import asyncio
import contextlib
import ctypes
import fcntl
import functools
import json
import os
import sys

NS_GET_USERNS = 0xB701
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
HOST = "127.0.0.1"
POLL = 0.02


def enter(pid: int, *, as_root: bool) -> None:
    """Enter the network namespace that ``pid`` is in, through its owner unless root may go straight."""
    libc = ctypes.CDLL(None, use_errno=True)
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    steps = [(network, CLONE_NEWNET)]
    if not as_root:
        steps.insert(0, (fcntl.ioctl(network, NS_GET_USERNS), CLONE_NEWUSER))
    for handle, kind in steps:
        if libc.setns(handle, kind) != 0:
            raise OSError(ctypes.get_errno(), "setns")


async def serve(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass one connection on to a port inside, until either side ends it."""
    try:
        inner_reader, inner_writer = await asyncio.open_connection(HOST, port)
        try:
            tasks = [
                asyncio.create_task(_pump(reader, inner_writer)),
                asyncio.create_task(_pump(inner_reader, writer)),
            ]
            _, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in rest:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await _close(inner_writer)
    except OSError:
        pass  # the kernel is gone: the client sees its connection end
    finally:
        await _close(writer)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _until_open(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection(HOST, port)
        except OSError:
            await asyncio.sleep(POLL)  # nobody tells when a port is listened on
        else:
            await _close(writer)
            return


async def _run(sockets: dict[str, int], uid: int | None) -> None:
    ended = asyncio.Event()  # the gateway holds our stdin: its end is ours
    asyncio.get_running_loop().add_reader(0, ended.set)
    for port in sockets.values():
        opened, end = asyncio.create_task(_until_open(port)), asyncio.create_task(ended.wait())
        await asyncio.wait((opened, end), return_when=asyncio.FIRST_COMPLETED)
        if ended.is_set():
            os._exit(0)
        end.cancel()
    servers = []
    for path, port in sockets.items():
        servers.append(await asyncio.start_unix_server(functools.partial(serve, port), f"{path}.new"))
        os.rename(f"{path}.new", path)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    await ended.wait()
    os._exit(0)


def main() -> None:
    """Read the plan from the first line of stdin and pass connections on until stdin ends."""
    plan = json.loads(sys.stdin.buffer.readline())
    os.nice(10)  # as the sandbox itself: the gateway goes first
    enter(plan["pid"], as_root=plan["uid"] is not None)
    print("ready", flush=True)  # noqa: T201  (the gateway waits for this line)
    asyncio.run(_run(plan["sockets"], plan["uid"]))


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, KeyError) as problem:
        sys.stdout.write(f"{problem}\n")  # which the gateway reads
        sys.exit(1)
