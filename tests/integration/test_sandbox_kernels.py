"""Kernels of other kinds run in the same sandbox."""

from sandbox_kit import boxed, kernel_argv, kernel_python

# A kernel that binds TCP ports only (as Deno does), written with the test's own ipykernel.
TCP_ONLY = """
import json, sys
info = json.load(open(sys.argv[1]))
assert info['transport'] == 'tcp' and info['ip'] == '127.0.0.1', info
from ipykernel.kernelapp import IPKernelApp
sys.argv = ['kernel', '-f', sys.argv[1], '--HistoryManager.hist_file=:memory:']
IPKernelApp.launch_instance()
"""


def test_a_kernel_that_knows_tcp_only_is_reached_through_sockets_all_the_same() -> None:
    argv = [kernel_python(), "-c", TCP_ONLY, "{connection_file}"]
    with boxed({"kernel_transport": "tcp"}, argv=argv) as kernel:
        assert kernel.manager.transport == "ipc"
        assert kernel.run("print('x' * 3_000_000)").count("x") == 3_000_000
        request = kernel.start_run("open('up', 'w').close()\nwhile True: pass")
        kernel.wait_for_file("up")
        kernel.manager.interrupt_kernel()
        assert kernel.wait_for_reply(request) == "error"
        kernel.manager.restart_kernel()
        kernel.connect()
        assert kernel.run("print('again')") == "again\n"
        # The ports are the sandbox's own: the host has none of them, and inside only the kernel's.
        with boxed({"kernel_transport": "tcp"}, argv=argv) as other:
            assert other.run("print('beside')") == "beside\n"


def test_a_kernel_started_through_a_shell_has_its_environment() -> None:
    with boxed(argv=["/bin/sh", "-c", 'exec "$0" "$@"', *kernel_argv()]) as kernel:
        assert kernel.run("print('up')") == "up\n"
