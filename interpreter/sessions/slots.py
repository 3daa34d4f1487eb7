"""How many sessions may be alive, all in all and per token. Nothing here waits."""

from interpreter.errors import TooManySessionsError
from interpreter.settings import Settings


class Slots:
    """Counts the sessions that are alive or on their way, by owner."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._taken: dict[str, int] = {}

    def reserve(self, owner_id: str) -> None:
        """Take a slot, before anything is awaited. Raises TooManySessionsError."""
        settings = self._settings
        if sum(self._taken.values()) >= settings.max_sessions:
            limit = f"max_sessions ({settings.max_sessions})"
        elif settings.max_sessions_per_token and (
            self._taken.get(owner_id, 0) >= settings.max_sessions_per_token
        ):
            limit = f"max_sessions_per_token ({settings.max_sessions_per_token})"
        else:
            self.take(owner_id)
            return
        raise TooManySessionsError(
            f"All session slots are taken: {limit} is reached; delete a session or try again later.",
            retry_after=settings.cull_interval,
        )

    def take(self, owner_id: str) -> None:
        """Take a slot for a session that is there already."""
        self._taken[owner_id] = self._taken.get(owner_id, 0) + 1

    def release(self, owner_id: str) -> None:
        """Give a slot back."""
        left = self._taken.pop(owner_id) - 1
        if left:
            self._taken[owner_id] = left
