"""LibreChat's dialect without the service: languages, answers, programs."""

import ast
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from interpreter.errors import InvalidRequestError, NotFoundError
from interpreter.events import RunEvent
from interpreter.frontends.languages import (
    available_codes,
    cell_of,
    find_language,
    parse_language,
)
from interpreter.frontends.librechat import programs, waiting
from interpreter.frontends.librechat.answers import Origin, answer
from interpreter.frontends.librechat.object_ids import object_id, path_of
from interpreter.frontends.librechat.requests import read_exec
from interpreter.frontends.pictures import pictures_of
from interpreter.models import FileChange, Folded, Run, RunError, RunStatus

SESSION = "a" * 21
NOW = datetime(2031, 5, 1, 12, tzinfo=UTC)
PNG = {"output_type": "display_data", "data": {"image/png": "iVBO", "text/plain": "<Figure>"}, "metadata": {}}


def specs(**languages: str) -> dict[str, Any]:
    """Kernelspecs by name; the first is the default."""
    return {
        "default": next(iter(languages)),
        "kernelspecs": {n: {"language": v} for n, v in languages.items()},
    }


def stream(text: str, name: str = "stdout") -> dict[str, Any]:
    return {"output_type": "stream", "name": name, "text": text}


def run_of(*outputs: dict[str, Any], status: RunStatus = RunStatus.OK, **fields: Any) -> Run:
    error = fields.pop("error", None)
    folded = Folded(outputs=outputs, error=error, truncated=fields.pop("truncated", False))
    return Run(f"run_{SESSION}_1", SESSION, "tok_1", status, "code", NOW, 60.0, folded=folded, **fields)


def changed(*paths: str, change: str = "created") -> tuple[FileChange, ...]:
    return tuple(FileChange(path, 1, "text/plain", change, "/") for path in paths)


# -- languages ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lang", "code"),
    [
        ("py", "py"),
        ("Python", "py"),
        ("bash", "bash"),
        ("sh", "bash"),
        ("node", "js"),
        ("ts", "ts"),
        ("r", "r"),
    ],
)
def test_aliases_are_languages(lang: str, code: str) -> None:
    assert parse_language(lang) == code


def test_other_languages_are_unknown() -> None:
    assert parse_language("klingon") is None


def test_bash_runs_in_the_python_kernel_also_where_a_bash_kernel_is() -> None:
    found = find_language("bash", specs(bash="bash", conda="python"))
    assert found is not None
    assert found.kernel_name == "conda"


def test_the_default_kernelspec_of_a_language_comes_first() -> None:
    found = find_language("py", specs(python3="python", a="python"))
    assert found is not None
    assert found.kernel_name == "python3"


def test_javascript_runs_in_a_typescript_kernel() -> None:
    kernels = specs(python3="python", deno="typescript")
    assert available_codes(kernels) == ["py", "bash", "js", "ts"]
    assert find_language("rs", kernels) is None


def test_arguments_of_a_script_are_quoted() -> None:
    cell = cell_of("bash", "echo $1", ("a b", "$HOME", "it's"))
    assert cell.startswith("%%script bash -c ")
    assert cell.splitlines()[1:] == ["""set -- 'a b' '$HOME' 'it'"'"'s'""", "echo $1"]


def test_an_empty_script_is_a_cell() -> None:
    assert cell_of("bash", " \n", ()).splitlines()[1:] == [":"]


def test_arguments_of_python_are_in_argv() -> None:
    arguments = "__import__('sys').argv[:] = ['main.py', 'a']"
    assert cell_of("py", "x", ("a",)) == f"{arguments}; x"
    assert cell_of("py", "'doc'\nif x:\n  y\nz", ("a",)).splitlines()[3] == f"{arguments}; z"
    assert cell_of("py", "!ls", ("a",)).splitlines() == [arguments, "!ls"]


def test_a_script_that_reads_arguments_finds_none_of_the_kernels() -> None:
    cell = cell_of("py", "import argparse\n", ())
    assert cell == "__import__('sys').argv[:] = ['main.py']; import argparse\n"


@pytest.mark.parametrize(
    ("code", "cell"),
    [
        ("exit()", "__import__('sys').exit()"),
        ("def f():\n    quit(3)", "def f():\n    __import__('sys').exit(3)"),
        ("from os import _exit as exit\nexit(1)", None),
        ("print('exit(1)')", None),
    ],
)
def test_leaving_a_script_leaves_the_kernel(code: str, cell: str | None) -> None:
    assert cell_of("py", code, ()) == (cell or code)


@pytest.mark.parametrize(
    ("value", "code", "stderr"),
    [
        ("0", 0, ""),
        ("None", 0, ""),
        ("4", 4, "SystemExit: 4\n"),
        ("-1", 255, "SystemExit: -1\n"),
        ("no", 1, "no\n"),
    ],
)
def test_system_exit_is_the_end_of_a_script(value: str, code: int, stderr: str) -> None:
    hint = "/srv/env/IPython/core/interactiveshell.py:3707: UserWarning: To exit: use 'exit', 'quit', or Ctrl-D.\n"
    error = {"output_type": "error", "ename": "SystemExit", "evalue": value, "traceback": ["An exception"]}
    stream = {
        "output_type": "stream",
        "name": "stderr",
        "text": f'{hint}  warn("To exit: use", stacklevel=1)\n',
    }
    run = run_of(
        error, stream, status=RunStatus.ERROR, error=RunError("SystemExit", value, ("An exception",))
    )
    body = answer(run, "py")
    assert (body["code"], body["stderr"]) == (code, stderr)
    assert body["status"] == ("RE" if code else None)


@pytest.mark.parametrize(
    ("code", "cell"),
    [
        ("import asyncio\nasyncio.run(main())", "import asyncio\n(await main())"),
        ("asyncio.run(\n    main()\n)\nx", "(await \nmain()\n)\nx"),
        ("x = 'é', asyncio.run(f(1,\n 2))", "x = 'é', (await f(1,\n 2))"),
        ('if __name__ == "__main__":\n    asyncio.run(m())', 'if __name__ == "__main__":\n    (await m())'),
        ("def f():\n    asyncio.run(m())", None),
        ("[asyncio.run(m()) for _ in '1']", None),
        ("asyncio.run(m(), debug=True)", None),
        ("asyncio.run(", None),
        ("s = 'asyncio.run(x)'", None),
    ],
)
def test_what_scripts_run_a_cell_awaits(code: str, cell: str | None) -> None:
    assert cell_of("py", code, ()) == (cell or code)


# -- requests ----------------------------------------------------------------------------------


def test_both_generations_name_files() -> None:
    old = {"id": "f", "session_id": "s", "name": "a.csv"}
    new = {
        "id": "f",
        "storage_session_id": "s",
        "name": "a.csv",
        "kind": "skill",
        "resource_id": "k",
        "version": 3,
    }
    request = read_exec({"lang": "py", "code": "1", "files": [old, new], "LIBRECHAT_CODE_API_KEY": "secret"})
    assert [(ref.storage_id, ref.id, ref.name) for ref in request.files] == [("s", "f", "a.csv")] * 2
    assert request.files[1].owner.kind == "skill"
    assert request.files[1].owner.version == "3"
    assert "secret" not in repr(request)


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {"lang": "py"},
        {"lang": "py", "code": 1},
        {"lang": 1, "code": "1"},
        {"lang": "py", "code": "1", "files": {}},
        {"lang": "py", "code": "1", "files": [{"id": "f"}]},
        {"lang": "py", "code": "1", "files": [None]},
        {"lang": "py", "code": "1", "args": [None]},
        {"lang": "py", "code": "1", "args": ["\ud800"]},
        {"lang": "py", "code": "1", "args": ["\0"]},
    ],
)
def test_other_bodies_are_refused(body: Any) -> None:
    with pytest.raises(InvalidRequestError):
        read_exec(body)


@pytest.mark.parametrize(("args", "texts"), [("one", ("one",)), (2, ("2",)), (["a", 1.5], ("a", "1.5"))])
def test_arguments_may_be_one_or_numbers(args: Any, texts: tuple[str, ...]) -> None:
    assert read_exec({"lang": "py", "code": "1", "args": args}).args == texts


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("a.csv", "a.csv"),
        ("/mnt/data/a/b.csv", "a/b.csv"),
        ("/a.csv", "a.csv"),
        ("a\\b.csv", "a/b.csv"),
        ("./é", "é"),
    ],
)
def test_names_are_paths_below_the_folder(name: str, path: str) -> None:
    assert path_of(name) == path


@pytest.mark.parametrize("name", ["", "/", "..", "../a", "/mnt/data/../a", "a/../../b", "a\0b", "x" * 300])
def test_names_do_not_lead_out(name: str) -> None:
    with pytest.raises(InvalidRequestError):
        path_of(name)


def test_ids_have_the_form_that_the_client_checks() -> None:
    ids = {object_id(SESSION, f"{n}.csv") for n in range(200)}
    assert len(ids) == 200
    assert all(len(one) == 21 and one.isascii() and one.isalnum() for one in ids)
    assert object_id(SESSION, "1.csv") in ids


# -- answers -----------------------------------------------------------------------------------


def test_values_that_a_notebook_shows_are_in_stdout() -> None:
    value = {
        "output_type": "execute_result",
        "data": {"text/plain": "5"},
        "metadata": {},
        "execution_count": 1,
    }
    body = answer(run_of(stream("a"), stream("w\n", "stderr"), value), "py")
    assert (body["stdout"], body["stderr"]) == ("a\n5\n", "w\n")
    assert (body["code"], body["status"]) == (0, None)


def test_tracebacks_are_in_stderr_without_colours() -> None:
    error = {
        "output_type": "error",
        "ename": "E",
        "evalue": "v",
        "traceback": ["\x1b[31mTrace\x1b[0m", "E: v"],
    }
    run = run_of(stream("before\n"), error, status=RunStatus.ERROR, error=RunError("E", "v"))
    body = answer(run, "py")
    assert (body["stdout"], body["stderr"]) == ("before\n", "Trace\nE: v\n")
    assert (body["code"], body["status"]) == (1, "RE")


def test_a_script_that_failed_has_its_own_words_and_status() -> None:
    said = "Command 'b'echo returned non-zero exit status 9'' returned non-zero exit status 3."
    error = {"output_type": "error", "ename": "CalledProcessError", "evalue": said, "traceback": ["Trace"]}
    run = run_of(
        stream("no\n", "stderr"), error, status=RunStatus.ERROR, error=RunError("CalledProcessError", said)
    )
    assert (answer(run, "bash")["stderr"], answer(run, "bash")["code"]) == ("no\n", 3)
    assert "Trace" in answer(run, "py")["stderr"]


def test_what_ended_a_run_is_told() -> None:
    run = run_of(stream("a"), status=RunStatus.TIMEOUT, notices=("It took too long.",))
    body = answer(run, "py")
    assert (body["stdout"], body["stderr"], body["status"]) == ("a", "It took too long.\n", "TO")
    assert answer(run_of(truncated=True), "py")["status"] == "OL"


def test_the_death_of_a_kernel_is_told_once() -> None:
    died = RunError("KernelDied", "The kernel died.")
    run = run_of(status=RunStatus.KERNEL_DIED, error=died, notices=("The kernel died.",))
    assert answer(run, "py")["stderr"] == "The kernel died.\n"
    assert (
        answer(run_of(status=RunStatus.KERNEL_DIED, error=died), "py")["stderr"]
        == "KernelDied: The kernel died.\n"
    )


def test_files_can_be_fetched_by_the_ids_of_the_answer() -> None:
    run = run_of(files=(*changed("out/a.csv", "in.csv", "skill.py"), *changed("gone.txt", change="deleted")))
    origins = {"in.csv": Origin("s" * 21, "f" * 21, False), "skill.py": Origin("s" * 21, "g" * 21, True)}
    body = answer(run, "py", figures=["figure.png"], origins=origins)
    assert [file["name"] for file in body["files"]] == ["figure.png", "out/a.csv", "in.csv"]
    for file in body["files"]:
        assert file["storage_session_id"] == body["session_id"] == SESSION
        assert file["id"] == object_id(SESSION, file["name"])
    assert body["files"][2]["modified_from"] == {"id": "f" * 21, "storage_session_id": "s" * 21}
    assert body["deleted_files"] == ["gone.txt"]


def test_the_client_is_told_of_files_that_it_does_not_get() -> None:
    body = answer(run_of(files=changed(*(f"{n}.txt" for n in range(130)))), "py")
    delivery = {"attempted": 130, "delivered": 100, "failed": 30}
    assert len(body["files"]) == 100
    assert body["artifact_delivery"] == {"code": "artifact_delivery_failed", "status": "partial", **delivery}
    assert "30 more stay in the working directory" in body["stderr"]


def test_pictures_that_are_only_shown_become_files() -> None:
    assert [picture.ending for picture in pictures_of(run_of(PNG, PNG))] == ["png", "png"]
    assert "<Figure>" not in answer(run_of(PNG), "py")["stdout"]
    assert len(pictures_of(run_of(PNG, PNG, files=changed("plot.png")))) == 2
    assert pictures_of(run_of(PNG, files=changed("plot.PNG"))) == []


@pytest.mark.parametrize(
    ("status", "stdout"), [(RunStatus.TIMEOUT, "a\n"), (RunStatus.OK, "a\nProcess was interrupted.\n")]
)
def test_what_ipython_says_of_a_stopped_script_is_left_out(status: RunStatus, stdout: str) -> None:
    printed = {"output_type": "stream", "name": "stdout", "text": "a\nProcess was interrupted.\n"}
    assert answer(run_of(printed, status=status), "bash")["stdout"] == stdout


def test_html_is_read_as_text() -> None:
    data = {"text/plain": "<IPython.core.display.HTML object>", "text/html": "<td>4</td><td>2</td>"}
    shown = {
        "output_type": "display_data",
        "data": {**data, "text/html": f"<table>{data['text/html']}"},
        "metadata": {},
    }
    assert answer(run_of(shown), "py")["stdout"] == "4  2\n"


# -- programs ----------------------------------------------------------------------------------


def test_tools_are_functions_with_the_names_that_the_client_expects() -> None:
    text = "get_weather, _1st, class_tool, ab"
    code = programs.preparation_of("py", ["get-weather", "1st", "class", "a.b"], "folder", text)
    made = [line for line in code.splitlines() if " = _tool_calls.function('" in line]
    assert [line.partition(" ")[0] for line in made] == ["get_weather", "_1st", "class_tool", "ab"]
    ast.parse(code)


def test_scripts_get_their_tools_as_functions() -> None:
    code = programs.preparation_of("bash", ["web.search", "test", "it's"], "folder", "")
    head = ast.parse(code).body[-1]
    assert isinstance(head, ast.Assign)
    assert isinstance(head.value, ast.Constant)
    for line in (
        "web_search() { _tool_call 'web.search' \"$@\"; }",
        "test_tool() {",
        "its() { _tool_call 'it'\\''s'",
    ):
        assert line in str(head.value.value)


@pytest.mark.parametrize("text", ["echo '''\n", 'echo "$1"\n'], ids=["quotes", "plain"])
def test_the_cell_of_a_program_is_what_the_client_sent(text: str) -> None:
    assert programs.cell_of_program("py", "x = 1\n1/0") == "x = 1\n1/0"
    (statement,) = ast.parse(programs.cell_of_program("bash", text)).body
    (script,) = (node for node in ast.walk(statement) if isinstance(node, ast.Constant))
    assert script.value == text


def test_of_two_tools_with_one_function_name_the_last_has_it() -> None:
    code = programs.preparation_of("py", ["a-b", "a_b"], "folder", "await a_b()")
    assert code.endswith("\na_b = _tool_calls.function('a_b')\n")


@pytest.mark.parametrize("text", ["await used(x=1)", "tools = [used]", "await globals()['u' + 'sed']()"])
def test_tools_that_code_does_not_name_hide_nothing_of_the_session(text: str) -> None:
    code = programs.preparation_of("py", ["used", "search"], "folder", text)
    assert "\nused = _tool_calls" in code
    assert ("\nsearch = _tool_calls" in code) is ("globals" in text)


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("return x", "show(x); raise SystemExit"),
        ("if x: return await f(1), 2\ny", "if x: show(await f(1), 2); raise SystemExit\ny"),
        ("return (\n  x\n)\ny", "show(\nx\n); raise SystemExit\ny"),
        ("return asyncio.run(f())", "show((await f())); raise SystemExit"),
        ("for x in y:\n    return", "for x in y:\n    raise SystemExit"),
        ("return None", "raise SystemExit"),
        ("def f():\n    return 1\n'return 2'", None),
        ("return x = 1", None),
    ],
)
def test_a_program_may_return_as_if_it_were_a_functions_body(text: str, cell: str | None) -> None:
    expected = (cell or text).replace("show(", "__import__('IPython').display.display(")
    assert programs.cell_of_program("py", text) == expected
    assert cell_of("py", text, ()) == text or "asyncio.run" in text


@pytest.mark.parametrize("tools", ["x", [1], [{}], [{"name": ""}], [{"name": "a\nb"}], [{"name": "\ud800"}]])
def test_other_tools_are_refused(tools: Any) -> None:
    with pytest.raises(InvalidRequestError):
        programs.read_tools({"tools": tools})


@pytest.mark.parametrize(
    "body",
    [
        {"continuation_token": 1},
        {"continuation_token": "t", "tool_results": {}},
        {"continuation_token": "t", "tool_results": [{"call_id": 1}]},
    ],
)
def test_other_continuations_are_refused(body: Any) -> None:
    with pytest.raises(InvalidRequestError):
        programs.read_continuation(body)


def test_calls_are_found_among_the_events() -> None:
    call = {"id": "call_001", "name": "t", "input": {}}
    shown = {"output_type": "display_data", "data": {programs.MIME: {"calls": [call, 1]}}, "metadata": {}}
    assert programs.calls_of(RunEvent(1, "output", {"index": 0, "output": shown})) == [call]
    for other in (stream("x"), {**shown, "data": {programs.MIME: [1]}}, PNG):
        assert programs.calls_of(RunEvent(1, "output", {"index": 0, "output": other})) == []
    assert programs.calls_of(RunEvent(1, "run.started", {})) == []


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        (RunStatus.OK, {"status": "completed"}),
        (RunStatus.ERROR, {"status": "completed"}),
        (RunStatus.TIMEOUT, {"status": "error", "error": "Time limit exceeded"}),
        (RunStatus.KERNEL_DIED, {"status": "error", "error": "Out of memory"}),
    ],
)
def test_the_end_of_a_program_is_told_in_words_that_the_client_passes_on(
    status: RunStatus, shown: Any
) -> None:
    assert programs.final_answer(run_of(status=status), {}) == shown


def test_a_program_waits_for_its_owner_and_gives_way_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now)
    programs_ = waiting.Programs()
    program: Any = SimpleNamespace(prepared=SimpleNamespace(session=SimpleNamespace(id=SESSION)))
    first, second = programs_.put("owner", program), programs_.put("owner", program)
    with pytest.raises(NotFoundError):
        programs_.take("other", first)
    assert programs_.take("owner", first) is program
    with pytest.raises(NotFoundError):
        programs_.take("owner", first)
    assert programs_.take_forgotten(SESSION) == []
    now += 61
    assert programs_.take_forgotten("another") == []
    assert programs_.take_forgotten(SESSION) == [program]
    with pytest.raises(NotFoundError):
        programs_.take("owner", second)
