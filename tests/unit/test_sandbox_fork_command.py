"""Which kernel commands the fork server can serve."""

import pytest

from interpreter.gateway_extension.sandbox.zygote import ForkCommand


@pytest.mark.parametrize(
    ("command", "env", "can"),
    [
        (["/p", "-m", "mod", "-f", "x"], {"PYTHONPATH": "x"}, True),
        (["/p", "-Xfrozen_modules=off", "-m", "mod"], {}, True),
        (["python", "-m", "mod"], {}, False),
        (["/p", "-m"], {}, False),
        (["/p", "-c", "code"], {}, False),
        (["/bin/sh", "-c", "exec python -m mod"], {}, False),
        (["/p", "-I", "-m", "mod"], {}, False),
        (["/p", "-m", "mod"], {"PYTHONHASHSEED": "0"}, False),
        (["/p", "-m", "mod"], {"LD_PRELOAD": "x"}, False),
    ],
)
def test_which_commands_can_be_had_by_a_fork(command: list[str], env: dict[str, str], can: bool) -> None:
    assert (ForkCommand.find(command, env, ["numpy"]) is not None) == can
