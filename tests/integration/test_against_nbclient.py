"""Real notebooks: the service's outputs are those of nbclient on the same kernelspec."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import nbformat
import pytest
from gateway_fixtures import kernelspecs_folder
from nbclient_reference import execute_with_nbclient, normalised
from notebooks_data import NOTEBOOKS

SESSIONS = (  # notebooks that one kernel runs one after the other, as its start and its imports take most of the time
    ("pandas", "numbers", "files"),
    ("matplotlib", "seaborn and scikit-learn", "matplotlib formats"),
    ("plotly and altair", "sympy"),
    ("rich displays", "clear_output", "display handles", "progress bars", "order"),
    ("representations", "unicode", "widgets and comms", "language"),
    ("warnings and logging", "subprocesses and descriptors", "threads and asyncio"),
    ("magics",),
    ("exceptions", "timings"),
)


def test_every_notebook_is_run() -> None:
    assert sorted(name for names in SESSIONS for name in names) == sorted(NOTEBOOKS)


def execute_with_service(api: httpx.Client, session_id: str, cells: list[str]) -> list[dict[str, Any]]:
    for code in cells:
        answer = api.post(f"/v1/sessions/{session_id}/runs", json={"code": code, "timeout": 60})
        assert answer.status_code == 200, answer.text
    # Read afterwards: a display may be updated by a later cell.
    listed = api.get(f"/v1/sessions/{session_id}/runs", params={"limit": 100, "order": "asc"})
    return list(listed.json()["data"])


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("default")  # nbclient's and jupyter_client's own, under this Python
@pytest.mark.parametrize("names", SESSIONS, ids=", ".join)
def test_notebooks_have_the_outputs_of_nbclient(
    names: tuple[str, ...], api: httpx.Client, session_id: str, tmp_path: Path
) -> None:
    cells = [code for name in names for code in NOTEBOOKS[name]]
    with ThreadPoolExecutor(1) as pool:
        executing = pool.submit(execute_with_service, api, session_id, cells)
        expected = execute_with_nbclient(cells, Path(kernelspecs_folder()), tmp_path)
        runs = executing.result()
    assert [run["code"] for run in runs] == cells
    for run, outputs in zip(runs, expected, strict=True):
        assert normalised(run["outputs"]) == normalised(outputs), run["code"]
    notebook = nbformat.reads(api.get(f"/v1/notebooks/{session_id}").text, as_version=4)
    nbformat.validate(notebook)
    for cell, run in zip(notebook.cells, runs, strict=True):
        assert cell.source == run["code"]
        assert normalised(cell.outputs) == normalised(run["outputs"]), run["code"]
