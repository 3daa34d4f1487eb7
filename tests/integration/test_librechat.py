"""LibreChat's own tools, of both generations, against the real service."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from librechat_kit import LibreChat, librechat, needs, shown
from service_process import ServiceProcess, running_service

SECRET = "an HS256 secret of more than 32 bytes"
PNG = b"\x89PNG\r\n\x1a\n"
TOOLS = {
    "get_weather": {"SF": {"t": 65}, "NY": {"t": 40}, "*": "unknown"},
    "bad-tool": {"*": {"raise": "no such city"}},
}


@pytest.fixture(scope="module")
def client(service: ServiceProcess) -> Iterator[LibreChat]:
    with librechat(service) as tools:
        yield tools


def refs(answer: dict[str, Any], *, old: bool = False) -> list[dict[str, Any]]:
    """The files of an answer as the client's next call names them."""
    session_id = answer["artifact"]["session_id"]
    where = {"session_id": session_id} if old else {"storage_session_id": session_id, "kind": "user"}
    return [{"id": file["id"], "name": file["name"], **where} for file in answer["artifact"]["files"]]


def download(api: httpx.Client, file: dict[str, Any]) -> bytes:
    """The content of a file by its ids, as LibreChat fetches it."""
    storage_id = file.get("storage_session_id") or file["session_id"]
    answer = api.get(f"/librechat/download/{storage_id}/{file['id']}?kind=user&id=u1")
    assert answer.status_code == 200, answer.text
    return answer.content


def upload(api: httpx.Client, name: str, content: bytes) -> dict[str, Any]:
    """The reference of an uploaded file."""
    made = api.post(
        "/librechat/upload", data={"kind": "user", "id": "u1"}, files={"file": (name, content)}
    ).json()
    return {
        "id": made["files"][0]["fileId"], "resource_id": "u1", "kind": "user",
        "storage_session_id": made["storage_session_id"], "name": made["files"][0]["filename"],
    }  # fmt: skip


# -- the generation with API keys --------------------------------------------------------------


def test_old_clients_show_output_values_and_errors(client: LibreChat) -> None:
    assert client.old("print(6 * 7)\n'last'")["content"] == "stdout:\n42\n'last'"
    failed = client.old("print('before')\n1/0")["content"]
    assert failed.startswith("stdout:\nbefore\n\nstderr:\n")
    assert failed.endswith("ZeroDivisionError: division by zero")
    assert "\x1b" not in failed


def test_old_clients_get_files_and_go_on_with_them(client: LibreChat, api: httpx.Client) -> None:
    first = client.old("kept = 'in memory'\nopen('out.txt', 'w').write('on disk');")
    assert "out.txt" in first["content"].partition("Generated files:")[2]
    (ref,) = refs(first, old=True)
    assert download(api, ref) == b"on disk"
    again = client.old("print(kept, open('out.txt').read())", files=[ref])
    assert again["content"] == "stdout:\nin memory on disk"
    needs("old", "session_id != null")
    by_session = client.old("print(kept)", session_id=first["artifact"]["session_id"])
    assert by_session["content"] == "stdout:\nin memory"


def test_old_clients_get_plots_that_are_only_shown(client: LibreChat, api: httpx.Client) -> None:
    plot = client.old("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")
    (ref,) = refs(plot)
    assert "already displayed to the user" in plot["content"]
    assert download(api, ref).startswith(PNG)


def test_old_clients_show_a_wrong_key(client: LibreChat) -> None:
    assert "HTTP error! status: 401" in shown(client.old("1", key="wrong"))


# -- the generation without --------------------------------------------------------------------


def test_new_clients_run_scripts_with_python_in_them(client: LibreChat) -> None:
    script = "python3 - <<'EOF'\nimport numpy\nprint(numpy.arange(3).sum())\nEOF\necho \"[$(cat)]\"\nnosuch\nexit 3"
    answer = client.new(script)
    assert answer["content"].startswith("stdout:\n3\n[]\n\nstderr:\n")
    assert "nosuch: command not found" in answer["content"]
    assert "CalledProcessError" not in answer["content"]


def test_what_a_script_leaves_in_the_background_holds_nothing_up(client: LibreChat) -> None:
    started = time.monotonic()
    assert client.new("sleep 60 & echo started")["content"] == "stdout:\nstarted"
    assert time.monotonic() - started < 30


def test_a_script_that_takes_too_long_is_ended(api: httpx.Client) -> None:
    body = {"lang": "bash", "code": "echo before; sleep 60; echo after", "timeout": 1000}
    answer = api.post("/librechat/exec", json=body).json()
    assert answer["stdout"].startswith("before\n")
    assert "after" not in answer["stdout"]
    assert "timeout of 1 second" in answer["stderr"]
    assert answer["status"] == "TO"


def test_a_hint_keeps_variables_and_files_of_both_tools(client: LibreChat) -> None:
    hint = f"v2:conversation:{time.time_ns():032x}"
    prewarmed = client.new("true", hint=hint)["artifact"]
    assert prewarmed["runtime_status"] == "new"
    client.new_code("kept = 5", hint=hint)
    written = client.new("echo text > f.txt", hint=hint)
    assert [file["name"] for file in written["artifact"]["files"]] == ["f.txt"]
    last = client.new_code("print(kept, open('f.txt').read())", hint=hint)
    assert last["content"] == "stdout:\n5 text"
    assert last["artifact"]["runtime_status"] == "reused"
    assert last["artifact"]["session_id"] == prewarmed["session_id"]


def test_uploads_are_in_the_folder_that_the_model_is_told_of(client: LibreChat, api: httpx.Client) -> None:
    ref = upload(api, "in/data.csv", b"a,b\n")
    hint = f"v2:conversation:{time.time_ns():032x}"
    where = client.new("pwd", hint=hint)["content"]
    if where != "stdout:\n/mnt/data":
        pytest.skip("without the sandbox the folder has another path")
    read = client.new(
        "cat '/mnt/data/in/data.csv'; echo 1,2 >> /mnt/data/in/data.csv", hint=hint, _injected_files=[ref]
    )
    assert read["content"].startswith("stdout:\na,b")
    (changed,) = read["artifact"]["files"]
    assert changed["modified_from"] == {"id": ref["id"], "storage_session_id": ref["storage_session_id"]}
    assert download(api, changed) == b"a,b\n1,2\n"
    assert download(api, ref) == b"a,b\n"
    needs("new", "deleted_files")
    gone = client.new("rm -r /mnt/data/in", hint=hint, _injected_files=[ref])
    assert gone["artifact"]["deleted_files"] == ["in/data.csv"]


def test_new_clients_are_authorized_by_any_header_and_by_the_url(
    service: ServiceProcess, client: LibreChat
) -> None:
    assert client.new("echo 1", headers={"X-API-Key": service.token})["content"] == "stdout:\n1"
    refused = client.new("echo 1", headers={})
    assert "not authorized" in refused["error"] or "returned 401" in refused["error"]
    with librechat(
        service, url=service.url.replace("://", f"://key:{service.token}@") + "/librechat/v1"
    ) as other:
        assert other.new("echo 1", headers={})["content"] == "stdout:\n1"


# -- programmatic tool calling -----------------------------------------------------------------


@pytest.mark.parametrize("generation", ["old", "new"])
def test_python_calls_tools_one_by_one_and_together(client: LibreChat, generation: str) -> None:
    code = """
first = await get_weather(city="SF")
second, third = await asyncio.gather(get_weather(city="NY"), get_weather(city="X"))
print(first["t"], second["t"], third)
try:
    await bad_tool()
except Exception as error:
    print(error)
open("made.txt", "w").write("1")
"""
    answer = client.programmatic(generation, code, TOOLS)
    assert answer["content"].startswith("stdout:\n65 40 unknown\nbad-tool: no such city\n")
    assert [file["name"] for file in answer["artifact"]["files"]] == ["made.txt"]
    assert [name for name, _ in answer["called"]] == ["get_weather"] * 3 + ["bad-tool"]


def test_scripts_call_tools_one_by_one_and_together(client: LibreChat) -> None:
    code = """
set -eu
first=$(get_weather '{"city": "SF"}')
echo "$first" | python3 -c 'import json, sys; print(json.load(sys.stdin)["t"])'
{ a=$(get_weather '{"city": "NY"}'); printf '%s' "$a" > a.json; } &
{ b=$(get_weather '{"city": "X"}'); printf '%s' "$b" > b.json; } &
wait
cat a.json b.json
bad_tool || echo " failed"
get_weather 'no json' || exit 7
"""
    answer = client.programmatic("new", code, TOOLS, bash=True)
    assert answer["content"].startswith(
        'stdout:\n65\n{"t":40}"unknown" failed\n\nstderr:\nbad-tool: no such city\n'
    )
    assert "Traceback" not in answer["content"]
    assert len(answer["called"]) == 4


def test_code_without_tools_may_await(client: LibreChat) -> None:
    code = "await asyncio.sleep(0)\nprint('done')"
    assert client.programmatic("new", code, TOOLS, tool_manifest=[])["content"] == "stdout:\ndone"


def test_code_that_raises_keeps_what_it_printed(client: LibreChat) -> None:
    answer = client.programmatic("new", "print('before')\nawait get_weather(city='SF')\n1/0", TOOLS)
    assert answer["content"].startswith("stdout:\nbefore\n\nstderr:\n")
    assert answer["content"].endswith("ZeroDivisionError: division by zero")
    assert "----> 3 1/0" in answer["content"]


def test_a_program_is_recorded_as_the_model_wrote_it(client: LibreChat, api: httpx.Client) -> None:
    code = "await get_weather(city='SF')\nopen('made', 'w').close()"
    session_id = client.programmatic("new", code, TOOLS)["artifact"]["session_id"]
    notebook = api.get(f"/v1/notebooks/{session_id}").json()
    sources = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert sources[-1] == code


def test_code_that_takes_too_long_is_ended_and_told(client: LibreChat) -> None:
    error = client.programmatic("new", "await get_weather(city='SF')\nwhile True: pass", TOOLS, timeout=1000)[
        "error"
    ]
    assert re.search("exceeded the time limit|Time limit exceeded", error)


# -- the record, and many users ----------------------------------------------------------------


def test_every_run_is_in_the_record(client: LibreChat, api: httpx.Client) -> None:
    answer = client.new("echo recorded")
    session_id = answer["artifact"]["session_id"]
    notebook = api.get(f"/v1/notebooks/{session_id}").json()
    (cell,) = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert "".join(cell["source"]).endswith("\necho recorded")
    assert "".join(cell["outputs"][0]["text"]) == "recorded\n"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[ServiceProcess]:
    with running_service(tmp_path, max_sessions="2", librechat_jwt_secret=SECRET) as running:
        yield running


def test_users_have_their_own_sessions_and_idle_ones_give_way(small: ServiceProcess) -> None:
    def signed(user: str) -> dict[str, str]:
        now = int(time.time())
        claims = {"iss": "librechat", "aud": "codeapi", "sub": user, "iat": now, "exp": now + 60}
        return {"Authorization": f"Bearer {jwt.encode(claims, SECRET, 'HS256')}"}

    with librechat(small) as client, small.client() as api:
        hint = "v2:user:1"
        first = client.new_code("kept = 1", headers=signed("a"), hint=hint)
        assert "NameError" in client.new_code("kept", headers=signed("b"), hint=hint)["content"]
        refused = client.new("true", headers=signed("a"))["error"]
        assert "rate-limited" in refused or "returned 429" in refused
        owners = {row["owner"]["name"] for row in api.get("/v1/notebooks").json()["data"]}
        assert owners == {"librechat:a", "librechat:b"}
        api.delete(f"/v1/sessions/{first['artifact']['session_id']}")
        sessions = {client.new("true", headers=signed("a"))["artifact"]["session_id"] for _ in range(3)}
        assert len(sessions) == 3
