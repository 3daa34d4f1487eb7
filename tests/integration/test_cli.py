"""The command line against a real service: run, token, record; each as a process of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx
import nbformat
import pytest
from service_process import ServiceProcess

SLOW = "import time\nprint('go', flush=True)\ntime.sleep(60)\n"


class CommandLine:
    """Calls of ``jupyter interpreter`` with the service's state and record."""

    def __init__(self, service: ServiceProcess, folder: Path) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("INTERPRETER_")}
        self.environment = {
            **kept,
            "INTERPRETER_STATE_DIR": str(service.state_dir),
            "INTERPRETER_RECORD_DIR": str(service.record_dir),
            "JUPYTER_CONFIG_DIR": str(folder),
        }

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "interpreter", *arguments],
            env={**self.environment, **variables},
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def __call__(
        self, *arguments: str, stdin: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments, **variables) as process:
            out, err = process.communicate(stdin, timeout=60)
        assert "Traceback (most recent call last):\n  File" not in err
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)


@pytest.fixture
def session_id(shared_session_id: str) -> str:
    return shared_session_id


@pytest.fixture
def cli(service: ServiceProcess, tmp_path: Path) -> CommandLine:
    return CommandLine(service, tmp_path)


@pytest.fixture
def slow(cli: CommandLine, session_id: str) -> Iterator[subprocess.Popen[str]]:
    """``run`` with code that has printed a line and would go on for a minute."""
    (cli.folder / "slow.py").write_text(SLOW)
    with cli.start("run", f"--session={session_id}", "slow.py") as process:
        assert read_line(process.stdout) == "go\n"
        assert process.poll() is None
        yield process
        process.kill()


def read_line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()


def last_run(api: httpx.Client, session_id: str) -> dict:
    run: dict = api.get(f"/v1/sessions/{session_id}/runs").json()["data"][0]
    return run


# run


def test_output_and_result_go_to_stdout_the_rest_to_stderr(cli: CommandLine) -> None:
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7"
    done = cli("run", "-", stdin=code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n42\n", "err\n")


def test_output_is_shown_as_it_is_printed_and_ctrl_c_cancels_the_run(
    slow: subprocess.Popen[str], api: httpx.Client, session_id: str
) -> None:
    slow.send_signal(signal.SIGINT)
    out, err = slow.communicate(timeout=60)
    assert (slow.returncode, out, err) == (130, "", "")
    assert last_run(api, session_id)["status"] == "cancelled"


@pytest.mark.parametrize(("action", "code"), [("interrupt", 130), ("cancel", 143)])
def test_a_run_that_is_stopped_elsewhere_ends_with_its_status(
    action: str, code: int, slow: subprocess.Popen[str], api: httpx.Client, session_id: str
) -> None:
    run_id = last_run(api, session_id)["id"]
    path = f"/v1/sessions/{session_id}/interrupt" if action == "interrupt" else f"/v1/runs/{run_id}/cancel"
    assert api.post(path, json={}).status_code < 300
    slow.communicate(timeout=30)
    assert slow.returncode == code


@pytest.mark.parametrize(
    ("source", "options", "code", "err"),
    [
        ("1/0", (), 1, "ZeroDivisionError: division by zero"),
        ("import time; time.sleep(60)", ("--timeout=0.5",), 124, "timeout of 0.5 seconds"),
        ("import os; os._exit(3)", (), 137, "The kernel died"),
    ],
)
def test_the_exit_code_tells_the_status(
    source: str, options: tuple[str, ...], code: int, err: str, cli: CommandLine
) -> None:
    done = cli("run", *options, "-", stdin=source)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.count(err) == 1
    assert "\x1b" not in done.stderr


def test_json_is_the_run_and_nothing_else(cli: CommandLine) -> None:
    done = cli("run", "--json", "-", stdin="print('é')\n1/0")
    assert (done.returncode, done.stderr) == (1, "")
    run = json.loads(done.stdout)
    assert (run["status"], run["stdout"], run["error"]["ename"]) == ("error", "é\n", "ZeroDivisionError")


def test_images_and_files_are_mentioned(cli: CommandLine) -> None:
    code = (
        "from IPython.display import display\n"
        "display({'image/png': 'AAAA'}, raw=True)\n"
        "display({'text/plain': 'table', 'text/html': '<table>'}, raw=True)\n"
        "with open('made.txt', 'w') as f: _ = f.write('12345')"
    )
    done = cli("run", "-", stdin=code)
    assert (done.returncode, done.stdout) == (0, "table\n")
    assert done.stderr == "[image/png, 3 bytes: not shown]\ncreated made.txt (5 bytes)\n"


def test_a_new_session_keeps_its_state(cli: CommandLine, api: httpx.Client) -> None:
    first = cli("run", "--session=new", "-", stdin="x = 20")
    word, session_id = first.stderr.split()
    assert (word, first.stdout) == ("session", "")
    second = cli("run", f"--session={session_id}", "-", stdin="x + 1")
    assert (second.returncode, second.stdout) == (0, "21\n")
    assert api.delete(f"/v1/sessions/{session_id}").status_code == 204
    third = cli("run", f"--session={session_id}", "-", stdin="x")
    assert third.returncode == 3
    assert "session" in third.stderr


def test_the_service_is_found_by_its_address_too(
    cli: CommandLine, service: ServiceProcess, tmp_path: Path
) -> None:
    elsewhere = {"INTERPRETER_STATE_DIR": str(tmp_path)}
    printed = cli("run", f"--url={service.url}/?token={service.token}", "-", stdin="1", **elsewhere)
    assert (printed.returncode, printed.stdout) == (0, "1\n")
    variables = {"INTERPRETER_URL": service.url, "INTERPRETER_TOKEN": service.token, **elsewhere}
    assert cli("run", "-", stdin="1", **variables).stdout == "1\n"


def test_what_stands_between_us_and_the_service_is_named(
    cli: CommandLine, service: ServiceProcess, tmp_path: Path
) -> None:
    elsewhere = {"INTERPRETER_STATE_DIR": str(tmp_path)}
    for arguments, sentence in (
        ((), "No service runs here; start one with `jupyter interpreter serve`"),
        (("--url=http://127.0.0.1:1",), "No service runs at http://127.0.0.1:1: connection refused"),
        (("--url=http://nowhere.invalid",), "The host name of http://nowhere.invalid does not resolve"),
        ((f"--url={service.url}",), "The service wants a token; set INTERPRETER_TOKEN"),
        ((f"--url={service.url}", "--token=wrong"), "The service refuses the token"),
        ((f"--url={service.url}/base",), "The service wants a token"),
    ):
        done = cli("run", *arguments, "-", stdin="1", **elsewhere)
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr.startswith(f"jupyter interpreter: {sentence}")
        assert done.stderr.count("\n") == 1


def test_the_own_token_is_not_shown_to_another_service(cli: CommandLine, service: ServiceProcess) -> None:
    done = cli("run", f"--url={service.url}", "-", stdin="1")
    assert "The service wants a token" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "Give exactly one FILE, or - for standard input; see --help."),
        (("none.py",), "none.py can't be read: No such file or directory."),
        (("--session=../x", "-"), "session must be the id of a session, or `new`."),
        (("--sesion=new", "-"), "--sesion is no option; do you mean session?"),
        (("--url=nonsense", "-"), "url must look like http://host:port."),
    ],
)
def test_wrong_usage_ends_with_a_sentence(
    arguments: tuple[str, ...], sentence: str, cli: CommandLine
) -> None:
    done = cli("run", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"jupyter interpreter: {sentence}\n")


def test_a_refusal_of_the_service_is_passed_on(cli: CommandLine) -> None:
    done = cli("run", "--kernel=nope", "-", stdin="1")
    assert done.returncode == 3
    assert "nope" in done.stderr


@pytest.mark.parametrize("command", ["--help", "record --help-all", "record list --help"])
def test_a_reader_that_has_enough_of_the_help_ends_it_quietly(command: str, cli: CommandLine) -> None:
    line = f"'{sys.executable}' -m interpreter {command} | head -1 > /dev/null"
    done = subprocess.run(
        ["bash", "-c", line], check=False, env=cli.environment, capture_output=True, text=True
    )
    assert done.stderr == ""


def test_a_reader_that_has_enough_ends_it_quietly(cli: CommandLine) -> None:
    with cli.start("run", "-") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(
            "import time\nwhile True:\n    print('x' * 1000, flush=True)\n    time.sleep(0.01)"
        )
        process.stdin.close()
        assert process.stdout.readline().startswith("x")
        process.stdout.close()
        assert process.wait(30) == 1
        assert process.stderr is not None
        assert process.stderr.read() == ""


# token


def test_a_token_is_made_used_and_revoked_beside_the_service(
    cli: CommandLine, service: ServiceProcess
) -> None:
    made = cli("token", "create", "--name=chat", "--role=run", "--expires-in=30d")
    assert made.returncode == 0
    secret = made.stdout.removesuffix("\n")
    assert secret.startswith("jci_")
    assert secret not in made.stderr
    with service.client(secret) as client:
        assert client.get("/v1/sessions").status_code == 200
    tokens = json.loads(cli("token", "list", "--json").stdout)
    (token,) = [token for token in tokens if token["name"] == "chat"]
    assert token["role"] == "run"
    assert token["expires_at"] > token["created_at"]
    listed = cli("token", "list")
    assert token["id"] in listed.stdout
    assert secret not in listed.stdout
    assert cli("token", "revoke", token["id"]).returncode == 0
    assert token["id"] not in cli("token", "list").stdout
    gone = cli("token", "revoke", token["id"])
    assert (gone.returncode, gone.stderr) == (1, f"jupyter interpreter: There is no token {token['id']}.\n")


def test_a_token_that_was_revoked_is_refused(cli: CommandLine, service: ServiceProcess) -> None:
    made = json.loads(cli("token", "create", "--name=short", "--role=run", "--json").stdout)
    assert cli("token", "revoke", made["id"]).returncode == 0
    with service.client(made["token"]) as client:
        assert client.get("/v1/sessions").status_code == 401


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--role=run",), "--name must be given: 1 to 200 printable characters."),
        (("--name=a",), "--role must be given: run, review, admin."),
        (
            ("--name=a", "--role=run", "--expires-in=soon"),
            "--expires-in must be a number and s, m, h, d or w",
        ),
        (("--name=a", "--role=run", "--expires-at=2001-01-01"), "--expires-at must be in the future."),
        (("--name=a", "--role=run", "--expires-at=soon"), "--expires-at must be an ISO 8601 date or time"),
        (
            ("--name=a", "--role=run", "--expires-in=1d", "--expires-at=2999-01-01"),
            "Give --expires-in or --expires-at, not both.",
        ),
    ],
)
def test_a_token_is_not_made_of_wrong_words(
    arguments: tuple[str, ...], sentence: str, cli: CommandLine
) -> None:
    done = cli("token", "create", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"jupyter interpreter: {sentence}")


# record


@pytest.fixture(scope="module")
def recorded(service: ServiceProcess) -> str:
    """The id of a session that has ended; what changes its record does so in a copy."""
    with service.client() as api:
        session_id: str = api.post("/v1/sessions", json={"metadata": {"topic": "sums"}}).json()["id"]
        for code in ("print('needle\\x1b[2J')\nobject()", "1/0", "%time _ = 1"):
            api.post(f"/v1/sessions/{session_id}/runs", json={"code": code})
        assert api.delete(f"/v1/sessions/{session_id}").status_code == 204
    return session_id


@pytest.fixture
def copied(recorded: str, cli: CommandLine, service: ServiceProcess) -> CommandLine:
    """The command line on a copy of the record, which no service writes."""
    for name, source in (("RECORD", service.record_dir), ("STATE", service.state_dir)):
        target = cli.folder / name.lower()
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("workspaces", "gateway", "runtime"))
        cli.environment[f"INTERPRETER_{name}_DIR"] = str(target)
    return cli


def ids(cli: CommandLine, *arguments: str) -> list[str]:
    done = cli("record", "list", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return [record["session_id"] for record in json.loads(done.stdout)]


def test_the_record_is_listed_and_searched_beside_the_service(recorded: str, cli: CommandLine) -> None:
    for arguments in (
        (),
        ("--q=NEEDLE",),
        ("--status=error",),
        ("--since=2020-01-01",),
        ("--until=2999-01-01",),
        ("--kernel-name=python3",),
    ):
        assert recorded in ids(cli, *arguments)
    for arguments in (
        ("--q=no such text",),
        ("--status=timeout",),
        ("--since=2999-01-01",),
        ("--until=2020-01-01",),
        ("--kernel-name=julia",),
    ):
        assert recorded not in ids(cli, *arguments)
    (line,) = [line for line in cli("record", "list").stdout.splitlines() if recorded in line]
    assert "1 error, 2 ok" in line
    assert line.endswith("deleted")


def test_a_session_is_shown_without_steering_the_terminal(recorded: str, cli: CommandLine) -> None:
    shown = cli("record", "show", recorded).stdout
    assert "\x1b" not in shown
    assert "topic: sums" in shown
    assert "In[1]  " in shown
    assert "    print('needle\\x1b[2J')\n    object()\n" in shown
    assert "<object at 0x" in shown
    assert "ZeroDivisionError: division by zero" in shown
    data = json.loads(cli("record", "show", "--json", recorded).stdout)
    assert [run["status"] for run in data["runs"]] == ["ok", "error", "ok"]
    notebook = nbformat.reads(cli("record", "show", "--notebook", recorded).stdout, as_version=4)
    nbformat.validate(notebook)
    assert len(notebook.cells) == 3
    unknown = cli("record", "show", "A" * 21)
    sentence = f"jupyter interpreter: There is no session {'A' * 21} in the record.\n"
    assert (unknown.returncode, unknown.stdout, unknown.stderr) == (1, "", sentence)


def test_verify_finds_what_was_changed(recorded: str, copied: CommandLine) -> None:
    assert copied("record", "verify", recorded).returncode == 0
    assert copied("record", "verify", "--all").returncode == 0
    (journal,) = (copied.folder / "record").rglob(f"{recorded}.jsonl")
    journal.write_bytes(journal.read_bytes().replace(b"1/0", b"1/1", 1))
    for target in (recorded, "--all"):
        done = copied("record", "verify", target)
        assert done.returncode == 1
        assert f"{recorded}: NOT VALID" in done.stdout
    report = json.loads(copied("record", "verify", "--json", recorded).stdout)
    assert report[recorded]["valid"] is False
    assert copied("record", "verify").returncode == 2


def test_export_copies_journal_and_notebook_and_overwrites_nothing(recorded: str, cli: CommandLine) -> None:
    done = cli("record", "export", recorded, "--out=out.zip")
    assert (done.returncode, done.stderr) == (0, "1 session exported to out.zip.\n")
    with zipfile.ZipFile(cli.folder / "out.zip") as archive:
        names = sorted(Path(name).name for name in archive.namelist())
        assert names == [f"{recorded}.ipynb", f"{recorded}.jsonl"]
    again = cli("record", "export", "--all", "--out=out.zip")
    assert (again.returncode, again.stderr) == (
        2,
        "jupyter interpreter: out.zip exists already; give another name to --out.\n",
    )
    assert cli("record", "export", "A" * 21, "--out=other.zip").returncode == 1
    assert sorted(path.name for path in cli.folder.iterdir()) == ["out.zip"]


def test_prune_asks_and_removes_for_good(recorded: str, copied: CommandLine) -> None:
    refused = copied("record", "prune", "--before=2999-01-01", stdin="n\n")
    assert refused.returncode == 1
    assert recorded in ids(copied)
    assert copied("record", "prune", "--before=2020-01-01", "-y").returncode == 0
    assert recorded in ids(copied)
    assert copied("record", "prune", "--before=2999-01-01", stdin="y\n").returncode == 0
    assert recorded not in ids(copied)
    assert copied("record", "verify", "--all").returncode == 0


def test_prune_refuses_while_a_service_writes(recorded: str, cli: CommandLine) -> None:
    done = cli("record", "prune", "--before=2999-01-01", "-y")
    assert done.returncode == 2
    assert "Another service writes this record" in done.stderr
    assert recorded in ids(cli)


def test_a_replay_that_gives_the_same_is_equal(recorded: str, cli: CommandLine) -> None:
    done = cli("record", "replay", recorded)
    assert (done.returncode, done.stdout) == (
        0,
        "run 1: equal\nrun 2: equal\nrun 3: equal\nAll outputs are equal.\n",
    )


def test_a_replay_shows_what_differs(cli: CommandLine, api: httpx.Client, own_session_id: str) -> None:
    for code in ("import os; x = os.urandom(8).hex()", "print('same')", "print(x)", "import os; os._exit(1)"):
        api.post(f"/v1/sessions/{own_session_id}/runs", json={"code": code})
    api.post(f"/v1/sessions/{own_session_id}/runs", json={"code": "print('x' in globals())"})
    done = cli("record", "replay", "--json", own_session_id)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["equal"] is False
    words = [run["comparison"] for run in report["runs"]]
    assert words == ["equal", "equal", "differs", "equal", "equal"]
    assert report["runs"][2]["diff"][:2] == ["--- recorded", "+++ replayed"]
    assert [run["replayed_status"] for run in report["runs"]] == ["ok", "ok", "ok", "kernel_died", "ok"]


# check


def test_check_without_a_gateway_checks_the_embedded_one(cli: CommandLine) -> None:
    done = cli("check", PYTHONIOENCODING="utf-8")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "✓ The embedded gateway starts."
    assert lines[-1] == "✓ The kernel was ended. The gateway can be used."


# The commands themselves


COMMANDS = (
    *("serve", "run", "check", "token", "record"),
    *(f"token {name}" for name in ("create", "list", "revoke")),
    *(f"record {name}" for name in ("list", "show", "verify", "export", "prune", "replay")),
)
COPIES = """
import json, os, sys
import interpreter.app
from interpreter.__main__ import main
for number, sys.argv[1:] in enumerate(json.loads(sys.argv[1])):
    copy = os.fork()
    if copy == 0:
        for descriptor, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{number}.{name}", os.O_CREAT | os.O_WRONLY), descriptor)
        sys.exit(main())
    print(os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]), flush=True)
"""


def test_every_command_has_help_and_refuses_what_it_does_not_know(cli: CommandLine) -> None:
    """All of them are copies of one process that has loaded what a command loads."""
    options = ("--help-all", "--no-such-option=1")
    calls = [[*command.split(), option] for command in COMMANDS for option in options]
    done = subprocess.run(
        [sys.executable, "-c", COPIES, json.dumps(calls)],
        check=True,
        cwd=cli.folder,
        env=cli.environment,
        capture_output=True,
        text=True,
    )
    for number, (call, code) in enumerate(zip(calls, done.stdout.split(), strict=True)):
        out, err = ((cli.folder / f"{number}.{name}").read_text("utf-8") for name in ("out", "err"))
        if call[-1] == "--help-all":
            assert (code, err) == ("0", ""), call
            assert out, call
        else:
            assert (code, out) == ("2", ""), call
            assert err.startswith("jupyter interpreter: --no-such-option is no option"), call
