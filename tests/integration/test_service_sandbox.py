"""Sessions of the service run in the sandbox: what they see, what stops them, and that neighbours go on."""

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from sandbox_kit import IS_ROOT, PROJECT, USER, as_ordinary_user
from service_process import ServiceProcess, running_service

from interpreter.gateway_extension.descriptors import refuse_descriptors
from interpreter.gateway_extension.sandbox import enforced_limits

MIB = 1024**2
PATIENCE = 15.0  # seconds that a small run may take beside all hogs, on a busy machine

Run = Callable[..., dict]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """Small limits, so that they are reached soon."""
    with running_service(
        tmp_path_factory.mktemp("service"),
        interrupt_grace="2",
        kernel_memory_bytes=str(512 * MIB),
        kernel_max_processes="64",
        kernel_max_file_bytes=str(16 * MIB),
        max_workspace_bytes=str(48 * MIB),
    ) as running:
        yield running


def can_refuse_descriptors() -> bool:
    with socket.socket(socket.AF_UNIX) as one:
        return refuse_descriptors(one)


def new_session(api: httpx.Client, **fields: object) -> dict:
    made = api.post("/v1/sessions", json=fields)
    assert made.status_code == 201, made.text
    session: dict = made.json()
    return session


def execute(api: httpx.Client, session_id: str, code: str, **fields: object) -> dict:
    answer = api.post(f"/v1/sessions/{session_id}/runs", json={"code": code, **fields})
    assert answer.status_code in (200, 202), answer.text
    ended: dict = answer.json()
    return ended


def wait_for_end(api: httpx.Client, run_id: str) -> dict:
    with api.stream("GET", f"/v1/runs/{run_id}/events") as events:
        assert any(line == "event: run.completed" for line in events.iter_lines())
    ended: dict = api.get(f"/v1/runs/{run_id}").json()
    return ended


# What is told


def test_a_session_says_that_it_is_sandboxed_and_what_it_may_reach(
    api: httpx.Client, session_id: str
) -> None:
    session = api.get(f"/v1/sessions/{session_id}").json()
    assert (session["sandboxed"], session["network"]) == (True, "none")


def test_readiness_says_what_enforces_each_limit(api: httpx.Client) -> None:
    check = api.get("/readyz").json()["checks"]["sandbox"]
    assert check["ok"] is True
    assert check["detail"].startswith("Kernels run in a sandbox.")
    for limit, by in enforced_limits().items():
        assert limit in check["detail"]
        assert by in check["detail"]


def test_the_first_page_says_it(api: httpx.Client, session_id: str) -> None:
    page = api.get("/", headers={"Accept": "text/html"}).text
    assert "Kernels run in a sandbox." in page


def test_a_network_that_is_not_allowed_is_refused(api: httpx.Client) -> None:
    refused = api.post("/v1/sessions", json={"network": "full"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "network"
    made = new_session(api, network="allowlist")
    assert made["network"] == "allowlist"
    api.delete(f"/v1/sessions/{made['id']}")


def test_a_session_reaches_the_hosts_that_are_listed_when_it_asks_for_them(tmp_path: Path) -> None:
    web = ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
    threading.Thread(target=web.serve_forever).start()
    url = f"http://127.0.0.1:{web.server_port}/"
    fetch = f"import urllib.request\nurllib.request.urlopen({url!r}, timeout=10).status"
    try:
        with (
            running_service(
                tmp_path, kernel_allowed_hosts=f"pypi.org,127.0.0.1:{web.server_port}"
            ) as service,
            service.client() as api,
        ):
            reached = execute(api, new_session(api, network="allowlist")["id"], fetch)
            assert reached["result"] == "200", reached["error"]
            kept_in = execute(api, new_session(api)["id"], fetch)
            assert kept_in["error"]["ename"] == "URLError"
    finally:
        web.shutdown()
        web.server_close()


def test_a_kernel_that_has_too_little_memory_to_start_says_so(api: httpx.Client) -> None:
    refused = api.post("/v1/sessions", json={"kernel_name": "deno"})  # which wants more than the 512 MiB here
    assert refused.status_code == 502
    told = refused.json()["error"]["message"]
    assert "out of memory (limit 512 MiB)" in told
    assert "kernel_memory_bytes" in told


# What a session sees


def test_a_session_sees_its_own_files_and_no_others(
    service: ServiceProcess, api: httpx.Client, session_id: str, run: Run
) -> None:
    other = new_session(api)["id"]
    execute(api, other, "open('secret', 'w').write('other')")
    made = run("import os\nopen('mine', 'w').write('x')\nprint(os.getcwd(), os.listdir())")
    assert made["stdout"] == "/mnt/data ['mine']\n"
    code = (
        "import os\n"
        f"for path in ({str(service.state_dir)!r}, {str(service.record_dir)!r}, {str(service.folder)!r}):\n"
        "    print(os.path.exists(path))\n"
        "print([pid for pid in os.listdir('/proc') if pid.isdigit() and int(pid) > 100])\n"
        f"print({service.token!r} in str(os.environ))"
    )
    assert run(code)["stdout"] == "False\nFalse\nFalse\n[]\nFalse\n"
    api.delete(f"/v1/sessions/{other}")


def test_home_and_plots_work_and_are_private(run: Run) -> None:
    made = run(
        "import pathlib, matplotlib\n"
        "(pathlib.Path.home() / 'x').write_text('x')\n"
        "import matplotlib.pyplot as plt\nplt.plot([1]);\n"
        "print(matplotlib.get_cachedir())"
    )
    assert made["stdout"] == "/home/user/.config/matplotlib\n"
    assert made["files"] == []


def test_a_kernel_that_died_is_replaced_at_once_in_the_same_workspace(run: Run) -> None:
    for number in range(3):
        assert run(f"open('{number}', 'w').write('x')\nimport os\nos._exit(7)")["status"] == "kernel_died"
    assert run("sorted(os.listdir()) if 'os' in globals() else sorted(__import__('os').listdir())")[
        "result"
    ] == ("['0', '1', '2']")


def test_what_code_leaves_in_its_workspace_goes_with_the_session(
    service: ServiceProcess, api: httpx.Client
) -> None:
    session_id = new_session(api)["id"]
    made = execute(
        api,
        session_id,
        "import os\n"
        "os.mkdir('closed')\nopen('closed/x', 'w').close()\nos.chmod('closed', 0)\n"
        "os.mkfifo('pipe')\nos.symlink('/etc', 'link')\nopen('new\\nline', 'w').close()\n"
        "for _ in range(50):\n    os.mkdir('d')\n    os.chdir('d')\n"
        "os.chdir('/mnt/data')\nos.chmod('.', 0o500)",
    )
    assert made["status"] == "ok", made["error"]
    assert api.delete(f"/v1/sessions/{session_id}").status_code == 204
    assert [name for name in os.listdir(service.state_dir / "workspaces") if session_id in name] == []


if IS_ROOT:

    def test_the_uid_of_a_kernel_reaches_nothing_of_the_service(
        service: ServiceProcess, api: httpx.Client, session_id: str
    ) -> None:
        workspaces = service.state_dir / "workspaces"
        other = new_session(api)["id"]
        owner = (workspaces / session_id).stat()
        assert owner.st_uid >= 1000
        assert (workspaces / session_id).stat().st_mode & 0o777 == 0o700
        assert (workspaces / other).stat().st_uid != owner.st_uid
        # Even outside of its sandbox it could not.
        for path in (workspaces, workspaces / other, service.state_dir, service.record_dir):
            listed = subprocess.run(
                [
                    "setpriv",
                    f"--reuid={owner.st_uid}",
                    f"--regid={owner.st_uid}",
                    "--clear-groups",
                    "ls",
                    path,
                ],
                capture_output=True,
                check=False,
            )
            assert listed.returncode != 0, path
        api.delete(f"/v1/sessions/{other}")


# Limits

SHARED_MEMORY = (
    "import mmap\nheld = [mmap.mmap(-1, 64 << 20) for _ in range(12)]\n"
    "for part in held:\n    for at in range(0, len(part), 4096):\n        part[at] = 1"
)
FILL_DISK = (
    "for number in range(100):\n    with open(str(number), 'wb') as file:\n"
    "        for _ in range(12):\n            file.write(bytes(1 << 20))\n            file.flush()"
)
HOGS = {
    "memory": "held = []\nwhile True:\n    held.append(bytearray(10 << 20))",
    "shared memory": SHARED_MEMORY,
    "cpu": "from multiprocessing import Process\ndef spin():\n    while True: pass\n"
    "for _ in range(8): Process(target=spin).start()\nspin()",
    "processes": "import subprocess\nwhile True:\n    subprocess.Popen(['sleep', '60'])",
    "fork bomb": "import subprocess\nsubprocess.run(['bash', '-c', ':(){ :|:& };:; sleep 3'])",
    "fork bomb of process sessions": "import subprocess\nsubprocess.run(['bash', '-c', '"
    "b() { setsid bash -c b & setsid bash -c b & }; export -f b; b; sleep 3'])",
    "disk": FILL_DISK,
    "output": "while True: print('x' * 1000)",
}
ENDLESS = ("cpu", "output")  # the others end by themselves, when they get to it


def test_neighbours_of_hogs_go_on_and_each_hog_gets_its_answer(
    api: httpx.Client, session_id: str, run: Run
) -> None:
    """A memory hog of two kinds, CPU hog, process and fork bombs, disk filler, output flood, side by side."""
    sessions = {name: new_session(api)["id"] for name in HOGS}
    runs = {
        name: execute(api, sessions[name], code, background=True, timeout=6 if name in ENDLESS else 60)["id"]
        for name, code in HOGS.items()
    }
    slowest = 0.0
    for number in range(12):
        began = time.monotonic()
        ended = run(f"open('n', 'w').write('{number}')\n{number} + 1")
        slowest = max(slowest, time.monotonic() - began)
        assert (ended["status"], ended["result"]) == ("ok", str(number + 1))
    assert slowest < PATIENCE
    ended = {name: wait_for_end(api, run_id) for name, run_id in runs.items()}

    def seen(name: str) -> tuple[str, str | None]:
        return ended[name]["status"], (ended[name]["error"] or {}).get("ename")

    assert seen("memory") == ("error", "MemoryError")
    assert ended["shared memory"]["status"] == "kernel_died"
    assert "out of memory (limit 512 MiB)" in ended["shared memory"]["error"]["evalue"]
    assert ended["cpu"]["status"] == "timeout"
    assert seen("processes") == ("error", "BlockingIOError")
    for name in ("fork bomb", "fork bomb of process sessions"):
        assert ended[name]["status"] in ("ok", "error", "timeout", "kernel_died")
    assert ended["disk"]["status"] in ("error", "kernel_died")
    assert ended["disk"]["status"] == "kernel_died" or ended["disk"]["error"]["ename"] == "OSError"
    assert (ended["output"]["status"], ended["output"]["truncated"]) == ("timeout", True)
    for name, hog in sessions.items():
        again = execute(api, hog, "6 * 7")  # also where the workspace is still full
        assert (again["status"], again["result"]) == ("ok", "42"), (name, again["error"])
        assert api.delete(f"/v1/sessions/{hog}").status_code == 204
    assert run("open('n').read()")["result"] == "'11'"


SEND_TOO_MUCH = """
import json, mmap
shown = mmap.mmap(-1, 200 << 20)
kernel = get_ipython().kernel
thread = kernel.iopub_thread
def send(*parts, to=None, begin=[b'x']):
    frames = [json.dumps(part).encode() for part in (
        {'msg_type': 'display_data', 'msg_id': 'm'}, {}, {}, {'data': {}, 'metadata': {}})]
    whole = [*begin, b'<IDS|MSG>', kernel.session.sign(frames), *frames, *parts]
    if to is None:
        thread.schedule(lambda: thread.socket.send_multipart(whole, copy=False))
    else:
        to.send_multipart(whole, copy=False)
"""
WAYS = {
    "one-part": "for _ in range(5): send(mmap.mmap(-1, 300 << 20))",
    "many-parts": "send(*[shown] * 30)",
    "many-messages": "for _ in range(20): send(shown)",
    "replies": """
from ipykernel.kernelapp import IPKernelApp
identity = kernel._parent_ident['shell']
identity = list(identity) if isinstance(identity, (list, tuple)) else [identity]
part = bytes(15 << 20)
for _ in range(60): send(part, to=IPKernelApp.instance().shell_socket, begin=identity)
""",
}


def test_messages_of_gigabytes_do_not_get_into_the_gateway(service: ServiceProcess, run: Run) -> None:
    """The same pages, sent again and again: far more than the kernel itself has memory."""
    before = most_memory(service)
    for name, code in WAYS.items():
        assert run(SEND_TOO_MUCH + code, timeout=1)["status"] in ("timeout", "ok"), name
        assert run("1 + 1")["result"] == "2", name
        assert most_memory(service) - before < 400 * MIB, name


def most_memory(service: ServiceProcess) -> int:
    """Bytes of resident memory that the gateway had at its largest so far."""
    status = Path(f"/proc/{service.gateway.pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


# Without a sandbox


def test_without_a_sandbox_everything_says_so(tmp_path: Path) -> None:
    with running_service(tmp_path, sandbox="off") as service, service.client() as api:
        session = new_session(api)
        assert session["sandboxed"] is False
        assert execute(api, session["id"], "1 + 1")["result"] == "2"
        detail = api.get("/readyz").json()["checks"]["sandbox"]["detail"]
        assert detail.startswith("Kernels run without a sandbox: the setting sandbox is off.")
        assert "Kernels run without a sandbox" in api.get("/", headers={"Accept": "text/html"}).text
        refused = api.post("/v1/sessions", json={"network": "none"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "network_not_enforced")
        assert re.search(
            r"^\[W .*\] Kernels run without a sandbox", service.log_path.read_text(), re.MULTILINE
        )


def test_without_a_sandbox_other_machines_are_not_let_in_unless_allowed(tmp_path: Path) -> None:
    environment = {**os.environ, "INTERPRETER_STATE_DIR": str(tmp_path / "s"), "INTERPRETER_TOKEN": "x"}
    refused = subprocess.run(
        [sys.executable, "-m", "interpreter", "serve", "--ip=0.0.0.0", "--sandbox=off", "--port=0"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert "allow_unsandboxed" in refused.stderr
    with (
        running_service(tmp_path, sandbox="off", ip="0.0.0.0", allow_unsandboxed="1") as service,
        service.client() as api,
    ):
        assert api.get("/readyz").status_code == 200


if IS_ROOT:

    @pytest.mark.exhaustive
    @pytest.mark.timeout(300)
    def test_the_same_as_an_ordinary_user(tmp_path: Path) -> None:
        """All tests above again, with a service that is not root."""
        os.chown(tmp_path, USER, USER)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        ran = subprocess.run(
            as_ordinary_user(command),
            cwd=PROJECT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout[-6000:]


# In a session: send an open file along each connection to the outside; the names of what happened.
SEND_DESCRIPTORS = """
import os, socket, struct
happened = set()
for number in os.listdir("/proc/self/fd"):
    try:
        one = socket.socket(fileno=os.dup(int(number)))
    except OSError:
        continue
    with one:
        if one.family == socket.AF_UNIX:
            peer, _, _ = struct.unpack("3i", one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if peer == 0:  # of another PID namespace
                try:
                    socket.send_fds(one, [b"x"], [0])
                    happened.add("sent")
                except OSError as error:
                    happened.add(type(error).__name__)
print(sorted(happened))
"""


@pytest.mark.skipif(not can_refuse_descriptors(), reason="Linux before 6.16")
def test_no_descriptor_gets_out_of_a_session(service: ServiceProcess) -> None:
    """The gateway would close its last reference, for as long as the code likes: all kernels would wait."""
    with service.client() as api:
        session = new_session(api)
        ended = execute(api, session["id"], SEND_DESCRIPTORS)
        assert (ended["status"], ended["stdout"]) == ("ok", "['PermissionError']\n")
        assert execute(api, session["id"], "1 + 1")["status"] == "ok"
