"""A session's files may be called as they like: no name keeps its kernel from starting again."""

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from service_process import running_service

Run = Callable[..., dict]

STANDARD = (
    "types",
    "re",
    "pathlib",
    "runpy",
    "importlib",
    "json",
    "random",
    "os",
    "abc",
    "typing",
    "fractions",
)
INSTALLED = (
    *("ipykernel_launcher", "ipykernel", "IPython", "bash_kernel", "traitlets", "zmq", "tornado", "psutil"),
    *("decorator", "comm", "debugpy", "stack_data", "executing", "asttokens", "pure_eval", "pygments"),
    *("pexpect", "ptyprocess", "matplotlib_inline", "interpreter_kernel", "sitecustomize", "usercustomize"),
)
TELL_AND_RAISE = "open('/mnt/data/imported', 'a').write(__name__ + ' ')\nraise RuntimeError('not this one')\n"
CONFIGURATION = {
    "ipython_config.py": "raise SystemExit(9)",
    "ipython_kernel_config.py": "raise SystemExit(9)",
    ".ipython/profile_default/startup/00.py": "import os; os._exit(9)",
    ".config/matplotlib/matplotlibrc": "::",
    "matplotlibrc": "::\nbackend: nonsense",
    "x.pth": "import os; os._exit(9)",
    "pyvenv.cfg": "\0",
    "setup.cfg": "[[",
    "pyproject.toml": "[[",
    ".env": "PATH=/nowhere",
    ".bashrc": "exit 9",
    ".inputrc": "$if",
    "kernel.json": "{{",
}


def put(api: httpx.Client, session_id: str, files: dict[str, str]) -> None:
    for path, text in files.items():
        answer = api.put(f"/v1/sessions/{session_id}/files/{path}", content=text.encode())
        assert answer.status_code == 201, answer.text


def restart(api: httpx.Client, session_id: str) -> None:
    answer = api.post(f"/v1/sessions/{session_id}/restart")
    assert answer.status_code == 200, answer.text


def assert_works(run: Run) -> None:
    """Of a Python kernel: it runs code, shows a traceback, runs a program, and has imported nothing of the session's."""
    assert run("print('good')")["stdout"] == "good\n"
    failed = run("1 / 0")
    assert "----> 1" in "".join(failed["error"]["traceback"])
    assert failed["stdout"] + failed["stderr"] == ""
    assert run("!echo a program")["stdout"].split() == ["a", "program"]
    assert run("import os; print(os.path.exists('imported'))")["stdout"] == "False\n"


@pytest.mark.parametrize("names", [STANDARD, INSTALLED], ids=["standard library", "installed"])
def test_a_kernel_starts_beside_files_that_are_called_like_modules(
    api: httpx.Client, session_id: str, run: Run, names: tuple[str, ...]
) -> None:
    put(api, session_id, {f"{name}.py": TELL_AND_RAISE for name in names})
    assert_works(run)
    restart(api, session_id)
    assert_works(run)
    assert run("os._exit(7)")["status"] == "kernel_died"
    assert_works(run)


def test_a_shell_starts_beside_such_files(api: httpx.Client) -> None:
    session_id = api.post("/v1/sessions", json={"kernel_name": "bash"}).json()["id"]
    put(api, session_id, {f"{name}.py": TELL_AND_RAISE for name in STANDARD + INSTALLED})
    restart(api, session_id)
    run = api.post(f"/v1/sessions/{session_id}/runs", json={"code": "echo good; ls imported"}).json()
    assert "good" in run["stdout"]
    assert run["status"] == "error"  # no such file
    api.delete(f"/v1/sessions/{session_id}")


@pytest.mark.parametrize(
    "code",
    [
        "Deno.writeTextFileSync('deno.json', '{')",
        "Deno.writeTextFileSync('deno.jsonc', '[]')",
        "Deno.writeTextFileSync('package.json', '{\"a')",
        "Deno.writeTextFileSync('deno.json', '{}'); Deno.writeTextFileSync('deno.lock', '{\"a\": 1}')",
        "Deno.writeTextFileSync('deno.json', '{\"importMap\": \"none.json\"}')",
        "new Deno.Command('mkfifo', { args: ['deno.json'] }).outputSync(); 0",
        "new Deno.Command('mkfifo', { args: ['package.json'] }).outputSync(); 0",
        "Deno.symlinkSync('deno.json', 'deno.json')",
    ],
)
def test_a_kernel_of_deno_starts_beside_broken_configuration(api: httpx.Client, code: str) -> None:
    session_id = api.post("/v1/sessions", json={"kernel_name": "deno"}).json()["id"]

    def run(code: str) -> dict:
        ended: dict = api.post(f"/v1/sessions/{session_id}/runs", json={"code": code}).json()
        return ended

    put(api, session_id, {"own.ts": "export const value = 42;"})
    assert run(code)["status"] == "ok"
    restart(api, session_id)
    assert run('import { value } from "./own.ts"; value')["result"] == "42"
    assert run('Deno.writeTextFileSync("made", "it"); Deno.cwd()')["result"] == '"/mnt/data"'
    api.delete(f"/v1/sessions/{session_id}")


def test_a_kernel_of_deno_uses_good_configuration(api: httpx.Client) -> None:
    session_id = api.post("/v1/sessions", json={"kernel_name": "deno"}).json()["id"]
    put(
        api,
        session_id,
        {"deno.json": '{"imports": {"own": "./own.ts"}}', "own.ts": "export const value = 42;"},
    )
    restart(api, session_id)
    code = 'import { value } from "own"; console.log(value)'
    ran = api.post(f"/v1/sessions/{session_id}/runs", json={"code": code}).json()
    assert ran["stdout"] == "42\n", json.dumps(ran)
    ended = api.post(f"/v1/sessions/{session_id}/runs", json={"code": "Deno.exit(7)"}).json()
    assert "exit code 7" in json.dumps(ended)
    api.delete(f"/v1/sessions/{session_id}")


def test_forked_kernels_start_beside_such_files(tmp_path: Path) -> None:
    with running_service(tmp_path, fork_server="1", pool_size="1") as service, service.client() as api:
        session_id = api.post("/v1/sessions", json={}).json()["id"]

        def run(code: str) -> dict:
            ended: dict = api.post(f"/v1/sessions/{session_id}/runs", json={"code": code}).json()
            return ended

        put(api, session_id, {f"{name}.py": TELL_AND_RAISE for name in STANDARD + INSTALLED})
        for _ in range(2):
            assert_works(run)
            assert run("import sys; print('pandas' in sys.modules)")["stdout"] == "True\n"
            put(api, session_id, {"own.py": "value = 42"})
            assert run("import own; print(own.value, sys.path.count(''))")["stdout"] == "42 1\n"
            restart(api, session_id)


def test_a_kernel_starts_beside_broken_configuration(api: httpx.Client, session_id: str, run: Run) -> None:
    put(api, session_id, CONFIGURATION)
    run(
        "import pathlib, shutil; shutil.copytree('.ipython', pathlib.Path.home() / '.ipython', dirs_exist_ok=True)"
    )
    restart(api, session_id)
    assert_works(run)


def test_files_of_the_session_are_imported_as_ever(api: httpx.Client, session_id: str, run: Run) -> None:
    put(
        api,
        session_id,
        {
            "own.py": "value = 42\ndef double(number): return 2 * number",
            "numpy.py": "value = 43",
            "random.py": "raise RuntimeError",
            "lib/program.py": "import helper, own\nprint(helper.value, own.value)",
            "lib/helper.py": "value = 44",
        },
    )
    restart(api, session_id)
    assert run("import own, numpy; print(own.value, numpy.value)")["stdout"] == "42 43\n"
    assert run("import random; print(random.randint(1, 1))")["stdout"] == "1\n"  # IPython's order, too
    assert run("%run lib/program.py")["stdout"] == "44 42\n"
    spawn = "import multiprocessing\nwith multiprocessing.get_context('spawn').Pool(1) as pool: print(pool.map(own.double, [21]))"
    assert run(spawn)["stdout"] == "[42]\n"
    own = "import os, sys; print(sys.flags.safe_path, sys.path[0], 'PYTHONSAFEPATH' in os.environ)"
    put(api, session_id, {"elsewhere/program.py": own})
    programs = "import subprocess, sys\nsubprocess.run([sys.executable, 'elsewhere/program.py']);"
    assert run(programs)["stdout"] == "False /mnt/data/elsewhere False\n"
