"""What `gateway_config/ipython` does inside the kernels, and that it costs nothing before it is needed."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from gateway_fixtures import Channels, GatewayClient, admins_gateway, kernelspecs_folder

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayClient]:
    """A gateway with the kernels' own environment."""
    folder = tmp_path_factory.mktemp("gw")
    async with admins_gateway(folder, JUPYTER_PATH=kernelspecs_folder()) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def channels(gateway: GatewayClient) -> AsyncIterator[Channels]:
    """A fresh kernel's websocket."""
    async with gateway.kernel() as (_, opened):
        yield opened


async def _figures(channels: Channels, code: str) -> list[str]:
    kinds = []
    for message in await channels.run(code):
        content = message["content"]
        if "image/png" in content.get("data", {}):
            kinds.append("figure")
        elif message["header"]["msg_type"] == "stream":
            kinds.append(content["text"].strip())
        elif message["header"]["msg_type"] == "error":
            kinds.append(content["ename"])
    return kinds


@pytest.mark.parametrize(
    "choice",
    [
        "",
        "import matplotlib; matplotlib.use('Agg')",
        "import matplotlib.pyplot as plt, matplotlib; matplotlib.use('agg')",
        "import matplotlib.pyplot as plt; plt.switch_backend('Agg')",
        "import os; os.environ['MPLBACKEND'] = 'Agg'",
        "%matplotlib agg",
    ],
)
async def test_figures_appear_whatever_backend_was_chosen(channels: Channels, choice: str) -> None:
    plot = f"{choice}\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])"
    shown = await _figures(channels, f"{plot}\nplt.show()\nprint('between')\nplt.plot([2, 1]);")
    assert shown == ["figure", "between", "figure"]
    assert await _figures(channels, "plt.plot([3]); 1 / 0") == ["ZeroDivisionError", "figure"]
    assert await _figures(channels, "print('no figure')") == ["no figure"]


async def test_matplotlib_is_not_imported_before_it_is_asked_for(channels: Channels) -> None:
    loaded = "import sys; print([m for m in ('matplotlib', 'numpy', 'pandas') if m in sys.modules])"
    assert await channels.text(loaded) == "[]\n"


async def test_a_first_plot_finds_its_font_list(channels: Channels) -> None:
    code = "import logging; logging.basicConfig(level=20)\nimport matplotlib.font_manager"
    assert await _figures(channels, code) == []


async def test_no_history_file_is_shared_between_sessions(channels: Channels) -> None:
    await channels.run("a = 1")
    text = await channels.text(
        "import pathlib, os; print(list(pathlib.Path.home().rglob('history*')), In[1])"
    )
    assert text == "[] a = 1\n"


async def test_what_programs_print_comes_before_the_value(channels: Channels) -> None:
    for _ in range(10):
        outputs = await channels.run("import os\nos.system('echo printed')")
        kinds = [message["header"]["msg_type"] for message in outputs]
        assert kinds == ["stream", "execute_result", "execute_reply"]


async def test_characters_that_programs_print_stay_whole(channels: Channels) -> None:
    code = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', \"print('a' + 'é' * 100_000)\"]);"
    assert await channels.text(code) == "a" + "é" * 100_000 + "\n"
