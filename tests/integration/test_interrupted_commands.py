"""An interrupt that comes while IPython starts or ends the program of a ``!command``."""

import threading
from collections.abc import Callable

import pytest
from service_process import ServiceProcess
from watching import eventually

Run = Callable[..., dict]

# The program runs, and IPython does not know it yet.
SLOW_START = """
import pty, time
fork = pty.fork
def fork_slowly():
    pty.fork = fork
    pid, terminal = fork()
    if pid:
        open('begun', 'w').close()
        time.sleep(30)
    return pid, terminal
pty.fork = fork_slowly
"""
# The second interrupt comes while IPython deals with the first.
SLOW_END = """
import pexpect, time
def sendline_slowly(self, text):
    open('ending', 'w').close()
    time.sleep(30)
pexpect.spawn.sendline = sendline_slowly
"""
# In the same cell, before anybody else ends what the cell has started.
COMMAND = """
import subprocess
own = subprocess.Popen(['sleep', '973'], start_new_session=True)
try:
    get_ipython().system("trap '' HUP; touch begun; sleep 974; sleep 975")
finally:
    print(subprocess.run(['pgrep', '-f', '^sleep 97'], capture_output=True, text=True).stdout.split() == [str(own.pid)])
"""


@pytest.mark.parametrize(
    "case", [(SLOW_START, ["begun"]), (SLOW_END, ["begun", "ending"])], ids=["start", "end"]
)
def test_its_program_ends_and_the_error_is_an_interrupt(
    service: ServiceProcess, session_id: str, run: Run, case: tuple[str, list[str]]
) -> None:
    setup, files = case
    assert run(setup)["status"] == "ok"
    ended: dict = {}
    thread = threading.Thread(target=lambda: ended.update(run(COMMAND)))
    thread.start()
    with service.client() as other:
        for file in files:
            url = f"/v1/sessions/{session_id}/files/{file}"
            assert eventually(lambda url=url: other.get(url).status_code == 200)
            other.post(f"/v1/sessions/{session_id}/interrupt")
    thread.join()
    assert (ended["status"], ended["error"]["ename"]) == ("interrupted", "KeyboardInterrupt")
    assert ended["stdout"] == "True\n"
    assert run("!pgrep -cf '^sleep 97'")["stdout"].strip() == "0"
