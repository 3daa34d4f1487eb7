"""``jupyter interpreter token``: make, list and revoke tokens, directly in the store.

It works beside a running service, which trusts a token that it has just seen for two more seconds.
"""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

from traitlets import Bool, Enum, Unicode

from interpreter.app import InterpreterApp
from interpreter.cli.command import Command, options_of
from interpreter.cli.dates import local_time, read_date
from interpreter.cli.output import harmless, note, say, table
from interpreter.errors import SettingsError
from interpreter.models import Role
from interpreter.settings import Settings
from interpreter.store import Store, sqlite_url
from interpreter.tokens import TokenInfo, TokenOptions, TokenStore

_DURATION = re.compile(r"([1-9][0-9]{0,5})([smhdw])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_MAX_NAME = 200


class TokenApp(InterpreterApp):
    """Make, list and revoke tokens."""

    description = "Make, list and revoke tokens, also while the service runs."
    examples = """
    jupyter interpreter token create --name=chat --role=run --expires-in=30d
    jupyter interpreter token list
    jupyter interpreter token revoke tok_...
    """
    aliases: ClassVar[dict[Any, Any]] = options_of()
    subcommands: ClassVar[dict[str, tuple[str, str]]] = {
        "create": ("interpreter.cli.token.TokenCreateApp", "Make a token and print its secret, this once."),
        "list": ("interpreter.cli.token.TokenListApp", "List the tokens, without their secrets."),
        "revoke": ("interpreter.cli.token.TokenRevokeApp", "End a token."),
    }


class TokenCreateApp(Command):
    """Make a token."""

    description = """Make a token and print its secret, and nothing else, on standard output.

    It is kept as a hash only: the secret can't be shown again.
    """
    examples = """
    jupyter interpreter token create --name=chat --role=run
    jupyter interpreter token create --name=audit --role=review --expires-at=2030-01-31
    """
    aliases: ClassVar[dict[Any, Any]] = {
        **options_of("state_dir", "store_url"),
        "name": "TokenCreateApp.token_name",
        "role": "TokenCreateApp.role",
        "expires-in": "TokenCreateApp.expires_in",
        "expires-at": "TokenCreateApp.expires_at",
        "keep-state": "TokenCreateApp.keep_state",
        "stderr-to-stdout": "TokenCreateApp.stderr_to_stdout",
    }

    token_name = Unicode("", help="Who will use it; records show this name.").tag(config=True)
    role = Enum(
        [role.value for role in Role],
        default_value=None,
        allow_none=True,
        help="run: executes code and sees what is its own; review: reads every record; admin: all of it.",
    ).tag(config=True)
    expires_in = Unicode("", help="How long it is valid, as 12h, 30d or 4w; empty: for ever.").tag(
        config=True
    )
    expires_at = Unicode("", help="Until when it is valid, as an ISO 8601 date or time.").tag(config=True)

    keep_state = Bool(
        False, help="Clients that make a kernel per run, such as Open WebUI, share one session."
    ).tag(config=True)
    stderr_to_stdout = Bool(
        False, help="Over the Jupyter routes, stdout repeats what stderr says, tracebacks too."
    ).tag(config=True)

    async def main(self, settings: Settings) -> int:
        """Make it."""
        role = self._checked_role()
        expires_at = self._expiry(datetime.now(UTC))
        options = TokenOptions(self.keep_state, self.stderr_to_stdout)
        async with opened_tokens(settings) as tokens:
            info, secret = await tokens.create(self.token_name, role, expires_at, options)
        if self.json_output:
            say(json.dumps({**info.as_json(), "token": secret}, indent=2))
        else:
            note(f"{info.id} ({info.role.value}), {_validity(info)}; this is its secret, shown only now:")
            say(secret)
        return 0

    def _checked_role(self) -> Role:
        name = self.token_name
        if not name or len(name) > _MAX_NAME or not name.isprintable():
            raise SettingsError(f"--name must be given: 1 to {_MAX_NAME} printable characters.")
        if self.role is None:
            raise SettingsError(f"--role must be given: {', '.join(Role)}.")
        if self.expires_in and self.expires_at:
            raise SettingsError("Give --expires-in or --expires-at, not both.")
        return Role(self.role)

    def _expiry(self, now: datetime) -> datetime | None:
        if self.expires_at:
            at = read_date(self.expires_at, "expires-at")
        elif self.expires_in:
            match = _DURATION.fullmatch(self.expires_in.strip())
            if match is None:
                raise SettingsError("--expires-in must be a number and s, m, h, d or w, as 30d.")
            try:
                at = now + timedelta(seconds=int(match[1]) * _UNITS[match[2]])
            except OverflowError as error:
                raise SettingsError("--expires-in is too long.") from error
        else:
            return None
        if at <= now:
            raise SettingsError("--expires-at must be in the future.")
        return at


class TokenListApp(Command):
    """List the tokens."""

    description = "List the tokens, newest first, without their secrets."
    aliases: ClassVar[dict[Any, Any]] = options_of("state_dir", "store_url")

    async def main(self, settings: Settings) -> int:
        """List them."""
        async with opened_tokens(settings) as tokens:
            infos = await tokens.list()
        if self.json_output:
            say(json.dumps([info.as_json() for info in infos], indent=2))
            return 0
        rows: list[tuple[str, ...]] = [("ID", "NAME", "ROLE", "CREATED", "VALID", "LAST USED")]
        rows += [
            (
                info.id,
                harmless(info.name),
                info.role.value,
                local_time(info.created_at),
                _validity(info),
                local_time(info.last_used_at) if info.last_used_at else "never",
            )
            for info in infos
        ]
        say(table(rows))
        return 0


class TokenRevokeApp(Command):
    """End a token."""

    description = """End a token.

    usage: jupyter interpreter token revoke ID

    A running service refuses it within two seconds.
    """
    takes_arguments = True
    aliases: ClassVar[dict[Any, Any]] = options_of("state_dir", "store_url")

    async def main(self, settings: Settings) -> int:
        """End it."""
        token_id = self.only_argument("token id (see `token list`)")
        async with opened_tokens(settings) as tokens:
            if not await tokens.revoke(token_id):
                self.exit_with(f"jupyter interpreter: There is no token {harmless(token_id)}.", 1)
        note(f"{token_id} is revoked.")
        return 0


@asynccontextmanager
async def opened_tokens(settings: Settings) -> AsyncIterator[TokenStore]:
    """The tokens in the store of these settings. Raises SettingsError, UnavailableError."""
    store = Store(settings.store_url or sqlite_url(Path(settings.state_dir) / "store.sqlite"))
    try:
        await store.start()
        yield TokenStore(store, clock=lambda: datetime.now(UTC))
    finally:
        await store.aclose()


def _validity(info: TokenInfo) -> str:
    if info.expires_at is None:
        return "for ever"
    word = "until" if info.is_valid(datetime.now(UTC)) else "expired"
    return f"{word} {local_time(info.expires_at)}"
