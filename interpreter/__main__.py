"""``python -m interpreter`` and the ``jupyter-interpreter`` command."""

import os
import sys

from interpreter.app import InterpreterApp


def main() -> None:
    """Run the command line."""
    try:
        try:
            InterpreterApp.launch_instance()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read, of the help say, has enough. Python would complain when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
