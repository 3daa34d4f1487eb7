"""Whether a request may come from where it says: against DNS rebinding. Pure.

A page of any site can make a browser ask a service on the browser's own machine, under a name that the
site's DNS points there. Such requests carry the site's name as ``Host`` and in ``Origin``.
"""

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

_EVERYTHING = "*"


@dataclass(frozen=True, slots=True)
class Origins:
    """The rule. ``ip`` is where the service listens, ``names`` are allowed besides loopback's names.

    Who listens on loopback only is asked under a loopback name, or one of ``names``. A browser's page
    (it sends ``Origin``) must come from loopback, from one of ``names``, or from the address itself.
    """

    ip: str
    names: frozenset[str]

    @classmethod
    def parse(cls, ip: str, names: str) -> "Origins":
        """From the settings ``ip`` and ``allowed_hosts`` (comma separated, ``*`` for all)."""
        return cls(ip, frozenset(name.strip().lower() for name in names.split(",") if name.strip()))

    def allow(self, host: str, origin: str | None) -> bool:
        """Whether a request with these headers is welcome."""
        if _EVERYTHING in self.names:
            return True
        asked = _name_of(f"//{host}")
        if asked is None or (is_loopback(self.ip) and not self._knows(asked)):
            return False
        if origin is None:
            return True
        page = _name_of(origin) if origin.lower().startswith(("http://", "https://")) else None
        return page is not None and (self._knows(page) or (page == asked and _is_address(page)))

    def _knows(self, name: str) -> bool:
        return is_loopback(name) or name in self.names


def is_loopback(name: str) -> bool:
    """Whether a host name or address is that of this machine for itself."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    return _is_address(name) and ipaddress.ip_address(name).is_loopback


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _name_of(url: str) -> str | None:
    """The host of a URL in lower case, without port and brackets; None when there is none."""
    try:
        return (urlsplit(url).hostname or "").rstrip(".") or None
    except ValueError:
        return None
