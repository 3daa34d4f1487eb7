"""What stands at the border of a sandbox, where there is none."""

from contextlib import closing

import pytest

from interpreter.gateway_extension.sandbox.bubblewrap import SandboxError
from interpreter.gateway_extension.sandbox.helper import Helper


class Stopped(Helper):
    close = Helper.stop


@pytest.mark.parametrize(
    ("name", "plan", "cause"),
    [
        ("proxy", {"pid": 0, "uid": None, "hosts": [], "public": False}, "network can't be entered"),
        ("relay", {"pid": 0, "uid": None, "sockets": {}}, "No such file or directory"),
        ("proxy", {}, "pid"),
        ("nothing", {}, "exit code 2"),
    ],
    ids=["proxy", "relay", "plan", "no-program"],
)
def test_a_helper_that_does_not_start_says_why(name: str, plan: dict[str, object], cause: str) -> None:
    with closing(Stopped(name, plan, None)) as helper, pytest.raises(SandboxError) as told:
        helper.wait_until_ready()
    assert str(told.value).startswith(f"the network {name} of this kernel did not start (")
    assert cause in str(told.value)
