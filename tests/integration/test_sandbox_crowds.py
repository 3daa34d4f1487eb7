"""No session gets a larger share of the processors by having very many processes, threads or process sessions."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sandbox_kit import Boxed, boxed

from interpreter.gateway_extension.sandbox import crowds, processes
from interpreter.gateway_extension.sandbox.holdings import Holdings

UNGROUPED = {"use_cgroups": False}
PATIENCE = 15.0  # seconds that a small run may take beside all bombs, on a busy machine
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
        if divides_processors(kernel):  # shares are the group's
            assert wait_for_sessions(kernel, 7) == "too many process sessions (limit 6)"
            assert kernel.manager.is_alive()
        else:
            assert kernel.wait_for_death() == "too many process sessions (limit 6)"


def divides_processors(kernel: Boxed) -> bool:
    """Whether a control group does."""
    return "cpu" in kernel.provisioner._sandbox.enforced


def crowd_of(kernel: Boxed) -> crowds.Crowd:
    """To look at it as its watchdog does."""
    sandbox = kernel.provisioner._sandbox
    return crowds.Crowd(kernel.init, sandbox._roots, sandbox.place.uid)


def wait_for_sessions(kernel: Boxed, count: int) -> str | None:
    """Until the sandbox has so many process sessions; what a watchdog would say then."""
    roots = kernel.provisioner._sandbox._roots()
    wait_for(lambda: len({os.getsid(pid) for pid in processes.tree(*roots)}) >= count)
    return crowd_of(kernel).look()


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
    with boxed(UNGROUPED) as kernel:
        assert kernel.run(code) == "True False\n"
        assert wait_for_sessions(kernel, 15) is None
        assert kernel.run("print({child.poll() for child in detached})") == "{None}\n"


def test_busy_process_sessions_go_last_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a share of the processors where the scheduler has autogroups."""
    monkeypatch.setattr(crowds, "MANY_BUSY_SESSIONS", 2)
    code = f"import subprocess\nbusy = [subprocess.Popen({SPIN}, start_new_session=True) for _ in range(5)]"
    later = "later = subprocess.Popen(['sleep', '60'], start_new_session=True)"
    with boxed(UNGROUPED) as kernel:
        assert kernel.run(code) == ""
        roots = kernel.provisioner._sandbox._roots()

        def shares() -> set[str]:
            """What the system says of each, without its name."""
            texts = [Path(f"/proc/{pid}/autogroup") for pid in processes.tree(*roots)]
            return {path.read_text().split(" ", 1)[1] for path in texts if path.exists()}

        wait_for(lambda: shares() <= {"nice 19\n"})
        # For good: who was many may be so again.
        assert kernel.run(f"for one in busy: one.kill(); one.wait()\n{later}") == ""
        wait_for(lambda: shares() <= {"nice 19\n"})


SPIN = "['sh', '-c', 'while :; do :; done']"
CROWDS = {
    "processes": f"pids = [subprocess.Popen({SPIN}).pid for _ in range(8)]",
    "threads": "pids = []\ndef spin():\n while True: zlib.crc32(bytes(10**6))\nfor _ in range(8):\n"
    " thread = threading.Thread(target=spin)\n thread.start()\n pids.append(thread.native_id)",
    "with a flag that their policy can't be changed without": "def set_flag():\n try: os.sched_setscheduler(0, os.SCHED_RESET_ON_FORK, os.sched_param(0))\n"
    f" except PermissionError: pass  # it goes last already\nset_flag()\n"
    f"pids = [subprocess.Popen({SPIN}, preexec_fn=set_flag).pid for _ in range(8)]",
}
WAIT_TO_GO_LAST = """
deadline = time.monotonic() + 15
def seen(): return {(os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid) & 7) for pid in (*pids, os.getpid())}
while seen() != {(19, os.SCHED_IDLE)} and time.monotonic() < deadline: time.sleep(0.05)
for go_back in (
    lambda: os.setpriority(os.PRIO_PROCESS, pids[0], 0),
    lambda: os.sched_setscheduler(pids[0], os.SCHED_OTHER, os.sched_param(0)),
    lambda: os.sched_setscheduler(0, os.SCHED_BATCH | os.SCHED_RESET_ON_FORK, os.sched_param(0)),
):
    try: go_back(); print('went back')
    except PermissionError: pass
pids.append(subprocess.Popen(['sleep', '60']).pid)
print(seen() == {(19, os.SCHED_IDLE)})
"""
SHARE = "import os; print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0))"


@pytest.mark.parametrize("code", CROWDS.values(), ids=CROWDS)
def test_where_the_system_divides_the_processors_among_threads_those_of_a_crowd_go_last(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowds, "MANY_RUNNING", 4)
    with boxed(UNGROUPED) as kernel, boxed(UNGROUPED) as other:
        assert kernel.run("import os, subprocess, threading, time, zlib\n" + code) == ""
        assert kernel.run(WAIT_TO_GO_LAST) == "True\n"
        # When that one is killed, it has to end the others.
        assert os.sched_getscheduler(kernel.init) == os.SCHED_OTHER
        assert other.run(SHARE) == "10 0\n"


def test_threads_and_processes_that_wait_are_no_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "MANY_RUNNING", 8)
    monkeypatch.setattr(crowds, "MAX_RUNNING", 8)
    code = """
import subprocess, threading
children = [subprocess.Popen(['sleep', '60']) for _ in range(40)]
for _ in range(100): threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
    with boxed(UNGROUPED) as kernel:
        crowd = crowd_of(kernel)
        assert crowd.look() is None
        assert kernel.run(code) == ""
        assert crowd.look() is None
        assert crowd.is_urgent  # it may grow on
        assert crowd.look() is None
        assert not crowd.is_urgent
        assert kernel.run(SHARE) == "10 0\n"


SPINNERS = f"import subprocess\nspinners = [subprocess.Popen({SPIN}) for _ in range(10)]"


@pytest.mark.parametrize("group", [True, False], ids=["control group", "none"])
def test_too_many_threads_that_want_to_run_end_the_kernel(
    group: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowds, "MANY_RUNNING", 4)
    monkeypatch.setattr(crowds, "MAX_RUNNING", 6)
    with boxed({"use_cgroups": group}) as kernel:
        kernel.start_run(SPINNERS)
        if divides_processors(kernel):
            crowd = crowd_of(kernel)
            wait_for(lambda: crowd.look() == "too many threads run at once (limit 6)")
            assert kernel.manager.is_alive()
        else:
            assert kernel.wait_for_death() == "too many threads run at once (limit 6)"


def wait_for(happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_many_threads_may_run_at_once_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "MANY_RUNNING", 4)
    monkeypatch.setattr(crowds, "MAX_RUNNING", 6)
    monkeypatch.setattr(crowds, "PATIENCE", 3600.0)
    with boxed(UNGROUPED) as kernel:
        crowd = crowd_of(kernel)
        assert kernel.run(SPINNERS) == ""
        wait_for(lambda: crowd.look() is None and crowd.is_urgent)
        assert kernel.run("for one in spinners: one.kill(); one.wait()") == ""
        assert crowd.look() is None
        assert not crowd.is_urgent


def test_a_crowd_is_held_back_while_its_memory_can_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "MANY_RUNNING", 4)
    readable = threading.Event()
    monkeypatch.setattr(Holdings, "look", lambda *_: readable.wait())
    with boxed(UNGROUPED) as kernel:
        try:
            assert kernel.run("import os, subprocess, time\n" + CROWDS["processes"]) == ""
            assert kernel.run(WAIT_TO_GO_LAST) == "True\n"
        finally:
            readable.set()


BOMB = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"


def test_beside_three_fork_bombs_a_neighbour_goes_on_and_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MANY_RUNNING", "MAX_RUNNING"):  # one that goes last before grows slowly
        monkeypatch.setattr(crowds, name, 48)
    with (
        boxed(UNGROUPED) as neighbour,
        boxed(UNGROUPED) as one,
        boxed(UNGROUPED) as two,
        boxed(UNGROUPED) as three,
    ):
        bombs = [one, two, three]
        for bomb in bombs:
            bomb.start_run(BOMB)
        while any(bomb.manager.is_alive() for bomb in bombs):
            assert neighbour.run("print(1 + 1)", timeout=PATIENCE) == "2\n"
        reasons = {bomb.wait_for_death() for bomb in bombs}
        assert reasons == {"too many threads run at once (limit 48)"}
