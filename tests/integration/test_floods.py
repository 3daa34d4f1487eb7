"""Output without measure: a sound answer, a next run that works, bounded memory of the service."""

import httpx
import pytest
from service_process import ServiceProcess
from watching import MIB, peak_growth

pytestmark = pytest.mark.timeout(300)

MOST_GROWTH = 64 * MIB

FLOODS: dict[str, tuple[str, float, str]] = {  # name: code, timeout, status
    "200 MB of print": ("for _ in range(2000): print('x' * 100_000)", 120, "ok"),
    "a million small prints": ("for i in range(1_000_000): print(i)", 120, "ok"),
    "endless print loop": ("while True: print('endless' * 1000)", 2, "timeout"),
    "one line of 100 MB": ("print('x' * 100_000_000)", 120, "ok"),
    "a line of 100 MB past IPython": (
        "import os\nfor _ in range(100): os.write(1, b'y' * 1_000_000)",
        120,
        "ok",
    ),
    "100 MB of the shell's output": ("!head -c 100000000 /dev/zero | tr '\\0' z", 120, "ok"),
    "the shell's output without an end": ("!yes {'x' * 1000}", 2, "timeout"),
    "carriage returns": ("for i in range(300_000): print(f'\\r{i}', end='')", 120, "ok"),
    "both streams in turn": (
        "import sys\nfor i in range(20_000):\n    print(i, flush=True)\n    print(i, file=sys.stderr, flush=True)",
        120,
        "ok",
    ),
    "a figure of 60 MB": (
        "from IPython.display import Image, display\ndisplay(Image(bytes(60_000_000), format='png'))",
        120,
        "ok",
    ),
    "html of 60 MB": ("display({'text/html': 'é' * 30_000_000}, raw=True)", 120, "ok"),
    "5,000 displays": ("for i in range(5000): display(i)", 120, "ok"),
    "JSON of 2,500,000 values": (
        "from IPython.display import JSON, display\ndisplay(JSON([{} for _ in range(2_500_000)]))",
        120,
        "ok",
    ),
    "300 displays of 1 MB": (
        "for i in range(300): display({'text/html': 'h' * 1_000_000}, raw=True)",
        120,
        "ok",
    ),
    "updates of a display": (
        "h = display('', display_id=True)\nfor i in range(3000): h.update('u' * 20_000)",
        120,
        "ok",
    ),
    "clearing": (
        "from IPython.display import clear_output\nfor i in range(3000):\n    clear_output(wait=True)\n    print('c' * 20_000)",
        120,
        "ok",
    ),
    "a result of 50 MB": ("'r' * 50_000_000", 120, "ok"),
    "a traceback of 50 MB": ("raise ValueError('t' * 50_000_000)", 120, "error"),
}


@pytest.fixture
def session_id(shared_session_id: str) -> str:
    return shared_session_id


@pytest.mark.parametrize("name", FLOODS)
def test_flood(name: str, service: ServiceProcess, api: httpx.Client, session_id: str) -> None:
    path = f"/v1/sessions/{session_id}/runs"
    code, timeout, status = FLOODS[name]
    api.post(path, json={"code": "from IPython.display import display"})
    with peak_growth(service.process.pid) as growth:
        answer = api.post(path, json={"code": code, "timeout": timeout}, timeout=200)
        ended = answer.json()
        after = api.post(path, json={"code": "1 + 1"}).json()
    assert answer.status_code == 200
    assert ended["status"] == status, ended["notices"]
    assert ended["recorded"] is True
    assert len(answer.content) < 40 * MIB
    assert after["result"] == "2"
    assert after["stdout"] == ""
    assert growth() < MOST_GROWTH, f"{growth() / MIB:.0f} MiB"
    if name not in ("carriage returns", "updates of a display", "clearing", "both streams in turn"):
        assert ended["truncated"] is True
        assert ended["notices"]
        assert ended["dropped_bytes"] > 0 or name == "5,000 displays"
    assert api.get(f"/v1/notebooks/{session_id}/verify").json()["valid"] is True


def test_head_and_tail_are_kept_and_the_rest_is_counted(api: httpx.Client, session_id: str) -> None:
    path = f"/v1/sessions/{session_id}/runs"
    ended = api.post(path, json={"code": "for i in range(400_000): print(f'{i:09d}')"}).json()
    text = ended["stdout"]
    assert text.startswith("000000000\n000000001\n")
    assert text.endswith("000399998\n000399999\n")
    assert len(text.encode()) <= 1024**2 + 1000
    kept = sum(len(line) + 1 for line in text.splitlines() if line.isdecimal())
    assert abs(ended["dropped_bytes"] + kept - 4_000_000) < 100


def test_followers_of_a_flood_do_not_make_it_larger(service: ServiceProcess, session_id: str) -> None:
    """A client that reads its events slowly, or not at all, costs no memory either."""
    path = f"/v1/sessions/{session_id}/runs"
    code = "for _ in range(1000): print('x' * 100_000)"
    with peak_growth(service.process.pid) as growth, service.client() as one, service.client() as other:
        made = one.post(path, json={"code": code, "background": True}).json()
        with other.stream("GET", f"/v1/runs/{made['id']}/events") as unread:
            assert unread.status_code == 200
            with one.stream("GET", f"/v1/runs/{made['id']}/events") as events:
                last = [line for line in events.iter_lines() if line.startswith("event:")][-1]
    assert last == "event: run.completed"
    assert growth() < MOST_GROWTH, f"{growth() / MIB:.0f} MiB"


def test_a_large_session_is_read_in_the_memory_of_one_run(
    service: ServiceProcess, api: httpx.Client, own_session_id: str
) -> None:
    code = "from IPython.display import HTML, display\ndisplay(HTML('x' * 8_000_000))"
    reads = {
        f"/v1/sessions/{own_session_id}/runs?limit=100": "*/*",
        f"/v1/notebooks/{own_session_id}": "*/*",
        f"/v1/notebooks/{own_session_id}?download=1": "text/html",
    }
    with peak_growth(service.process.pid) as growth:
        for _ in range(12):
            assert (
                api.post(f"/v1/sessions/{own_session_id}/runs", json={"code": code}).json()["status"] == "ok"
            )
        for path, accept in reads.items():
            with api.stream("GET", path, headers={"Accept": accept}) as answer:
                assert sum(map(len, answer.iter_bytes())) > 12 * 8_000_000
        replayed = api.post(f"/v1/sessions/{own_session_id}/restart", json={"replay": True})
    assert replayed.status_code == 200
    assert growth() < MOST_GROWTH, f"{growth() / MIB:.0f} MiB"


def test_a_kernel_that_sends_nonsense_does_not_flood_the_log(
    service: ServiceProcess, api: httpx.Client, session_id: str
) -> None:
    before = service.log_path.stat().st_size
    code = (
        "socket = get_ipython().kernel.iopub_socket\n"
        "for _ in range(20_000): socket.send_multipart([b'<IDS|MSG>', b'', *[b'nonsense'] * 4])"
    )
    run = api.post(f"/v1/sessions/{session_id}/runs", json={"code": code}).json()
    assert run["status"] == "ok"
    assert service.log_path.stat().st_size - before < MIB // 10
