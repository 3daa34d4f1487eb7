"""Times as people write and read them on the command line."""

from datetime import UTC, datetime

from interpreter.errors import SettingsError


def read_date(text: str, option: str) -> datetime:
    """The time of an ISO 8601 date or time, in the machine's time zone unless it names one.

    Raises SettingsError that names the option.
    """
    try:
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise SettingsError(
            f"--{option} must be an ISO 8601 date or time, as 2030-01-31 or 2030-01-31T12:00Z."
        ) from error


def local_time(at: datetime) -> str:
    """To the second, in the machine's time zone."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
