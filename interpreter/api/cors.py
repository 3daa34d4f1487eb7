"""Which pages of other origins may call the API, and how browsers are told (CORS, of the Fetch standard).

Such a page shows its token in a header. Browsers are never told that a cookie may come along, so what a
cookie opens stays closed to other origins, also when all of them are allowed.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from interpreter.api.responses import Responses
from interpreter.settings import EVERY_ORIGIN, Settings, listed

_MAX_AGE = 600  # seconds for which a browser need not ask again
_HEADER_NAMES = re.compile(r"[A-Za-z0-9_, -]{1,1000}")
_EXPOSED = (
    *("Accept-Ranges", "Content-Disposition", "Content-Range", "ETag", "Location"),
    *("Mcp-Session-Id", "Retry-After", "WWW-Authenticate", "X-Request-Id"),
)


@dataclass(frozen=True, slots=True)
class AllowedOrigins:
    """The rule of the setting ``allow_origins``."""

    origins: frozenset[str]

    @classmethod
    def from_settings(cls, settings: Settings) -> "AllowedOrigins":
        """The setting as `validate` lets it through."""
        return cls(frozenset(origin.lower() for origin in listed(settings.allow_origins)))

    def headers(self, origin: str | None) -> dict[str, str]:
        """What an answer to a request with that ``Origin`` has besides; nothing while no page may call."""
        if not self.origins:
            return {}
        everyone = EVERY_ORIGIN in self.origins
        found = {} if everyone else {"Vary": "Origin"}
        if origin is not None and (everyone or origin.lower() in self.origins):
            found["Access-Control-Allow-Origin"] = EVERY_ORIGIN if everyone else origin
            found["Access-Control-Expose-Headers"] = ", ".join(_EXPOSED)
        return found

    def preflight(self, asked: Mapping[str, str], methods: Iterable[str]) -> dict[str, str] | None:
        """The headers of the answer to a browser that asks before it sends; None when it is not welcome.

        ``asked`` are the headers of its request (any capitals), ``methods`` those of the route.
        """
        names = asked.get("Access-Control-Request-Headers", "")
        if "Access-Control-Request-Method" not in asked or not self.headers(asked.get("Origin")).get(
            "Access-Control-Allow-Origin"
        ):
            return None
        found = {
            "Access-Control-Allow-Methods": ", ".join(methods),
            "Access-Control-Max-Age": str(_MAX_AGE),
        }
        if _HEADER_NAMES.fullmatch(names):  # whichever: what they are worth is seen when the request comes
            found["Access-Control-Allow-Headers"] = names
        return found


class CrossOrigin(Responses):
    """Mixed into the handlers of the API: lets the pages of allowed origins read its answers, errors too."""

    cross_origin: ClassVar[bool] = True
    """Whether it is for other origins at all."""

    @property
    def _allowed_origins(self) -> AllowedOrigins:
        allowed: AllowedOrigins = self.application.settings["allowed_origins"]
        return allowed if self.cross_origin else AllowedOrigins(frozenset())

    def set_default_headers(self) -> None:
        super().set_default_headers()
        for name, value in self._allowed_origins.headers(self.request.headers.get("Origin")).items():
            self.set_header(name, value)

    def answer_preflight(self) -> bool:
        """Answer a browser that asks before it sends, which has no token yet; False for any other request."""
        if self.request.method != "OPTIONS":
            return False
        found = self._allowed_origins.preflight(self.request.headers, self.methods)
        if found is None:
            return False
        self.set_status(204)
        for name, value in found.items():
            self.set_header(name, value)
        self.finish()
        return True
