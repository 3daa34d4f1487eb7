"""The pages for browsers: log in and out, the index, the documentation."""

import json
from typing import ClassVar
from urllib.parse import quote

from tornado.web import HTTPError

from interpreter.api.auth import log_out
from interpreter.api.base import PageHandler
from interpreter.api.browsers import ErrorPages
from interpreter.api.errors import retry_after
from interpreter.api.locations import is_local
from interpreter.api.operations import Access, Answer, Operation, json_answer
from interpreter.errors import RateLimitedError

_TAG = "Pages"
_PAGE = Answer("The page.", {"text/html": None})
_REDIRECT = Answer("To the next page.")
_SHOWN = 20


class LoginHandler(ErrorPages):
    """``/login``"""

    operations: ClassVar = {
        "GET": Operation("getLogin", "The login page", _TAG, {200: _PAGE}, Access.PUBLIC, page=True),
        "POST": Operation(
            "logIn",
            "Log a browser in",
            _TAG,
            {302: _REDIRECT, 401: _PAGE, 403: _PAGE, 429: _PAGE},
            Access.PUBLIC,
            "Sets a cookie that is good for reading. The form needs the page's `_xsrf`.",
            body="LoginForm",
            body_required=True,
            page=True,
            form=True,
        ),
    }

    async def do_get(self) -> None:
        failed = self.get_query_argument("failed", None) is not None
        self._show(self.get_query_argument("next", "/"), "That token is not valid." if failed else "")

    async def do_post(self) -> None:
        try:
            fields = self.read_form()
        except HTTPError:
            self._show("/", "The page has expired; send the form again.", 403)
            return
        target = fields.get("next", "/")
        try:
            entered = await self.log_in(fields.get("token", fields.get("password", "")))
        except RateLimitedError as error:
            self.set_header("Retry-After", retry_after(error) or "60")
            self._show(target, error.message, error.status)
            return
        if entered:
            self.redirect(target if is_local(target) else "/")
        else:
            self._show(target, "That token is not valid.", 401)

    def _show(self, target: str, problem: str, status: int = 200) -> None:
        target = target if is_local(target) else "/"
        self.show_page("login.html", status, target=target, problem=problem)


class LogoutHandler(PageHandler):
    """``/logout``"""

    operations: ClassVar = {
        "POST": Operation(
            "logOut",
            "Log a browser out",
            _TAG,
            {302: _REDIRECT},
            Access.PUBLIC,
            body="LogoutForm",
            body_required=True,
            page=True,
            form=True,
        )
    }

    async def do_post(self) -> None:
        self.read_form()
        log_out(self)
        self.redirect("/login")


class IndexHandler(ErrorPages):
    """``/``"""

    operations: ClassVar = {"GET": Operation("getIndex", "The first page", _TAG, {200: _PAGE}, page=True)}

    async def do_get(self) -> None:
        records = await self.services.recorder.list_sessions()
        readable = [r for r in records if self.principal.reads(r.info.owner_id)]
        self.show_page(
            "index.html",
            name=self.principal.name,
            role=self.principal.role.value,
            sessions=[s.view().as_json() for s in self.services.sessions.list(self.principal)[:_SHOWN]],
            notebooks=[r.as_json() for r in readable[:_SHOWN]],
            unsandboxed=self.services.isolation.sandboxed is False,
            isolation=self.services.isolation.summary,
            base_url=f"{self.request.protocol}://{self.request.host}",
        )


class OpenAPIHandler(PageHandler):
    """``/openapi.json``"""

    operations: ClassVar = {
        "GET": Operation(
            "getOpenAPI",
            "This description",
            "Service",
            {200: json_answer("OpenAPI 3.1.", "OpenAPI")},
        )
    }

    def wants_page(self) -> bool:
        return False

    async def do_get(self) -> None:
        self.reply(self.application.settings["openapi"])


class DocsHandler(ErrorPages):
    """``/docs``"""

    operations: ClassVar = {
        "GET": Operation("getDocs", "The routes as a page", _TAG, {200: _PAGE}, page=True)
    }

    async def do_get(self) -> None:
        document = self.application.settings["openapi"]
        groups: dict[str, list[tuple[str, str, dict[str, object]]]] = {}
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                groups.setdefault(operation["tags"][0], []).append((method.upper(), path, operation))
        self.show_page("docs.html", document=document, groups=groups, dump=json.dumps, quote=quote)
