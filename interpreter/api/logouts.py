"""Logins of browsers that were ended before their cookie expires."""

from collections import OrderedDict

_MAX_LOGOUTS = 10_000


class Logouts:
    """The newest logouts, by login id. A restart of the service forgets them; cookies expire by themselves."""

    def __init__(self) -> None:
        self._ended: OrderedDict[str, None] = OrderedDict()

    def add(self, login_id: str) -> None:
        """End a login."""
        self._ended[login_id] = None
        if len(self._ended) > _MAX_LOGOUTS:
            self._ended.popitem(last=False)

    def __contains__(self, login_id: object) -> bool:
        return login_id in self._ended
