"""Published Jupyter clients, unchanged, against the real service with real kernels."""

import base64
import io
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from jupyter_kernel_client import JupyterKernelClient
from openwebui import load_executor
from service_process import ServiceProcess, running_service
from stock_servers import stock_server

PNG = "data:image/png;base64,"

# These clients leave sockets to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def openwebui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        yield load_executor(tmp_path_factory.mktemp("openwebui"), patch)


@pytest.fixture
def run(openwebui: Any, service: ServiceProcess) -> Any:
    """Run code as Open WebUI does, with the admin's token unless told otherwise."""

    async def execute(code: str, **options: Any) -> dict[str, str]:
        options = options if {"token", "password"} & options.keys() else {**options, "token": service.token}
        result: dict[str, str] = await openwebui.execute_code_jupyter(service.url, code, **options)
        return result

    return execute


def _make_token(api: httpx.Client, role: str = "run", **options: bool) -> str:
    made = api.post("/v1/tokens", json={"name": "open webui", "role": role, "options": options})
    assert made.status_code == 201, made.text
    assert made.json()["options"] == {"keep_state": False, "stderr_to_stdout": False, **options}
    secret: str = made.json()["token"]
    return secret


# Open WebUI


@pytest.mark.parametrize("mode", ["token", "password"])
async def test_open_webui_runs_code_in_each_mode(run: Any, service: ServiceProcess, mode: str) -> None:
    result = await run(
        "print('out')\nimport sys\nprint('err', file=sys.stderr)\n40 + 2", **{mode: service.token}
    )
    assert result == {"stdout": "out", "stderr": "err", "result": "42"}


async def test_open_webui_without_auth_is_told_what_to_do(run: Any) -> None:
    result = await run("1", token="")
    assert "401" in result["stderr"]
    assert "Send a token" in result["stderr"]


@pytest.mark.parametrize("mode", ["token", "password"])
async def test_open_webui_with_a_wrong_secret_is_told_so(run: Any, mode: str) -> None:
    result = await run("1", **{mode: "wrong"})
    assert result["stderr"].startswith("Error: 401")
    assert result["stdout"] == result["result"] == ""


def kernel_ids(api: httpx.Client) -> set[str]:
    return {model["id"] for model in api.get("/api/kernels").json()}


async def test_open_webui_leaves_no_kernel_and_the_run_is_in_the_record(run: Any, api: httpx.Client) -> None:
    before = kernel_ids(api)  # other tests may have left sessions to the same token
    await run("marker_of_this_test = 1")
    assert kernel_ids(api) == before
    (notebook,) = api.get("/v1/notebooks", params={"q": "marker_of_this_test"}).json()["data"]
    session_id = notebook["session_id"]
    (cell,) = api.get(f"/v1/notebooks/{session_id}").json()["cells"]
    assert "".join(cell["source"]) == "marker_of_this_test = 1"
    assert api.get(f"/v1/notebooks/{session_id}/verify").json()["valid"]


async def test_open_webui_shows_a_plain_traceback(run: Any) -> None:
    result = await run("print('before')\n1/0")
    assert result["stdout"] == "before"
    assert "ZeroDivisionError: division by zero" in result["stderr"]
    assert "\x1b" not in result["stderr"]


async def test_open_webui_gets_a_large_plot_as_one_png_line(run: Any) -> None:
    code = (
        "import numpy as np, matplotlib.pyplot as plt\n"
        "plt.figure(figsize=(9, 9), dpi=100)\n"
        "plt.imshow(np.random.default_rng(0).random((800, 800, 3)))\n"
        "plt.show()\nprint('shown')"
    )
    result = await run(code)
    assert result["stdout"] == "shown"
    assert result["result"].startswith(PNG)
    assert "\n" not in result["result"]
    assert 100_000 < len(result["result"]) < 1024**2
    assert base64.b64decode(result["result"].removeprefix(PNG)).startswith(b"\x89PNG")


async def test_open_webui_gets_a_jpeg_as_png(run: Any) -> None:
    code = (
        "import io\nfrom IPython.display import Image\nfrom PIL import Image as Picture\n"
        "data = io.BytesIO()\nPicture.new('RGB', (40, 30), 'red').save(data, 'JPEG')\nImage(data.getvalue())"
    )
    picture = pytest.importorskip("PIL.Image").open(
        io.BytesIO(base64.b64decode((await run(code))["result"].removeprefix(PNG)))
    )
    assert (picture.format, picture.size) == ("PNG", (40, 30))


async def test_open_webui_loses_no_text_at_a_mebibyte(run: Any) -> None:
    result = await run("for n in range(9): print(str(n) * 100_000, flush=True)\n'y' * 1_500_000")
    assert [len(line) for line in result["stdout"].split("\n")] == [100_000] * 9
    assert result["result"].count("y") == 1_500_000


async def test_open_webui_waits_for_a_long_run_and_not_for_ever(openwebui: Any, tmp_path: Path) -> None:
    with running_service(tmp_path, execute_timeout="5", interrupt_grace="2") as service:
        options = {"token": service.token, "timeout": 2}
        execute = openwebui.execute_code_jupyter
        slow = await execute(service.url, "import time\ntime.sleep(3)\nprint('done')", **options)
        assert slow == {"stdout": "done", "stderr": "", "result": ""}
        endless = await execute(service.url, "print('begun', flush=True)\nwhile True: pass", **options)
        assert endless["stdout"] == "begun"
        assert "TimeoutError: The run took longer than its timeout of 5 seconds" in endless["stderr"]


async def test_open_webui_learns_that_the_kernel_died(run: Any) -> None:
    result = await run("print('x', flush=True)\nimport os\nos.kill(os.getpid(), 9)")
    assert result["stdout"] == "x"
    assert result["stderr"].startswith("KernelDied: The kernel died")


async def test_open_webui_never_shows_the_token_of_a_refused_run(run: Any, api: httpx.Client) -> None:
    secret = _make_token(api, "review")
    result = await run("1", token=secret)
    assert result["stderr"].startswith("ForbiddenError")
    assert secret not in str(result)


async def test_open_webui_keeps_state_and_files_with_a_token_that_says_so(
    run: Any, api: httpx.Client
) -> None:
    token = _make_token(api, keep_state=True, stderr_to_stdout=True)
    await run("x = 41\nopen('kept.txt', 'w').write('kept')", token=token)
    result = await run("print(x + 1, open('kept.txt').read())\n1/0", token=token)
    assert result["stdout"].startswith("42 kept\n")
    assert "ZeroDivisionError" in result["stdout"]
    headers = {"Authorization": f"token {token}"}
    assert api.get("/api/contents/kept.txt", headers=headers).json()["content"] == "kept"


# jupyter_kernel_client


def test_jupyter_kernel_client(service: ServiceProcess) -> None:
    with JupyterKernelClient(server_url=service.url, token=service.token) as kernel:
        assert kernel.kernel_info["language_info"]["name"] == "python"
        assert re.match(r"3\.\d+\.\d+", kernel.kernel_info["language_info"]["version"])
        reply = kernel.execute("x = 1\nprint('hi')\nx + 1", timeout=30)
        assert reply["status"] == "ok"
        assert [output["output_type"] for output in reply["outputs"]] == ["stream", "execute_result"]
        assert "x" in [variable["name"] for variable in kernel.list_variables()]
        failed = kernel.execute("1/0", timeout=30)
        assert (failed["status"], failed["outputs"][0]["ename"]) == ("error", "ZeroDivisionError")
        with _interrupted(service, kernel):
            stopped = kernel.execute("import time\ntime.sleep(60)", timeout=30)
        assert stopped["outputs"][0]["ename"] == "KeyboardInterrupt"
        kernel.restart()
        assert kernel.execute("'x' in dir()", timeout=30)["outputs"][0]["data"]["text/plain"] == "False"


@contextmanager
def _interrupted(service: ServiceProcess, kernel: JupyterKernelClient) -> Iterator[None]:
    """Interrupt the kernel as soon as it is busy."""

    def work() -> None:
        with service.client() as api:
            while api.get(f"/api/kernels/{kernel.id}").json()["execution_state"] != "busy":
                time.sleep(0.05)
        kernel.interrupt()

    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join()


# Jupyter Server with our service as its gateway, as JupyterLab is started with --gateway-url


@pytest.fixture
def jupyter_server(service: ServiceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("JUPYTER_GATEWAY_AUTH_TOKEN", service.token)
    options = (
        *(
            f"--gateway-url={service.url}",
            "--IdentityProvider.token=local",
            f"--ServerApp.root_dir={tmp_path}",
        ),
        *(
            "--ServerApp.port={port}",
            "--ServerApp.port_retries=0",
            "--ServerApp.open_browser=False",
            "--allow-root",
        ),
    )
    with stock_server(tmp_path, "jupyter_server", *options, token="local") as url:
        yield url


def test_jupyter_server_with_our_url_as_its_gateway(
    jupyter_server: str, service: ServiceProcess, api: httpx.Client
) -> None:
    with JupyterKernelClient(server_url=jupyter_server, token="local") as kernel:
        kernel_id = kernel.id
        assert kernel_id in kernel_ids(api)
        reply = kernel.execute("x = 1\nprint('hi')\nx + 1", timeout=30)
        assert reply["outputs"][1]["data"]["text/plain"] == "2"
        code = "from IPython.display import display\ndisplay({'image/png': 'A' * 3_000_000}, raw=True)"
        shown = kernel.execute(code, timeout=30)["outputs"][0]["data"]
        assert len(shown["image/png"]) == 3_000_000
        with _interrupted(service, kernel):
            stopped = kernel.execute("import time\ntime.sleep(60)", timeout=30)
        assert stopped["outputs"][0]["ename"] == "KeyboardInterrupt"
        kernel.restart()
        assert kernel.execute("'x' in dir()", timeout=30)["outputs"][0]["data"]["text/plain"] == "False"
    assert kernel_id not in kernel_ids(api)
