"""Which kernel commands the fork server can serve, and which process of its."""

from pathlib import Path

import pytest

from interpreter.gateway_extension.sandbox.fork_command import ForkCommand, Origin, extension_files


@pytest.mark.parametrize(
    ("command", "env", "can"),
    [
        (["/p", "-m", "mod", "-f", "x"], {"PYTHONPATH": "x"}, True),
        (["/p", "-Xfrozen_modules=off", "-m", "mod"], {}, True),
        (["/p", "-P", "-Xfrozen_modules=off", "-m", "mod"], {}, True),
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


def test_a_zygote_with_files_serves_those_that_need_none() -> None:
    def origin(imports: list[str], files: list[str]) -> Origin:
        command = ForkCommand.find(["/p", "-m", "mod"], {}, imports, files)
        assert command is not None
        return command.origin

    with_files = origin(["numpy"], ["/k/extension.py"])
    assert with_files.serves(origin(["numpy"], []))
    assert not origin(["numpy"], []).serves(with_files)
    assert not with_files.serves(origin(["numpy"], ["/k/other.py"]))
    assert not with_files.serves(origin([], []))


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"modules": ["one", "two"]}, ["one.py"]),
        ({"modules": ["../outside", 5, "one"]}, ["one.py"]),
        ({"modules": "one"}, []),
        ({}, []),
        ("one", []),
    ],
    ids=["what is there", "names only", "no list", "nothing", "no table"],
)
def test_a_kernelspec_names_the_files_that_its_kernels_load(
    tmp_path: Path, settings: object, found: list[str]
) -> None:
    folder = tmp_path / "spec"
    folder.mkdir()
    (folder / "one.py").touch()
    (tmp_path / "outside.py").touch()
    expected = tuple(str(folder / name) for name in found)
    assert extension_files({"interpreter": settings}, str(folder)) == expected
    assert extension_files({"interpreter": settings}, "") == ()
