"""``python -m interpreter`` and the ``jupyter-interpreter`` command."""

import os
import sys


def main() -> None:
    """Run the command line."""
    try:
        try:
            # Loading takes a moment, in which Ctrl-C must not end in a traceback either.
            from interpreter.app import InterpreterApp  # noqa: PLC0415

            InterpreterApp.launch_instance()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read, of the help say, has enough. Python would complain when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)  # as a shell reports SIGINT


if __name__ == "__main__":
    main()
