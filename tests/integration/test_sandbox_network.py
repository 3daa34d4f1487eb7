"""What a session reaches under each network policy."""

import base64
import hashlib
import os
import socketserver
import threading
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from sandbox_kit import boxed

WHEEL = "boxedtoy-1.0-py3-none-any.whl"


def write_wheel(folder: Path) -> None:
    files = {
        "boxedtoy.py": "answer = 42\n",
        "boxedtoy-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: boxedtoy\nVersion: 1.0\n",
        "boxedtoy-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = []
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(text)}")
        record.append("boxedtoy-1.0.dist-info/RECORD,,")
        wheel.writestr("boxedtoy-1.0.dist-info/RECORD", "\n".join(record) + "\n")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def index(tmp_path: Path) -> Iterator[int]:
    """The port of a package index on this host's loopback."""
    folder = tmp_path / "site/simple/boxedtoy"
    folder.mkdir(parents=True)
    write_wheel(folder)
    (folder / "index.html").write_text(f'<a href="{WHEEL}">{WHEEL}</a>')

    def handler(*args: Any) -> Quiet:
        return Quiet(*args, directory=str(tmp_path / "site"))

    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield int(server.server_address[1])
    server.shutdown()
    thread.join()
    server.server_close()


FETCH = """
import urllib.request, urllib.error
def fetch(url):
    try: return urllib.request.urlopen(url, timeout=5).status
    except urllib.error.HTTPError as error: return error.code, error.read().decode().strip()
    except OSError as error: return str(error)
"""
LISTED = ["localhost:{port}", "127.0.0.1:{port}", "::1"]


def hosts(port: int) -> dict[str, Any]:
    return {"allowed_hosts": [entry.format(port=port) for entry in LISTED]}


def test_none_is_the_default_and_has_no_proxy(index: int) -> None:
    with boxed(hosts(index)) as kernel:
        assert kernel.provisioner.network_policy == "none"
        assert kernel.run("import os; print(os.environ.get('HTTPS_PROXY'))") == "None\n"
        assert "urlopen error" in kernel.run(f"{FETCH}\nprint(fetch('http://localhost:{index}/'))")


def test_allowlist_installs_a_wheel_and_refuses_the_rest_clearly(index: int) -> None:
    with boxed(hosts(index), env={"KERNEL_NETWORK": "allowlist"}) as kernel:
        url = f"http://localhost:{index}/simple"
        assert "Successfully installed boxedtoy-1.0" in kernel.run(
            f"%pip install --index-url {url} boxedtoy", 40
        )
        assert kernel.run("import boxedtoy; print(boxedtoy.answer)") == "42\n"
        kernel.run(FETCH)
        refused = "(403, 'The network policy of this session does not allow {}.')\n"
        assert kernel.run("print(fetch('http://example.org/'))") == refused.format("example.org:80")
        assert kernel.run(f"print(fetch('http://localhost:{index + 1}/'))") == refused.format(
            f"localhost:{index + 1}"
        )
        assert kernel.run("print(fetch('http://169.254.169.254/latest/'))") == refused.format(
            "169.254.169.254:80"
        )
        assert "403" in kernel.run("print(fetch('https://example.org/'))")
        # Still no other way out than the proxy.
        code = f"import socket\ntry: socket.create_connection(('127.0.0.1', {index}), 2)\nexcept OSError: print('no')"
        assert kernel.run(code) == "no\n"


def test_full_is_any_public_host_and_nothing_else(index: int) -> None:
    config = {"allowed_networks": ["none", "full"]}
    with boxed(config, env={"KERNEL_NETWORK": "full"}) as kernel:
        kernel.run(FETCH)
        for host in ("localhost", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433"):
            answer = kernel.run(f"print(fetch('http://{host}:{index}/'))")
            assert answer.startswith("(403,"), (host, answer)
            assert "not at a public address" in answer
        assert "not at a public" in kernel.run("print(fetch('http://169.254.169.254/'))")
        kernel.manager.restart_kernel()  # a new network namespace, a new proxy
        kernel.connect()
        kernel.run(FETCH)
        assert "not at a public" in kernel.run("print(fetch('http://10.0.0.1/'))")


def test_a_long_list_of_hosts_is_taken(index: int) -> None:
    """It is longer than what a pipe takes at once."""
    others = [f"host-{number}.example.org" for number in range(4000)]
    config = {"allowed_hosts": [*others, *hosts(index)["allowed_hosts"]]}
    with boxed(config, env={"KERNEL_NETWORK": "allowlist"}) as kernel:
        assert kernel.run(f"{FETCH}\nprint(fetch('http://localhost:{index}/'))") == "200\n"


class Reader(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while self.request.recv(1024 * 1024):
            pass


# Little work for who sends it, much for who takes it apart.
CRUMBS = """
import socket
proxy = socket.create_connection(("127.0.0.1", 3128))
proxy.sendall(b"POST http://127.0.0.1:{port}/ HTTP/1.1\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n")
while True: proxy.sendall(b"1\\r\\nx\\r\\n" * 100_000)
"""


@pytest.mark.parametrize("group", [True, False], ids=["control group", "none"])
def test_what_the_proxy_does_is_on_the_sessions_account(group: bool) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Reader) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        config = {"use_cgroups": group, "cpu_seconds": 5, "allowed_hosts": [f"127.0.0.1:{port}"]}
        with boxed(config, env={"KERNEL_NETWORK": "allowlist"}) as kernel:
            kernel.start_run(CRUMBS.format(port=port))
            assert kernel.wait_for_death(60) == "CPU time limit reached (5 s)"
        server.shutdown()


# Connections of three processes, each with a request that has no end yet.
CROWD = """
import os, socket, time
read, write = os.pipe()
for _ in range(3):
    if os.fork() == 0:
        kept = []
        for _ in range(200):
            kept.append(socket.socket())
            kept[-1].setblocking(False)
            kept[-1].connect_ex(("127.0.0.1", 3128))
        os.write(write, b"x")
        time.sleep(600)
seen = b""
while len(seen) < 3: seen += os.read(read, 3)
"""


def test_very_many_connections_are_nothing_to_a_neighbour(index: int) -> None:
    policy = {"KERNEL_NETWORK": "allowlist"}
    with boxed(hosts(index), env=policy) as hog, boxed(hosts(index), env=policy) as neighbour:
        assert hog.run(CROWD) == ""
        assert neighbour.run(f"{FETCH}\nprint(fetch('http://localhost:{index}/'))") == "200\n"
        (proxy,) = hog.provisioner._sandbox._helpers
        assert len(os.listdir(f"/proc/{proxy.pid}/fd")) < 100


def test_a_policy_that_the_kernelspec_does_not_allow_is_refused() -> None:
    with pytest.raises(ValueError, match="not allowed"), boxed(env={"KERNEL_NETWORK": "full"}):
        pass
    with pytest.raises(ValueError, match="must be one of"), boxed(env={"KERNEL_NETWORK": "all"}):
        pass
