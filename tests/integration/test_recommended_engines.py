"""The engines that products recommend, and ours, behind the products' own clients: what a user gains."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from agent_clients import autogen_executor, load, smolagents_executor
from openwebui import load_executor
from service_process import ServiceProcess
from stock_servers import stock_server
from websockets.exceptions import ConnectionClosedError

STOCK_TOKEN = "stock"

# These clients leave sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


# Open WebUI: a Jupyter server


@pytest.fixture(scope="module")
def openwebui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        yield load_executor(tmp_path_factory.mktemp("openwebui"), patch)


@pytest.fixture(scope="module")
def stock_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Jupyter Server as it comes."""
    folder = tmp_path_factory.mktemp("stock")
    options = (
        *(f"--IdentityProvider.token={STOCK_TOKEN}", f"--ServerApp.root_dir={folder}", "--allow-root"),
        *("--ServerApp.port={port}", "--ServerApp.port_retries=0", "--ServerApp.open_browser=False"),
    )
    with stock_server(folder, "jupyter_server", *options, token=STOCK_TOKEN) as url:
        yield url


async def both(openwebui: Any, stock_url: str, service: ServiceProcess, code: str, timeout: int = 60) -> Any:
    """What Open WebUI shows of the code: with the stock server, with ours."""
    execute = openwebui.execute_code_jupyter
    stock = await execute(stock_url, code, token=STOCK_TOKEN, timeout=timeout)
    return stock, await execute(service.url, code, token=service.token)


async def test_open_webui_loses_all_output_at_a_mebibyte_but_not_here(
    openwebui: Any, stock_url: str, service: ServiceProcess
) -> None:
    stock, ours = await both(openwebui, stock_url, service, "print('before')\n'y' * 1_500_000")
    assert (stock["stdout"], stock["result"]) == ("", "")
    assert "1009 (message too big)" in stock["stderr"]
    assert (ours["stdout"], ours["result"].count("y"), ours["stderr"]) == ("before", 1_500_000, "")


async def test_open_webui_shows_a_photograph_only_here(
    openwebui: Any, stock_url: str, service: ServiceProcess
) -> None:
    jpeg = "b'\\xff\\xd8\\xff'"
    code = (
        f"from IPython.display import display\ndisplay({{'image/jpeg': __import__('base64').b64encode({jpeg})"
    )
    stock, _ = await both(openwebui, stock_url, service, f"{code}.decode()}}, raw=True)")
    assert stock == {"stdout": "", "stderr": "", "result": ""}
    made = (
        "import io\nfrom IPython.display import Image\nfrom PIL import Image as Picture\n"
        "data = io.BytesIO()\nPicture.new('RGB', (40, 30), 'red').save(data, 'JPEG')\nImage(data.getvalue())"
    )
    ours = await openwebui.execute_code_jupyter(service.url, made, token=service.token)
    assert ours["result"].startswith("data:image/png;base64,")


async def test_open_webui_waits_for_a_dead_kernel_but_not_here(
    openwebui: Any, stock_url: str, service: ServiceProcess
) -> None:
    stock, ours = await both(openwebui, stock_url, service, "import os\nos.kill(os.getpid(), 9)", timeout=2)
    assert stock["stderr"] == "Execution timed out."
    assert ours["stderr"].startswith("KernelDied: The kernel died")


async def test_open_webui_gets_colour_codes_and_keeps_no_record_but_here(
    openwebui: Any, stock_url: str, service: ServiceProcess, api: httpx.Client
) -> None:
    stock, ours = await both(openwebui, stock_url, service, "only_in_the_record_of_this_test")
    assert "\x1b[" in stock["stderr"]
    assert "\x1b" not in ours["stderr"]
    found = api.get("/v1/notebooks", params={"q": "only_in_the_record_of_this_test"}).json()["data"]
    assert len(found) == 1


# smolagents: its own evaluator of Python


def test_smolagents_own_evaluator_has_few_imports_and_no_files(service: ServiceProcess) -> None:
    local = load("smolagents.local_python_executor")
    stock = local.LocalPythonExecutor([])
    stock.send_tools({})
    with pytest.raises(local.InterpreterError, match="not allowed"):
        stock("import pandas")
    with pytest.raises(local.InterpreterError):
        stock("open('kept.txt', 'w').write('kept')")
    with smolagents_executor(service) as ours:
        assert ours("import pandas\npandas.Series([1, 2]).sum().item()").output == "3"
        ours("open('kept.txt', 'w').write('kept')")
        assert ours("open('kept.txt').read()").output == "'kept'"


# AutoGen: a process per block


async def test_autogens_own_executor_forgets_between_blocks_and_shows_no_figures(
    service: ServiceProcess, tmp_path: Path
) -> None:
    core = load("autogen_core.code_executor")
    blocks = [core.CodeBlock(code=code, language="python") for code in ("x = 41", "print(x + 1)")]
    plot = core.CodeBlock(
        code="from IPython.display import display\ndisplay({'image/png': 'iVBORw0KGgo='}, raw=True)",
        language="python",
    )
    token = load("autogen_core").CancellationToken()
    command_line = load("autogen_ext.code_executors.local").LocalCommandLineCodeExecutor
    with pytest.warns(UserWarning, match="may execute code on the local machine"):
        unsafe = command_line(work_dir=tmp_path)
    async with unsafe as stock, autogen_executor(service, tmp_path) as ours:
        assert "NameError" in (await stock.execute_code_blocks(blocks, token)).output
        assert "42" in (await ours.execute_code_blocks(blocks, token)).output
        assert "image/png" in (await stock.execute_code_blocks([plot], token)).output
        assert len((await ours.execute_code_blocks([plot], token)).output_files) == 1


async def test_autogen_loses_an_output_over_a_mebibyte_but_not_here(
    stock_url: str, service: ServiceProcess, tmp_path: Path
) -> None:
    block = load("autogen_core.code_executor").CodeBlock(code="'y' * 1_500_000", language="python")
    token = load("autogen_core").CancellationToken()
    stock_service: Any = SimpleNamespace(url=stock_url, token=STOCK_TOKEN)
    async with autogen_executor(stock_service, tmp_path) as stock:
        with pytest.raises(ConnectionClosedError, match="1009"):
            await stock.execute_code_blocks([block], token)
    async with autogen_executor(service, tmp_path) as ours:
        assert (await ours.execute_code_blocks([block], token)).output.count("y") == 1_500_000
