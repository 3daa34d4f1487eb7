"""Code that uses up its memory gets a MemoryError and nothing else; its kernel lives on and can be cleaned up."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_kit import Boxed, boxed, kernel_python

MIB = 1024**2
EXTENSIONS = Path(kernel_python()).parents[1] / "share/jupyter/kernels/python3"


@pytest.fixture(scope="module")
def kernel() -> Iterator[Boxed]:
    """A kernel with our configuration and little memory."""
    spec = json.loads((EXTENSIONS / "kernel.json").read_text())
    argv = [part.replace("{resource_dir}", str(EXTENSIONS)) for part in spec["argv"]]
    with boxed({"memory_bytes": 256 * MIB, "read_only_paths": [str(EXTENSIONS)]}, argv=argv) as running:
        yield running


def test_a_run_that_uses_up_its_memory_is_a_memory_error_and_nothing_more(kernel: Boxed) -> None:
    printed = kernel.run("print('begin')\nheld = []\nwhile True: held.append(bytearray(1000))", timeout=60)
    assert printed == "begin\nMemoryError: "
    assert kernel.run("print(len(held) > 1000)", timeout=60) == "True\n"
    assert kernel.run("del held; print(6 * 7)", timeout=60) == "42\n"
