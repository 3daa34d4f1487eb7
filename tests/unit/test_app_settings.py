"""Where settings come from: command line > configuration file > environment > default."""

import dataclasses
import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interpreter.app import CONFIG_NAME, SECRET_IS_SET, InterpreterApp
from interpreter.errors import SettingsError
from interpreter.settings import Settings, env_name, options, validate

SECRETS = [field.name for field in options() if field.metadata["secret"]]
OTHER_VALUE: dict[type, Any] = {str: "other", int: 7, float: 7.5}


@pytest.fixture(autouse=True)
def config_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A configuration folder of the test's own, and no settings in the environment."""
    for name in [name for name in os.environ if name.startswith(("INTERPRETER_", "JUPYTER_"))]:
        monkeypatch.delenv(name)
    folder = tmp_path / "config"
    folder.mkdir()
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(folder))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    yield folder
    for name in ("InterpreterApp", "interpreter", "tornado", "asyncio"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True


def write_config(folder: Path, text: str, name: str = CONFIG_NAME) -> None:
    (folder / f"{name}.py").write_text(text)


def app(*argv: str) -> InterpreterApp:
    made = InterpreterApp()
    made.initialize(list(argv))
    return made


def settings(*argv: str) -> Settings:
    made: Settings = app(*argv).settings()
    return made


def refusal(capfd: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that the program ends with."""
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        app(*argv)
    assert ended.value.code == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("jupyter interpreter: ")
    assert err.count("\n") == 1
    return err.removeprefix("jupyter interpreter: ").strip()


# Precedence


def test_without_anything_the_table_s_defaults_count(tmp_path: Path) -> None:
    default = dataclasses.replace(Settings(), state_dir=str(tmp_path / "data" / "interpreter"))
    assert settings() == default


def test_the_environment_wins_over_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERPRETER_PORT", "1001")
    assert settings().port == 1001


def test_the_file_wins_over_the_environment(config_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERPRETER_PORT", "1001")
    write_config(config_dir, "c.InterpreterApp.port = 1002")
    assert settings().port == 1002


def test_the_command_line_wins_over_all(config_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERPRETER_PORT", "1001")
    write_config(config_dir, "c.InterpreterApp.port = 1002")
    assert settings("--port=1003").port == 1003
    assert settings("--InterpreterApp.port=1004").port == 1004


def test_the_file_of_the_config_option_replaces_the_usual_one(config_dir: Path, tmp_path: Path) -> None:
    write_config(config_dir, "c.InterpreterApp.port = 1002\nc.InterpreterApp.ip = '::1'")
    write_config(tmp_path, "c.InterpreterApp.port = 1005", "mine")
    found = settings(f"--config={tmp_path / 'mine.py'}")
    assert (found.port, found.ip) == (1005, "127.0.0.1")


@pytest.mark.parametrize("name", [field.name for field in options()])
def test_every_setting_has_a_variable_and_an_option(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    field = next(field for field in options() if field.name == name)
    value = not field.default if field.type is bool else OTHER_VALUE.get(field.type)
    if field.metadata["choices"]:
        value = field.metadata["choices"][-1]
    option = app(f"--{name.replace('_', '-')}={value}")
    assert option._values()[name] == value
    monkeypatch.setenv(env_name(name), str(value))
    assert app()._values()[name] == value


@pytest.mark.parametrize("level", ["DEBUG", "INFO", "WARNING", "ERROR"])
def test_log_levels_of_the_table_are_known_everywhere(
    level: str, config_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings(f"--log-level={level}").log_level == level
    monkeypatch.setenv("INTERPRETER_LOG_LEVEL", level)
    assert settings().log_level == level
    write_config(config_dir, f"c.InterpreterApp.log_level = {level!r}")
    assert settings().log_level == level


def test_the_address_of_a_service_may_stand_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERPRETER_URL", "http://127.0.0.1:8889")
    assert settings() == settings()


@pytest.mark.parametrize("level", ["debug", "Debug"])
def test_levels_may_be_in_letters_of_any_case(
    level: str, config_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings(f"--log-level={level}").log_level == "DEBUG"
    monkeypatch.setenv("INTERPRETER_LOG_LEVEL", level)
    assert settings().log_level == "DEBUG"
    write_config(config_dir, f"c.InterpreterApp.log_level = {level!r}")
    assert settings().log_level == "DEBUG"


# What is unknown


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("--prot=1", "--prot is no option; do you mean port?"),
        ("--InterpreterApp.prot=1", "InterpreterApp.prot is no setting; do you mean port?"),
        ("--Interpreter.port=1", "Interpreter.port is no setting; do you mean InterpreterApp?"),
        ("serv", "There is no command 'serv'; do you mean serve?"),
        ("-x", "Argument -x: expected one argument; see --help."),
        ("--port", "Argument --InterpreterApp.port: expected one argument; see --help."),
    ],
)
def test_an_unknown_argument_is_refused(
    argument: str, sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert refusal(capfd, argument) == sentence


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("c.InterpreterApp.prot = 1", "InterpreterApp.prot is no setting; do you mean port?"),
        ("c.InterpretrApp.port = 1", "InterpretrApp.port is no setting; do you mean InterpreterApp?"),
        ("c.KernelGatewayApp.port = 1", "KernelGatewayApp.port is no setting."),
    ],
)
def test_an_unknown_key_in_the_file_is_refused(
    line: str, sentence: str, config_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_config(config_dir, line)
    assert refusal(capfd) == sentence


def test_the_file_that_all_jupyter_programs_share_may_have_sections_of_others(config_dir: Path) -> None:
    write_config(config_dir, "c.ServerApp.port = 1\nc.InterpreterApp.port = 1006", "jupyter_config")
    assert settings().port == 1006


@pytest.mark.parametrize(
    ("variable", "end"),
    [
        ("INTERPRETER_GATEWAY_ULR", "; do you mean INTERPRETER_GATEWAY_URL?"),
        ("INTERPRETER_URI", "; do you mean INTERPRETER_URL?"),
        ("INTERPRETER_BOGUS", "."),
    ],
)
def test_an_unknown_variable_is_refused(
    variable: str, end: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, "http://example.org")
    assert refusal(capfd) == f"{variable} is no setting{end}"


# What is wrong


@pytest.mark.parametrize(
    ("argument", "word"), [("--port=many", "port"), ("--gateway-auth=basic", "gateway_auth")]
)
def test_a_wrong_value_on_the_command_line_is_refused(
    argument: str, word: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert refusal(capfd, argument).startswith(f"{word}: expected ")


@pytest.mark.parametrize("line", ["port = 'many'", "gateway_auth = 'basic'", "log_json = 3"])
def test_a_wrong_value_in_the_file_is_refused(
    line: str, config_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_config(config_dir, f"c.InterpreterApp.{line}")
    assert refusal(capfd).startswith(f"{line.partition(' ')[0]}: expected ")


@pytest.mark.parametrize(
    ("variable", "value", "end"),
    [
        ("INTERPRETER_PORT", "many", "must be a whole number, not 'many'."),
        ("INTERPRETER_EXECUTE_TIMEOUT", "long", "must be a number, not 'long'."),
        ("INTERPRETER_LOG_JSON", "perhaps", "must be true or false, not 'perhaps'."),
        ("INTERPRETER_GATEWAY_AUTH", "basic", "must be one of: none, token, password."),
        ("INTERPRETER_LOG_LEVEL", "LOUD", "must be one of: DEBUG, INFO, WARNING, ERROR."),
    ],
)
def test_a_wrong_value_in_the_environment_is_refused(
    variable: str,
    value: str,
    end: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, value)
    assert refusal(capfd) == f"{variable} {end}"


@pytest.mark.parametrize(
    ("text", "error"), [("c.InterpreterApp.port =", "SyntaxError"), ("1 / 0", "ZeroDivisionError")]
)
def test_a_file_that_can_t_be_read_is_refused(
    text: str, error: str, config_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_config(config_dir, text)
    start = f"The configuration file {CONFIG_NAME} can't be read: {error}: "
    assert refusal(capfd).startswith(start)


def test_a_missing_file_of_the_config_option_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert refusal(capfd, "--config=none.py") == "The configuration file none.py does not exist."


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"port": 65536}, "port must be between 0 and 65535."),
        ({"port": -1}, "port must be a finite number that is not negative."),
        ({"execute_timeout": 0.0}, "execute_timeout must be greater than 0."),
        ({"execute_timeout": float("inf")}, "execute_timeout must be a finite number that is not negative."),
        ({"execute_timeout": float("nan")}, "execute_timeout must be a finite number that is not negative."),
        (
            {"execute_timeout": 20.0, "max_execute_timeout": 10.0},
            "execute_timeout must not be greater than max_execute_timeout.",
        ),
        ({"max_sessions": 0}, "max_sessions must be greater than 0."),
        ({"keepalive_interval": 11.0}, "keepalive_interval must be at most 10 seconds."),
        ({"certfile": "cert.pem"}, "certfile and keyfile must be set together."),
        ({"gateway_auth": "basic"}, "gateway_auth must be one of: none, token, password."),
        ({"pool_size": 101}, "pool_size must not be greater than max_sessions."),
        *(
            ({"token": token}, "token must be of visible ASCII characters, without spaces.")
            for token in ("two words", "tab\there", "line\n", "smörgåsbord", "\x7f")
        ),
        ({"log_level": "LOUD"}, "log_level must be one of: DEBUG, INFO, WARNING, ERROR."),
    ],
)
def test_validate_names_the_setting(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError) as refused:
        validate(dataclasses.replace(Settings(), **changes))
    assert str(refused.value) == sentence


@pytest.mark.parametrize("changes", [{"port": 0}, {"pool_size": 0}, {"rate_limit": 0}, {"log_json": True}])
def test_validate_accepts_what_has_a_meaning(changes: dict[str, Any]) -> None:
    validate(dataclasses.replace(Settings(), **changes))


# Help, generated file, shown configuration


def test_the_generated_file_explains_every_setting_and_gives_its_default(config_dir: Path) -> None:
    text = InterpreterApp().generate_config_file()
    for field in options():
        assert f"# c.InterpreterApp.{field.name} = {field.default!r}\n" in text
        assert field.metadata["help"][:40] in text
        assert env_name(field.name) in text
    before = settings()
    write_config(config_dir, text)
    assert settings() == before
    write_config(config_dir, text.replace("# c.", "c."))
    assert settings() == before


def test_generate_config_writes_the_file_where_it_is_looked_for(config_dir: Path) -> None:
    made = app("--generate-config")
    made.write_default_config()
    assert (config_dir / "jupyter_interpreter_config.py").read_text() == made.generate_config_file()


def test_help_all_names_every_setting(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        app("--help-all")
    assert ended.value.code == 0
    out = capfd.readouterr().out
    assert all(f"--InterpreterApp.{field.name}=" in out for field in options())


@pytest.mark.parametrize("form", ["--show-config", "--show-config-json"])
@pytest.mark.parametrize("source", ["command line", "file", "environment"])
def test_show_config_never_shows_a_secret(
    form: str,
    source: str,
    config_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    arguments = [form, "--debug", "--gateway-url=http://user:hidden-word@example.org/x"]
    if source == "command line":
        arguments += [f"--{name.replace('_', '-')}=hidden-word" for name in SECRETS]
    elif source == "file":
        write_config(config_dir, "\n".join(f"c.InterpreterApp.{name} = 'hidden-word'" for name in SECRETS))
    else:
        for name in SECRETS:
            monkeypatch.setenv(env_name(name), "hidden-word")
    app(*arguments).start()
    out, err = capfd.readouterr()
    assert "hidden-word" not in out + err
    assert out.count(SECRET_IS_SET) == len(SECRETS) + 1
    known = {"token", "gateway_token", "gateway_password", "librechat_jwt_secret", "store_url"}
    assert known == set(SECRETS)


def test_show_config_tells_where_each_value_comes_from(
    config_dir: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INTERPRETER_IP", "::1")
    write_config(config_dir, "c.InterpreterApp.port = 1002")
    app("--show-config", "--pool-size=3").start()
    lines = capfd.readouterr().out.splitlines()
    assert {
        "ip = '::1'  # INTERPRETER_IP",
        "port = 1002  # configuration file",
        "pool_size = 3  # command line",
        "rate_limit = 0  # default",
    } <= set(lines)
    app("--show-config-json").start()
    assert json.loads(capfd.readouterr().out)["InterpreterApp"]["port"] == 1002


# Logging


def test_log_lines_of_all_parts_go_to_stderr_as_json_when_asked(capfd: pytest.CaptureFixture[str]) -> None:
    app("--log-json")
    logging.getLogger("interpreter.access").info("request method=GET", extra={"status": 200})
    line = json.loads(capfd.readouterr().err)
    assert (line["message"], line["status"], line["levelname"]) == ("request method=GET", 200, "INFO")


def test_the_log_level_holds_for_all_parts(capfd: pytest.CaptureFixture[str]) -> None:
    app("--log-level=WARNING")
    logging.getLogger("interpreter.access").info("quiet")
    logging.getLogger("interpreter.access").warning("loud")
    err = capfd.readouterr().err
    assert "loud" in err
    assert "quiet" not in err


def test_a_sentence_ends_once(config_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_config(config_dir, "raise RuntimeError('Is it this?')")
    assert refusal(capfd).endswith("can't be read: RuntimeError: Is it this?")


# Logs


def test_lines_of_the_log_have_level_and_time(capfd: pytest.CaptureFixture[str]) -> None:
    made = app()
    made.log.info("from the application")
    logging.getLogger("interpreter.runs").warning("from a part")
    lines = capfd.readouterr().err.splitlines()
    form = r"\[(I|W) \d{4}-\d\d-\d\d \d\d:\d\d:\d\d [\w.]+\] from (the application|a part)"
    assert len(lines) == 2
    assert all(re.fullmatch(form, line) for line in lines)
