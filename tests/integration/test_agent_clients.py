"""The Jupyter executors of AutoGen and smolagents, unchanged, against the real service with real kernels."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from agent_clients import autogen_executor, load, smolagents_executor
from service_process import ServiceProcess, running_service

from interpreter.frontends.jupyter.ids import session_id_of

PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
LOOP = "print('begun', flush=True)\nwhile True: pass"
LIMIT = "The run took longer than its timeout of 2 seconds"


async def execute(executor: Any, *codes: str) -> Any:
    """Run code as AutoGen's agents do."""
    core = load("autogen_core")
    blocks = [load("autogen_core.code_executor").CodeBlock(code=code, language="python") for code in codes]
    return await executor.execute_code_blocks(blocks, core.CancellationToken())


def kernel_ids(api: httpx.Client) -> set[str]:
    return {model["id"] for model in api.get("/api/kernels").json()}


# AutoGen


@pytest.fixture
async def autogen(service: ServiceProcess, tmp_path: Path) -> AsyncIterator[Any]:
    async with autogen_executor(service, tmp_path) as executor:
        yield executor


async def test_autogen_keeps_state_until_it_restarts(autogen: Any) -> None:
    result = await execute(autogen, "x = 41", "print('é漢🎉')\nx + 1")
    assert (result.exit_code, result.output) == (0, "\né漢🎉\n\n42")
    await autogen.restart()
    assert (await execute(autogen, "'x' in dir()")).output == "False"


async def test_autogen_gets_figures_and_html_as_files(autogen: Any) -> None:
    result = await execute(autogen, PLOT, "from IPython.display import HTML\nHTML('<b>bold</b>')")
    figure, page = result.output_files
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert page.read_text() == "<b>bold</b>"


async def test_autogen_gets_text_and_images_of_many_mebibytes(autogen: Any) -> None:
    noise = (
        "import io, numpy as np\nfrom PIL import Image\nfrom IPython.display import Image as Shown\n"
        "data = io.BytesIO()\nImage.fromarray(np.random.default_rng(0).integers(0, 255, (800, 800, 3), 'uint8'))"
        ".save(data, 'PNG')\nShown(data.getvalue())"
    )
    result = await execute(autogen, "'ü' * 1_500_000", "print('z' * 900_000)", noise)
    assert (result.exit_code, result.output.count("ü"), result.output.count("z")) == (0, 1_500_000, 900_000)
    assert [file.read_bytes()[:4] for file in result.output_files] == [b"\x89PNG"]


async def test_autogen_is_told_what_went_wrong(autogen: Any) -> None:
    failed = await execute(autogen, "1/0")
    assert failed.exit_code == 1
    assert "ZeroDivisionError: division by zero" in failed.output
    assert "StdinNotImplementedError" in (await execute(autogen, "input()")).output
    died = await execute(autogen, "import os\nos.kill(os.getpid(), 9)")
    assert "KernelDied: The kernel died" in died.output
    assert "2" in (await execute(autogen, "1 + 1")).output


async def test_autogen_leaves_no_kernel(service: ServiceProcess, api: httpx.Client, tmp_path: Path) -> None:
    before = kernel_ids(api)
    async with autogen_executor(service, tmp_path) as executor:
        await execute(executor, "")
        assert len(kernel_ids(api) - before) == 1
    assert kernel_ids(api) == before


# smolagents


@pytest.fixture
def smolagents(service: ServiceProcess, api: httpx.Client) -> Iterator[Any]:
    with smolagents_executor(service) as executor:
        yield executor
    assert api.delete(f"/api/kernels/{executor.kernel_id}").status_code == 204  # as the end of a container


def test_smolagents_keeps_state_between_its_connections(smolagents: Any) -> None:
    smolagents.send_variables({"x": [1, "é"]})
    first = smolagents("print('é漢🎉')\nx.append(2)")
    assert (first.output, first.logs, first.is_final_answer) == (None, "é漢🎉\n", False)
    assert smolagents("x").output == "[1, 'é', 2]"


def test_smolagents_gets_long_values_whole(smolagents: Any) -> None:
    result = smolagents("print('z' * 900_000)\n'y' * 2_000_000")
    assert (len(result.output), len(result.logs)) == (2_000_002, 900_001)


def test_smolagents_gets_large_final_answers(smolagents: Any) -> None:
    smolagents.installed_packages = ["numpy", "PIL"]  # they are there, and there may be no network
    smolagents.send_tools({"final_answer": load("smolagents.default_tools").FinalAnswerTool()})
    text = smolagents("final_answer('a' * 600_000)")
    assert (text.output, text.is_final_answer) == ("a" * 600_000, True)
    picture = smolagents(
        "import numpy as np\nfrom PIL import Image\n"
        "final_answer(Image.fromarray(np.random.default_rng(0).integers(0, 255, (100, 100, 3), 'uint8')))"
    )
    assert (picture.output.size, picture.is_final_answer) == ((100, 100), True)


def test_smolagents_raises_what_went_wrong_and_the_record_has_it(smolagents: Any, api: httpx.Client) -> None:
    failure = load("smolagents.utils").AgentError
    # The second one warns on stderr behind its error, at which the client has hung up.
    for code, ename in (("1/0", "ZeroDivisionError"), ("import sys\nsys.exit(3)", "SystemExit")):
        with pytest.raises(failure, match=ename):
            smolagents(code)
    with pytest.raises(failure, match="KernelDied: The kernel died"):
        smolagents("import os\nos.kill(os.getpid(), 9)")
    assert smolagents("1 + 1").output == "2"
    runs = api.get(f"/v1/sessions/{session_id_of(smolagents.kernel_id)}/runs").json()["data"]
    assert sorted(run["status"] for run in runs) == ["error", "error", "kernel_died", "ok"]


# Both


async def test_a_run_that_hangs_ends_with_a_word_on_the_time_limit(tmp_path: Path) -> None:
    with running_service(tmp_path, execute_timeout="2", interrupt_grace="2") as service:
        async with autogen_executor(service, tmp_path) as autogen:
            stopped = await execute(autogen, LOOP)
            assert LIMIT in stopped.output
            assert "while True" in stopped.output
            assert (await execute(autogen, "'goes on'")).output == "'goes on'"
        with smolagents_executor(service) as smolagents:
            with pytest.raises(load("smolagents.utils").AgentError, match=LIMIT):
                await asyncio.to_thread(smolagents, LOOP)
            assert smolagents("'goes on'").output == "'goes on'"


async def test_a_wrong_token_starts_nothing(
    service: ServiceProcess, api: httpx.Client, tmp_path: Path
) -> None:
    before = kernel_ids(api)
    with pytest.raises(KeyError, match="kernelspecs"):  # it looks at no status
        await autogen_executor(service, tmp_path, token="wrong").start()
    assert kernel_ids(api) == before
