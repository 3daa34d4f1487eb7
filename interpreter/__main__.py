"""``python -m interpreter`` and the ``jupyter-interpreter`` command."""

from interpreter.app import InterpreterApp


def main() -> None:
    """Run the command line."""
    InterpreterApp.launch_instance()


if __name__ == "__main__":
    main()
