"""Handlers that answer a browser with a page, and everyone else with JSON; errors too."""

from typing import ClassVar
from urllib.parse import parse_qs, quote

from interpreter.api.accept import weight
from interpreter.api.base import PageHandler, UnknownRouteHandler
from interpreter.errors import InterpreterError

_TITLES = {
    400: "The address is wrong",
    401: "Log in first",
    403: "Not allowed",
    404: "Not found",
    409: "The record is damaged",
    429: "Too many requests",
}


class ErrorPages(PageHandler):
    """A page handler whose errors are pages too, for browsers that read."""

    def show_error(self, error: InterpreterError) -> None:
        if self.request.method not in ("GET", "HEAD") or not (self.accepts_html() and self.wants_page()):
            super().show_error(error)
            return
        self.set_error_headers(error)
        self.show_page(
            "error.html",
            error.status,
            heading=_TITLES.get(error.status, "Something went wrong"),
            message=error.message,
            request_id=self.request_id,
            login=f"/login?next={quote(self.request.path, safe='/')}" if error.status == 401 else None,
        )


class PageOrJSON(ErrorPages):
    """Routes that are pages for browsers and JSON for programs."""

    cross_origin: ClassVar[bool] = True
    media_type: ClassVar[str] = "application/json"
    """What a client gets that wants no page."""

    def wants_page(self) -> bool:
        """A browser's weights decide; what names both alike gets the page, unless it is for download."""
        if "download" in parse_qs(self.request.query):
            return False
        header = self.request.headers.get("Accept", "")
        page = weight(header, "text/html")
        other = max(weight(header, self.media_type), weight(header, "application/json"))
        return self.accepts_html() and page >= other


class UnknownPathHandler(PageOrJSON, UnknownRouteHandler):
    """Every path that no route has."""


__all__ = ["ErrorPages", "PageOrJSON", "UnknownPathHandler"]
