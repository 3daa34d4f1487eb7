"""No session gets a larger share of the processors by having very many processes, threads or process sessions."""

import os
import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
from sandbox_kit import Boxed, boxed

from interpreter.gateway_extension.sandbox import crowds, processes, watchdog

SETSID = {
    "setsid": "import os\nfor _ in range(8):\n if os.fork() == 0: os.setsid(); break",
    "orphans": "import os\nfor _ in range(8):\n if os.fork() == 0:\n  if os.fork() == 0: os.setsid(); break\n  os._exit(0)",
    "each its next": "import os\nfor _ in range(8):\n if os.fork(): break\n os.setsid()",
    "shell": "import subprocess\nfor _ in range(8): subprocess.Popen(['sh', '-c', 'setsid sleep 60 & wait'])",
}


@pytest.mark.parametrize("group", [True, False], ids=["control group", "none"])
@pytest.mark.parametrize("code", SETSID.values(), ids=SETSID)
def test_nobody_has_a_share_of_the_processors_for_each_of_very_many_process_sessions(
    code: str, group: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowds, "MAX_PROCESS_SESSIONS", 6)
    with boxed({"use_cgroups": group}) as kernel:
        kernel.start_run(code + "\nimport time; time.sleep(60)")
        if "cpu" in kernel.provisioner._sandbox.enforced:  # shares are the group's
            assert wait_for_sessions(kernel, 7) == "too many process sessions (limit 6)"
            assert kernel.manager.is_alive()
        else:
            assert kernel.wait_for_death() == "too many process sessions (limit 6)"


def wait_for_sessions(kernel: Boxed, count: int) -> str | None:
    """Until the sandbox has so many process sessions; what a watchdog would say then."""
    sandbox = kernel.provisioner._sandbox
    roots = sandbox._roots()
    deadline = time.monotonic() + 20
    while len({os.getsid(pid) for pid in processes.tree(*roots)}) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return crowds.hold_back(roots, sandbox.place.uid)[1]


def test_programs_may_have_process_sessions_of_their_own() -> None:
    code = """
import os, pty, subprocess
detached = [subprocess.Popen(['sleep', '60'], start_new_session=True) for _ in range(12)]
detached.append(subprocess.Popen(['nohup', 'setsid', 'sleep', '60'], stdout=-3, stderr=-3))
shell, terminal = pty.fork()
if shell == 0: os.execvp('bash', ['bash', '-i'])
os.write(terminal, b'sleep 0 & fg; echo fore$((6*7))ground\\n')
seen = b''
while b'fore42ground' not in seen: seen += os.read(terminal, 1024)
print(os.getsid(shell) == shell, b'no job control' in seen)
"""
    with boxed({"use_cgroups": False}) as kernel:
        assert kernel.run(code) == "True False\n"
        assert wait_for_sessions(kernel, 15) is None
        assert kernel.run("print({child.poll() for child in detached})") == "{None}\n"


CROWDS = {
    "processes": "pids = [subprocess.Popen(['sleep', '60']).pid for _ in range(40)]",
    "threads": "pids = []\nfor _ in range(40):\n thread = threading.Thread(target=time.sleep, args=(60,))\n"
    " thread.start()\n pids.append(thread.native_id)",
}
WAIT_TO_GO_LAST = """
deadline = time.monotonic() + 15
def seen(): return {os.getpriority(os.PRIO_PROCESS, pid) for pid in (*pids, os.getpid())}
while seen() != {19} and time.monotonic() < deadline: time.sleep(0.05)
try: os.setpriority(os.PRIO_PROCESS, pids[0], 0)
except PermissionError: pass
print(seen(), subprocess.run(['nice'], capture_output=True, text=True).stdout)
"""


@pytest.mark.parametrize("code", CROWDS.values(), ids=CROWDS)
def test_where_the_system_divides_the_processors_among_threads_those_of_a_crowd_go_last(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowds, "MAX_EQUAL_THREADS", 40)
    with boxed({"use_cgroups": False}) as kernel, boxed({"use_cgroups": False}) as other:
        assert kernel.run("import os, subprocess, threading, time\n" + code) == ""
        assert kernel.run(WAIT_TO_GO_LAST) == "{19} 19\n\n"
        assert other.run("import os; print(os.getpriority(os.PRIO_PROCESS, 0))") == "1\n"


def test_beside_a_crowd_that_grows_nothing_comes_before_the_next_look_at_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[tuple[str, int]] = []
    hold_back, memory_exceeds = watchdog.hold_back, processes.memory_exceeds

    def at_crowd(roots: Sequence[int], uid: int) -> tuple[list[int], str | None]:
        pids, reason = hold_back(roots, uid)
        looks.append(("crowd", len(pids)))
        return pids, reason

    def at_memory(pids: list[int], init: int, limit: int, *, unnamed: int) -> bool:
        looks.append(("memory", len(pids)))
        return memory_exceeds(pids, init, limit, unnamed=unnamed)

    monkeypatch.setattr(watchdog, "hold_back", at_crowd)
    monkeypatch.setattr(processes, "memory_exceeds", at_memory)
    with boxed({"use_cgroups": False}) as kernel:
        kernel.run("import subprocess\nfor _ in range(80): subprocess.Popen(['sleep', '60'])")
        deadline = time.monotonic() + 20
        while looks[-1][0] == "crowd" or looks[-1][1] < 80:
            assert time.monotonic() < deadline, looks
            time.sleep(0.02)
    crowds_seen = [(at, count) for at, (kind, count) in enumerate(looks) if kind == "crowd"]
    grown = [
        at for (_, before), (at, count) in pairwise(crowds_seen) if count > before + watchdog.MUCH_GROWTH
    ]
    assert grown
    assert all(looks[at + 1][0] == "crowd" for at in grown)
