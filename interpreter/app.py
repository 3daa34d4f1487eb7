"""The command line's settings: traits, configuration file and environment become one `Settings`.

Precedence, as everywhere in Jupyter: command line, then configuration file, then environment, then
the default of the table in ``settings.py``. What is unknown in any of them ends the program.
"""

import difflib
import inspect
import json
import logging
import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn, cast

from jupyter_core.application import JupyterApp, base_aliases, base_flags
from jupyter_core.paths import jupyter_data_dir
from traitlets import Bool, Enum, Float, Integer, TraitError, TraitType, Unicode, default, observe
from traitlets.config import Application, Config
from traitlets.config.loader import ConfigError, KVArgParseConfigLoader

from interpreter import __version__
from interpreter.errors import SettingsError
from interpreter.logs import Repetitions
from interpreter.settings import ENV_PREFIX, Settings, env_name, options, validate

CONFIG_NAME = "jupyter_interpreter_config"
SECRET_IS_SET = "(set)"  # noqa: S105  # what stands for a secret

_SHARED_CONFIG_NAME = "jupyter_config"  # of all Jupyter programs; it may hold sections of others
_TRAIT_TYPES: Mapping[type, type[TraitType[Any, Any]]] = {
    str: Unicode,
    bool: Bool,
    int: Integer,
    float: Float,
}
_OWN_TRAITS = frozenset({"log_level"})  # the application class has it already
_CLIENT_VARIABLES = {f"{ENV_PREFIX}URL": "url"}  # no settings of the service, but of its clients
_LEVELS = {name: getattr(logging, name) for name in ("DEBUG", "INFO", "WARN", "WARNING", "ERROR")}
_LOG_FORMAT = "[%(levelname)1.1s %(asctime)s %(name)s] %(message)s"  # as Jupyter Server's
_FIELDS = {field.name: field for field in options()}


def _trait(field: Any) -> TraitType[Any, Any]:
    choices, help_text = field.metadata["choices"], f"{field.metadata['help']} [{env_name(field.name)}]"
    if choices:
        return Enum(choices, default_value=field.default, help=help_text).tag(config=True)
    made: TraitType[Any, Any] = _TRAIT_TYPES[field.type](field.default, help=help_text)
    return made.tag(config=True)


_Options: Any = cast(Any, type(JupyterApp))(
    "_Options", (JupyterApp,), {name: _trait(f) for name, f in _FIELDS.items() if name not in _OWN_TRAITS}
)


def aliases_of(*names: str) -> dict[Any, Any]:
    """The command-line options of these settings: ``--record-dir`` for ``record_dir``."""
    return {name.replace("_", "-"): f"InterpreterApp.{name}" for name in names}


class _Level(Enum):  # type: ignore[type-arg]  # traitlets' is generic for type checkers only
    """A level of the log, in letters of any case."""

    def validate(self, obj: Any, value: Any) -> Any:
        return super().validate(obj, value.upper() if isinstance(value, str) else value)


class _StrictLoader(KVArgParseConfigLoader):
    """Traitlets only warns of an option that it does not know."""

    def _create_parser(self) -> None:
        super()._create_parser()
        self.parser.error = self._refuse  # type: ignore[method-assign]  # argparse's own prints a page

    def _refuse(self, message: str) -> NoReturn:
        if found := re.match(r"unrecognized arguments: --?([^=\s]+)", message):
            self._handle_unrecognized_alias(found[1])
        raise SettingsError(f"{message[:1].upper()}{message[1:]}; see --help.")

    def _handle_unrecognized_alias(self, arg: str) -> NoReturn:
        names = [*_flat(self.aliases), *_flat(self.flags)]
        raise SettingsError(f"--{arg.lstrip('-')} is no option{_suggestion(arg, names)}")


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
        "mcp": (
            "interpreter.cli.mcp.McpApp",
            "Be an MCP server on standard input and output, backed by a running service.",
        ),
        "check": ("interpreter.cli.check.CheckApp", "Look whether the configured gateway can be used."),
        "token": ("interpreter.cli.token.TokenApp", "Make, list and revoke tokens."),
        "record": (
            "interpreter.cli.record.RecordApp",
            "List, show, verify, export, prune and replay the record.",
        ),
    }
    aliases: ClassVar[dict[Any, Any]] = {**base_aliases, **aliases_of(*_FIELDS)}
    flags: ClassVar[dict[Any, Any]] = {
        **base_flags,
        "log-json": ({"InterpreterApp": {"log_json": True}}, _FIELDS["log_json"].metadata["help"]),
    }
    # Traitlets' own knows WARN only.
    log_level = _Level(
        tuple(dict.fromkeys((*_LEVELS, *_LEVELS.values()))),
        default_value=logging.INFO,
        help=_FIELDS["log_level"].metadata["help"],
    ).tag(config=True)

    @default("log_format")
    def _log_format_default(self) -> str:
        return _LOG_FORMAT

    takes_arguments: ClassVar[bool] = False
    """Whether the command has arguments besides its options."""

    def _config_file_name_default(self) -> str:
        return CONFIG_NAME

    # Reading the configuration

    def initialize(self, argv: list[str] | None = None) -> None:
        """Read all configuration; what is wrong ends the program with one sentence and exit code 2."""
        try:
            self._apply_environment(os.environ)
            self.parse_command_line(argv)
            if self.subapp is not None or self.generate_config:
                return
            self._refuse_unknown_sections(self.cli_config)
            self._refuse_arguments()
            self.load_config_file()
        except (SettingsError, TraitError, ConfigError) as error:
            self.fail(_sentence(error))

    def parse_command_line(self, argv: list[str] | None = None) -> None:
        """As traitlets does, without its own way to end the program when something is wrong."""
        inspect.unwrap(Application.parse_command_line)(self, argv)

    def _create_loader(
        self, argv: Any, aliases: Any, flags: Any, classes: Any = None
    ) -> KVArgParseConfigLoader:
        return _StrictLoader(argv, aliases, flags, classes=classes, log=self.log)

    def load_config_file(self, *_: Any, **__: Any) -> None:
        """Read ``jupyter_config`` (shared with other programs), then our own file or that of ``--config``.

        Raises SettingsError when a file is wrong, or the one of ``--config`` is missing.
        """
        self._load(_SHARED_CONFIG_NAME, self.config_file_paths)
        shared = set(self.config)
        if not self.config_file:
            self._load(self.config_file_name, self.config_file_paths)
        else:
            path = Path(self.config_file).absolute()
            if not path.is_file():
                raise SettingsError(f"The configuration file {self.config_file} does not exist.")
            self._load(str(path), [None])
        own = Config({name: value for name, value in self.config.items() if name not in shared})
        self._refuse_unknown_sections(own)

    def _load(self, name: str, path: list[Any]) -> None:
        self.raise_config_file_errors = True
        try:
            inspect.unwrap(Application.load_config_file)(self, name, path=path)
        except (SettingsError, TraitError):
            raise
        except Exception as error:  # the file is a program, so it can raise anything
            problem = f"{type(error).__name__}: {error}"
            end = "" if problem.endswith((".", "?", "!")) else "."
            raise SettingsError(
                f"The configuration file {Path(name).name} can't be read: {problem}{end}"
            ) from error

    def _apply_environment(self, environment: Mapping[str, str]) -> None:
        """Make what the environment says the defaults, so that file and command line win over it."""
        known = {env_name(name): field for name, field in _FIELDS.items()}
        for variable, text in environment.items():
            if not variable.startswith(ENV_PREFIX):
                continue
            if variable in _CLIENT_VARIABLES:
                if self.has_trait(trait := _CLIENT_VARIABLES[variable]):
                    setattr(self, trait, text)
                continue
            field = known.get(variable)
            if field is None:
                names = [*known, *_CLIENT_VARIABLES]
                raise SettingsError(f"{variable} is no setting{_suggestion(variable, names, ENV_PREFIX)}")
            value = _parse(field.type, text.upper() if field.name == "log_level" else text, variable)
            if field.metadata["choices"] and value not in field.metadata["choices"]:
                raise SettingsError(f"{variable} must be one of: {', '.join(field.metadata['choices'])}.")
            setattr(self, field.name, value)

    @observe("config")
    def _config_changed(self, change: Any) -> None:
        # Application's own handler also logs the whole configuration, secrets included.
        super(Application, self)._config_changed(change)  # type: ignore[misc]

    def _load_config(self, cfg: Config, *args: Any, **kwargs: Any) -> None:
        """Traitlets only warns of a name that it does not know."""
        for section in self.section_names():
            for key in cfg.get(section, {}):
                if key[:1].islower() and key not in self.traits(config=True):
                    names = self.traits(config=True)
                    raise SettingsError(f"{section}.{key} is no setting{_suggestion(key, names)}")
        super()._load_config(cfg, *args, **kwargs)

    def _refuse_unknown_sections(self, config: Config) -> None:
        known = {cls.__name__ for cls in type(self).mro()} | _class_names(InterpreterApp.subcommands)
        for section, value in config.items():
            if section not in known and isinstance(value, Config) and value:
                name = f"{section}.{next(iter(value))}"
                raise SettingsError(f"{name} is no setting{_suggestion(section, ['InterpreterApp'])}")

    def _refuse_arguments(self) -> None:
        if not self.extra_args or self.takes_arguments:
            return
        word = self.extra_args[0]
        if self.subcommands:
            raise SettingsError(f"There is no command '{word}'{_suggestion(word, self.subcommands)}")
        raise SettingsError(f"'{word}' is not expected here; see --help.")

    def _find_subcommand(self, name: str) -> str:
        return ""  # no programs of others become our commands

    def emit_examples(self) -> Iterator[str]:
        """The help's examples; traitlets' own indents the first line less than the rest."""
        if self.examples:
            yield from (
                "Examples",
                "--------",
                "",
                textwrap.indent(textwrap.dedent(self.examples).strip(), "    "),
                "",
            )

    # Using it

    def start(self) -> None:
        """Run the subcommand, or show the help when one is missing."""
        super().start()
        if self.subcommands:
            self.print_help()

    def settings(self) -> Settings:
        """All settings, checked. Raises SettingsError."""
        settings = Settings(**self._values())
        validate(settings)
        return settings

    def _values(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in _FIELDS}
        level = values["log_level"]
        values["log_level"] = logging.getLevelName(level) if isinstance(level, int) else str(level)
        if not values["state_dir"]:
            values["state_dir"] = str(Path(jupyter_data_dir()) / "interpreter")
        return values

    def fail(self, sentence: str) -> NoReturn:
        """End the program with a sentence on stderr and exit code 2."""
        self.exit_with(f"jupyter interpreter: {sentence}")

    def exit_with(self, line: str, code: int = 2) -> NoReturn:
        """End the program with a line on stderr."""
        os.write(2, f"{line}\n".encode(errors="backslashreplace"))
        self.exit(code)
        raise SystemExit(code)

    def start_show_config(self) -> None:
        """Print every setting with its value and where that comes from; of secrets only that they are set."""
        values = {name: _shown(name, value) for name, value in self._values().items()}
        if self.show_config_json:
            text = json.dumps({"InterpreterApp": values}, indent=1, sort_keys=True)
        else:
            lines = [f"Loaded configuration file: {name}" for name in self.loaded_config_files]
            lines += [f"{name} = {value!r}  # {self._origin(name)}" for name, value in values.items()]
            text = "\n".join(lines)
        os.write(1, f"{text}\n".encode())

    def _origin(self, name: str) -> str:
        sections = self.section_names()
        if any(name in self.cli_config.get(section, {}) for section in sections):
            return "command line"
        if any(name in self.config.get(section, {}) for section in sections):
            return "configuration file"
        return env_name(name) if env_name(name) in os.environ else "default"

    def generate_config_file(self, classes: Any = None) -> str:
        """A configuration file with every setting, its help and its default, all commented out."""
        parts = [
            "# Configuration of the code interpreter service; see `jupyter interpreter --help-all`.\n"
            "# The command line wins over this file, and this file over the environment.\n\n"
            "c = get_config()  # noqa\n"
        ]
        for name, field in _FIELDS.items():
            help_text = field.metadata["help"]
            if field.metadata["choices"]:
                help_text += f" One of: {', '.join(field.metadata['choices'])}."
            comment = textwrap.wrap(f"{help_text} [{env_name(name)}]", 96)
            lines = [*comment, f"c.InterpreterApp.{name} = {field.default!r}"]
            parts.append("".join(f"# {line}\n" for line in lines))
        return "\n".join(parts)

    # Logging

    def get_default_logging_config(self) -> dict[str, Any]:
        """Our own loggers and those of Tornado and asyncio write to stderr, like the application's."""
        config: dict[str, Any] = super().get_default_logging_config()
        config["loggers"]["interpreter"] = {"level": "DEBUG", "handlers": ["console"], "propagate": False}
        for name in ("tornado", "asyncio"):
            config["loggers"][name] = {"level": "WARNING", "handlers": ["console"], "propagate": False}
        config["filters"] = {"repetitions": {"()": f"{Repetitions.__module__}.{Repetitions.__name__}"}}
        config["handlers"]["console"]["filters"] = ["repetitions"]
        if self.log_json:
            config["formatters"]["console"] = {
                "()": "pythonjsonlogger.json.JsonFormatter",
                "fmt": "{asctime}{levelname}{name}{message}",
                "style": "{",
            }
        return config

    @observe("log_json")
    def _log_json_changed(self, _: Any) -> None:
        self._configure_logging()


def _flat(names: Iterable[Any]) -> list[str]:
    return [word for name in names for word in (name if isinstance(name, tuple) else (name,))]


def _class_names(subcommands: Mapping[str, tuple[Any, str]]) -> set[str]:
    return {cls.rpartition(".")[2] for cls, _ in subcommands.values() if isinstance(cls, str)}


def _suggestion(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Only what differs is compared: a prefix that all have would make all of them close."""
    rest = [word.removeprefix(prefix) for word in known]
    close = difflib.get_close_matches(name.removeprefix(prefix), rest, n=1)
    return f"; do you mean {prefix}{close[0]}?" if close else "."


def _sentence(error: Exception) -> str:
    """One line; traitlets' say which class an option belongs to, which helps nobody here."""
    line = " ".join(str(error).split())
    return re.sub(r"^The '(\w+)' trait of an? \w+ instance expected", r"\1: expected", line)


def _shown(name: str, value: Any) -> Any:
    if _FIELDS[name].metadata["secret"]:
        return SECRET_IS_SET if value else ""
    return re.sub(r"//[^/@]*@", f"//{SECRET_IS_SET}@", value) if isinstance(value, str) else value


def _parse(kind: Any, text: str, variable: str) -> Any:
    try:
        if kind is bool:
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[
                text.lower()
            ]
        return kind(text)
    except (KeyError, ValueError) as error:
        raise SettingsError(f"{variable} must be {_WORDS[kind]}, not {text!r}.") from error


_WORDS: Mapping[Any, str] = {bool: "true or false", int: "a whole number", float: "a number"}
