"""The command line's settings: traits, configuration file and environment become one `Settings`.

Precedence, as everywhere in Jupyter: command line, then configuration file, then environment, then
the default of the table in ``settings.py``.
"""

import difflib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from jupyter_core.application import JupyterApp, base_aliases, base_flags
from jupyter_core.paths import jupyter_data_dir
from pythonjsonlogger.json import JsonFormatter
from traitlets import Bool, Enum, Float, Integer, TraitError, TraitType, Unicode
from traitlets.config import Config
from traitlets.config.loader import ConfigError, KVCommandLineConfigLoader

from interpreter import __version__
from interpreter.errors import SettingsError
from interpreter.settings import ENV_PREFIX, Settings, env_name, options, validate

_TRAIT_TYPES: Mapping[type, type[TraitType[Any, Any]]] = {
    str: Unicode,
    bool: Bool,
    int: Integer,
    float: Float,
}
_OWN_TRAITS = frozenset({"log_level"})  # the application class has it already


def _trait(field: Any) -> TraitType[Any, Any]:
    choices, help_text = field.metadata["choices"], f"{field.metadata['help']} [{env_name(field.name)}]"
    if choices:
        return Enum(choices, default_value=field.default, help=help_text).tag(config=True)
    made: TraitType[Any, Any] = _TRAIT_TYPES[field.type](field.default, help=help_text)
    return made.tag(config=True)


_Options: Any = type(JupyterApp)(
    "_Options", (JupyterApp,), {f.name: _trait(f) for f in options() if f.name not in _OWN_TRAITS}
)


class _StrictLoader(KVCommandLineConfigLoader):
    """Traitlets only warns of an option that it does not know."""

    def _handle_unrecognized_alias(self, arg: str) -> None:
        names = [name for alias in self.aliases for name in (alias if isinstance(alias, tuple) else (alias,))]
        raise SettingsError(f"--{arg} is no option{_suggestion(arg, names)}.")


class InterpreterApp(_Options):  # type: ignore[misc]  # made from the table, which mypy can't follow
    """A code interpreter service backed by Jupyter kernels."""

    name = "jupyter-interpreter"
    version = __version__
    description = "A self-hosted code interpreter service backed by Jupyter kernels."
    examples = """
    jupyter interpreter serve                       # start the service with a gateway of its own
    jupyter interpreter serve --gateway-url=http://127.0.0.1:8888
    jupyter interpreter check                       # look whether the configured gateway can be used
    echo '1 + 1' | jupyter interpreter run -        # execute code on a running service
    jupyter interpreter record list                 # what has been run
    """
    subcommands: ClassVar[dict[str, tuple[str, str]]] = {
        "serve": ("interpreter.cli.serve.ServeApp", "Start the service."),
        "run": ("interpreter.cli.run.RunApp", "Execute a file, or standard input, on a running service."),
        "check": ("interpreter.cli.check.CheckApp", "Look whether the configured gateway can be used."),
        "token": ("interpreter.cli.token.TokenApp", "Make, list and revoke tokens."),
        "record": ("interpreter.cli.record.RecordApp", "List, show, verify, export and replay the record."),
    }
    aliases: ClassVar[dict[Any, Any]] = {
        **{key: value for key, value in base_aliases.items() if key != "log-level"},
        "log-level": "InterpreterApp.log_level",
        **{f.name.replace("_", "-"): f"InterpreterApp.{f.name}" for f in options() if f.name != "log_level"},
    }
    flags: ClassVar[dict[Any, Any]] = {key: value for key, value in base_flags.items() if key != "y"}

    def initialize(self, argv: list[str] | None = None) -> None:
        """Read all configuration; a wrong value ends the program with one sentence."""
        try:
            self._apply_environment(os.environ)
            super().initialize(argv)
            self._refuse_unknown(self.config)
        except (SettingsError, TraitError, ConfigError) as error:
            self.fail(str(error))

    def _create_loader(self, *args: Any, **kwargs: Any) -> KVCommandLineConfigLoader:
        return _StrictLoader(*args, log=self.log, **kwargs)

    def start(self) -> None:
        """Run the subcommand, or show the help when there is none."""
        super().start()
        if self.subapp is None and type(self) is InterpreterApp:
            self.print_help()

    def settings(self) -> Settings:
        """All settings, checked. Raises SettingsError."""
        values = {f.name: getattr(self, f.name) for f in options() if f.name not in _OWN_TRAITS}
        level = self.log_level
        values["log_level"] = logging.getLevelName(level) if isinstance(level, int) else str(level)
        if not values["state_dir"]:
            values["state_dir"] = str(Path(jupyter_data_dir()) / "interpreter")
        settings = Settings(**values)
        validate(settings)
        return settings

    def fail(self, sentence: str) -> None:
        """End the program with a sentence on stderr and exit code 2."""
        self.exit_with(f"jupyter interpreter: {sentence}")

    def exit_with(self, line: str, code: int = 2) -> None:
        """End the program with a line on stderr."""
        os.write(2, f"{line}\n".encode(errors="backslashreplace"))
        self.exit(code)

    def _apply_environment(self, environment: Mapping[str, str]) -> None:
        """Make what the environment says the defaults, so that file and command line win over it."""
        known = {env_name(field.name): field for field in options()}
        for variable, text in environment.items():
            if not variable.startswith(ENV_PREFIX):
                continue
            field = known.get(variable)
            if field is None:
                raise SettingsError(f"{variable} is no setting{_suggestion(variable, known)}.")
            value = _parse(field.type, text, variable)
            if field.metadata["choices"] and value not in field.metadata["choices"]:
                raise SettingsError(f"{variable} must be one of: {', '.join(field.metadata['choices'])}.")
            setattr(self, field.name, value)

    def _refuse_unknown(self, config: Config) -> None:
        for section in (cls.__name__ for cls in type(self).mro()):
            for key in config.get(section, {}):
                if not self.has_trait(key):
                    names = [f.name for f in options()]
                    raise SettingsError(f"{section}.{key} is no setting{_suggestion(key, names)}.")

    def _configure_logging(self) -> None:
        super()._configure_logging()
        if self.log_json:
            formatter = JsonFormatter("{asctime}{levelname}{name}{message}", style="{")
            for handler in self.log.handlers:
                handler.setFormatter(formatter)


def _suggestion(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; do you mean {close[0]}?" if close else ""


def _parse(kind: Any, text: str, variable: str) -> Any:
    try:
        if kind is bool:
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[
                text.lower()
            ]
        return kind(text)
    except (KeyError, ValueError) as error:
        raise SettingsError(f"{variable} must be a {_WORDS[kind]}, not {text!r}.") from error


_WORDS: Mapping[Any, str] = {bool: "true or false", int: "whole number", float: "number", str: "text"}
