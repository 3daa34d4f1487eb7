"""Python written as a script, for clients that know no notebooks: as the code of a cell, and how it ended. Pure.

A cell has an event loop already, no command line, and a kernel that ``exit()`` would end. Lines stay where they
are, so that tracebacks have the client's numbers.
"""

import ast
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from interpreter.models import Run, RunStatus

_SCOPES = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
_SIMPLE = (
    *(ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Import, ast.ImportFrom),
    *(ast.Assert, ast.Delete, ast.Pass, ast.Raise),
)
_READS_ARGUMENTS = re.compile(r"\b(?:argv|argparse|optparse|getopt|click|typer|fire|docopt|absl|unittest)\b")
_ENDS = ("exit", "quit")
_CALLS_END = re.compile(r"\b(?:exit|quit)\s*\(")
_NAME = "main.py"

_Edit = tuple[int, int, bytes]  # begin and end of what is replaced, and by what


def cell_of_script(text: str, args: Sequence[str], *, is_body: bool = False) -> str:
    """The code of a cell that does what the script would do.

    ``asyncio.run(x)`` becomes ``await x`` where a cell may await, ``exit()`` raises SystemExit and leaves the
    kernel alive, and ``sys.argv`` has the arguments. With ``is_body`` the script is written as the body of a
    function: ``return x`` shows the value and ends it. Code that Python can't read stays as it is.
    """
    sets_arguments = bool(args) or _READS_ARGUMENTS.search(text) is not None
    arguments = f"__import__('sys').argv[:] = {[_NAME, *args]!r}"
    returns = is_body and "return" in text
    if not (sets_arguments or returns or "asyncio.run(" in text or _CALLS_END.search(text)):
        return text
    try:
        body = ast.parse(text).body
        lines = [line.encode() for line in text.splitlines(keepends=True)]
        if len(lines) != text.count("\n") + (not text.endswith("\n")):
            raise ValueError("lines that end otherwise are counted otherwise")
        starts = [0, *itertools.accumulate(map(len, lines))]
        code = b"".join(lines)
        edits = [*_awaits(body, code, starts), *_ends(body, starts)]
        edits += _returns(body, code, starts) if returns else ()
        place = _first_simple(body, starts) if sets_arguments else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return f"{arguments}\n{text}" if args else text
    if place is not None:
        edits.append((place, place, f"{arguments}; ".encode()))
    elif args:
        return f"{arguments}\n{_edited(code, edits)}"
    return _edited(code, edits)


def _edited(code: bytes, edits: Iterable[_Edit]) -> str:
    for begin, end, text in sorted(edits, reverse=True):
        code = code[:begin] + text + code[end:]
    return code.decode()


def _awaits(body: Sequence[ast.stmt], code: bytes, starts: Sequence[int]) -> Iterator[_Edit]:
    for call in _top_level_runs(body):
        begin, end = _extent(starts, call)
        inner_begin, inner_end = _extent(starts, call.args[0])
        # All but the ends of lines goes: the lines below keep their numbers.
        yield begin, inner_begin, b"(await " + b"\n" * code.count(b"\n", begin, inner_begin)
        yield inner_end, end, b"\n" * code.count(b"\n", inner_end, end) + b")"


def _returns(nodes: Iterable[ast.AST], code: bytes, starts: Sequence[int]) -> Iterator[_Edit]:
    """``return`` outside of all functions: the value is shown, and nothing after it is executed."""
    for node in nodes:
        if isinstance(node, ast.Return):
            begin, end = _extent(starts, node)
            if node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None):
                yield begin, end, b"raise SystemExit"
                continue
            first, last = _extent(starts, node.value)
            lines = b"\n" * code.count(b"\n", begin, first)
            yield begin, first, b"__import__('IPython').display.display(" + lines
            yield last, end, b"\n" * code.count(b"\n", last, end) + b"); raise SystemExit"
        elif not isinstance(node, _SCOPES):
            yield from _returns(ast.iter_child_nodes(node), code, starts)


def _ends(body: Sequence[ast.stmt], starts: Sequence[int]) -> Iterator[_Edit]:
    """``exit()`` and ``quit()`` as ``sys.exit``, unless the script has a function of that name."""
    names = [node for tree in body for node in ast.walk(tree)]
    own = {node.id for node in names if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    own |= {node.name for node in names if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    own |= {
        alias.asname or alias.name
        for node in names
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in names:
        function = node.func if isinstance(node, ast.Call) else None
        if isinstance(function, ast.Name) and function.id in _ENDS and function.id not in own:
            yield *_extent(starts, function), b"__import__('sys').exit"


def _first_simple(body: Sequence[ast.stmt], starts: Sequence[int]) -> int | None:
    """Where a statement can be put before the first of its line; None when there is no such place."""
    for number, node in enumerate(body):
        is_future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        is_docstring = number == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, _SIMPLE) and not is_future and not is_docstring:
            return starts[node.lineno - 1] + node.col_offset
    return None


def _extent(starts: Sequence[int], node: ast.expr | ast.stmt) -> tuple[int, int]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset


def _top_level_runs(nodes: Iterable[ast.AST]) -> Iterator[ast.Call]:
    """The calls of ``asyncio.run`` with one argument that are outside of all functions and classes."""
    for node in nodes:
        if isinstance(node, _SCOPES):
            continue
        if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
            function, inner = node.func, node.args[0]
            is_run = (
                isinstance(function, ast.Attribute)
                and function.attr == "run"
                and isinstance(function.value, ast.Name)
                and function.value.id == "asyncio"
            )
            if is_run and not isinstance(inner, ast.Starred):
                yield node
                continue
        yield from _top_level_runs(ast.iter_child_nodes(node))


def exit_code(run: Run) -> int | None:
    """The exit code that a script asked for by SystemExit, 1 with a sentence; None when it did not."""
    error = run.folded.error
    if error is None or error.ename != "SystemExit":
        return None
    value = error.evalue.strip()
    if value in ("", "None", "False"):
        return 0
    return int(value) & 0xFF if re.fullmatch(r"-?\d{1,9}", value) else 1


def ended_as_script(run: Run) -> Run:
    """The run as its script ended: one that left with exit code 0 succeeded."""
    if exit_code(run) != 0:
        return run
    outputs = tuple(output for output in run.folded.outputs if output.get("ename") != "SystemExit")
    return replace(run, status=RunStatus.OK, folded=replace(run.folded, outputs=outputs, error=None))
