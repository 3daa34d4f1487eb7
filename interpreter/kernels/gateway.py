"""The gateway's REST API: the one module that knows it.

Kernel Gateway and Jupyter Server speak the same (jupyter-server.readthedocs.io, "REST API"). A body
that the gateway sends with an error is never passed on, but what our own says: it may hold a traceback.
"""

import asyncio
import json
import logging
import re
from collections.abc import Coroutine, Mapping
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlencode

from tornado.httpclient import AsyncHTTPClient, HTTPRequest, HTTPResponse
from tornado.httputil import HTTPHeaders

from interpreter.errors import GatewayError, InterpreterError, InvalidRequestError
from interpreter.kernels.background import Background
from interpreter.kernels.deaths import GONE, KernelDeath, find_death, find_start_failure, start_failure
from interpreter.kernels.fetching import fetch
from interpreter.kernels.refusals import CONNECT_ERRORS, connection_error, unauthorized_sentence
from interpreter.kernels.scheme import other_scheme
from interpreter.kernels.target import GatewayTarget
from interpreter.kernels.turns import Turns
from interpreter.models import JSON

log = logging.getLogger(__name__)

MAX_REST_CONNECTIONS = 1000
DELETE_TIMEOUT = 10.0  # seconds that a DELETE may take; stubborn kernels need 5
DELETE_RETRY_DELAY = 0.5  # seconds before a DELETE that failed is sent again
SETTLE_TIMEOUT = 10.0  # seconds that a stop waits for clean-up at the gateway

# How gateways say it: in Jupyter Server's words, and in those of our own extension.
_NO_KERNELSPEC = re.compile(rb"NoSuchKernel|No such kernel|Unknown kernelspec")
_FULL = re.compile(rb"Resource Limit|maximum number of kernels|kernels are in use", re.IGNORECASE)


class Gateway:
    """A client of one gateway.

    Every method raises GatewayError with a sentence that names the setting to change.
    """

    def __init__(self, target: GatewayTarget) -> None:
        self.target = target
        # Tornado's client runs ten requests at once unless told otherwise.
        self._client = AsyncHTTPClient(force_instance=True, max_clients=MAX_REST_CONNECTIONS)
        self._cookies: dict[str, str] = {}
        self._login_lock = asyncio.Lock()
        self.large_messages = Turns()
        """Of who reads one: all kernels together shall take no more of the service than one would."""
        self._background = Background()
        self._clean_ups: dict[str, set[asyncio.Task[None]]] = {}
        self._ends_all = False

    def leave_kernels(self) -> None:
        """Delete no kernel any more: the gateway is about to end, which ends all of them at once."""
        self._ends_all = True

    def close(self) -> None:
        """Close the idle connections."""
        self._client.close()

    async def settle(self) -> None:
        """Wait for the clean-up that still goes on, at most `SETTLE_TIMEOUT` seconds; before `close`."""
        await self._background.settle(SETTLE_TIMEOUT)

    async def start_kernel(
        self,
        name: str,
        *,
        path: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 0.0,
        owner: str = "",
    ) -> str:
        """Ask for a kernel and give its id; it is not ready before its websocket answers.

        The gateway has ``timeout`` seconds more than for other answers. A kernel that comes when the
        caller waits no more (its task was cancelled) is deleted; `gone` waits for that.
        """
        body: JSON = {"name": name, "env": dict(env or {})}
        if path is not None:
            body["path"] = path
        starting = self._background.spawn(self._start_kernel(body, timeout))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            self.discard_later(self._delete_unwanted(starting), owner)
            raise

    async def _start_kernel(self, body: JSON, timeout: float) -> str:
        answer = await self._json("POST", "api", "kernels", body=body, extra_time=timeout)
        kernel_id = answer.get("id") if isinstance(answer, dict) else None
        if not isinstance(kernel_id, str) or not kernel_id:
            raise GatewayError("The gateway answered without a kernel id; check gateway_url.")
        return kernel_id

    async def _delete_unwanted(self, starting: "asyncio.Task[str]") -> None:
        await asyncio.wait({starting})
        if not starting.cancelled() and starting.exception() is None:
            await self.discard_kernel(starting.result())

    async def discard_kernel(self, kernel_id: str) -> None:
        """Delete a kernel as well as it can be done, in at most `DELETE_TIMEOUT` seconds."""
        if self._ends_all:
            return
        try:
            async with asyncio.timeout(DELETE_TIMEOUT):
                try:
                    await self.delete_kernel(kernel_id)
                except GatewayError as error:
                    if error.code not in ("gateway_failed", "gateway_unreachable"):
                        raise
                    await asyncio.sleep(DELETE_RETRY_DELAY)
                    await self.delete_kernel(kernel_id)
        except TimeoutError:
            log.warning("The gateway did not delete a kernel within %g seconds.", DELETE_TIMEOUT)
        except InterpreterError as error:
            log.warning("A kernel could not be deleted: %s", error.message)

    def discard_later(self, work: Coroutine[Any, Any, None], owner: str = "") -> None:
        """Do clean-up work in the background; `settle` waits for it, and so does `gone` of its owner."""
        task = self._background.spawn(work)
        if owner:
            self._clean_ups.setdefault(owner, set()).add(task)
            task.add_done_callback(lambda done: self._cleaned_up(owner, done))

    def _cleaned_up(self, owner: str, done: "asyncio.Task[None]") -> None:
        tasks = self._clean_ups[owner]
        tasks.discard(done)
        if not tasks:
            del self._clean_ups[owner]

    async def gone(self, owner: str, timeout: float) -> None:
        """Wait, at most ``timeout`` seconds, until the kernels are deleted that the owner gave up."""
        if tasks := self._clean_ups.get(owner):
            await asyncio.wait(set(tasks), timeout=timeout)

    async def has_kernel(self, kernel_id: str) -> bool:
        """Whether the gateway knows the kernel and does not call it dead."""
        return await self.find_end(kernel_id) is None

    async def find_end(self, kernel_id: str) -> KernelDeath | None:
        """How the kernel ended, as far as the gateway tells; None while it is there."""
        response = await self._request("GET", "api", "kernels", kernel_id, accept=(404,))
        if response.code == 404:
            return find_death(response.body) or GONE
        model = _parsed(response)
        return GONE if isinstance(model, dict) and model.get("execution_state") == "dead" else None

    async def interrupt_kernel(self, kernel_id: str) -> None:
        """Send SIGINT, or an interrupt message, as the kernelspec says."""
        await self._request("POST", "api", "kernels", kernel_id, "interrupt", body={})

    async def restart_kernel(self, kernel_id: str) -> None:
        """Restart; the websocket stays, but what it receives must be waited for (`Kernel.resync`)."""
        await self._request("POST", "api", "kernels", kernel_id, "restart", body={})

    async def delete_kernel(self, kernel_id: str) -> None:
        """Shut the kernel down; it is gone when this returns, or was before."""
        await self._request("DELETE", "api", "kernels", kernel_id, accept=(404,))

    async def kernelspecs(self) -> JSON:
        """``{"default": name, "kernelspecs": {name: {"display_name", "language"}}}``."""
        answer = await self._json("GET", "api", "kernelspecs")
        specs = answer.get("kernelspecs") if isinstance(answer, dict) else None
        if not isinstance(specs, dict):
            raise GatewayError(
                "The server at gateway_url is not a Jupyter server: it lists no kernelspecs.",
                code="not_jupyter",
            )
        listed = {name: _spec_summary(name, spec) for name, spec in sorted(specs.items())}
        return {"default": answer.get("default"), "kernelspecs": listed}

    async def check(self, kernel_name: str) -> str:
        """Look whether the gateway can be used; a sentence about it.

        Raises GatewayError when not.
        """
        try:
            answer = await self._json("GET", "api")
        except GatewayError as error:
            raise await other_scheme(self.target, error) or error from error
        if not isinstance(answer, dict) or "version" not in answer:
            raise GatewayError(
                f"The server at gateway_url ({self.target.url}) is not a Jupyter server.", code="not_jupyter"
            )
        specs = (await self.kernelspecs())["kernelspecs"]
        if kernel_name not in specs:
            names = ", ".join(specs) or "none"
            raise GatewayError(
                f"The gateway has no kernelspec '{kernel_name}'; set kernel_name to one of: {names}.",
                code="no_such_kernelspec",
            )
        return f"{_server_name(answer)} with the kernelspecs {', '.join(specs)}."

    async def websocket_request(
        self, kernel_id: str, client_id: str, *, timeout: float, log_in: bool = False
    ) -> HTTPRequest:
        """The upgrade request for a kernel's channels, with its credentials.

        ``timeout``: seconds for the gateway to answer it. ``log_in``: the last login has expired.
        """
        if log_in:
            self._cookies = {}
        await self._ensure_login()
        return HTTPRequest(
            self.target.ws_url(kernel_id, client_id),
            headers=self._headers(),
            connect_timeout=self.target.connect_timeout,
            request_timeout=timeout,
            ssl_options=self.target.tls,
        )

    async def _json(self, method: str, *parts: str, body: JSON | None = None, extra_time: float = 0) -> Any:
        value = _parsed(await self._request(method, *parts, body=body, extra_time=extra_time))
        if value is None:
            raise GatewayError(
                f"The server at gateway_url ({self.target.url}) is not a Jupyter server: "
                "it does not answer with JSON.",
                code="not_jupyter",
            )
        return value

    async def _request(
        self,
        method: str,
        *parts: str,
        body: JSON | None = None,
        accept: tuple[int, ...] = (),
        extra_time: float = 0,
    ) -> HTTPResponse:
        await self._ensure_login()
        cookies = self._cookies
        response = await self._fetch(method, *parts, body=body, extra_time=extra_time)
        if response.code in (401, 403) and self.target.auth == "password" and not _is_full(response):
            # A login does not last for ever, and a restarted server knows none of its cookies.
            if self._cookies is cookies:
                self._cookies = {}
            await self._ensure_login()
            response = await self._fetch(method, *parts, body=body, extra_time=extra_time)
        elif response.code == 403 and body is not None and await self._take_xsrf_cookie():
            response = await self._fetch(method, *parts, body=body, extra_time=extra_time)
        if response.code < 300 or response.code in accept:
            return response
        raise self._error_of(response, parts, body)

    async def _fetch(
        self, method: str, *parts: str, body: JSON | None = None, extra_time: float = 0
    ) -> HTTPResponse:
        request = HTTPRequest(
            self.target.http_url(*parts),
            method=method,
            headers=self._headers(),
            body=None if body is None else json.dumps(body),
            follow_redirects=False,
            connect_timeout=self.target.connect_timeout,
            request_timeout=self.target.request_timeout + extra_time,
            ssl_options=self.target.tls,
        )
        return await self._send(request)

    async def _send(self, request: HTTPRequest) -> HTTPResponse:
        try:
            return await fetch(self._client, request, raise_error=False)
        except CONNECT_ERRORS as error:
            raise connection_error(self.target, error) from error

    def _headers(self) -> HTTPHeaders:
        headers = HTTPHeaders({"Content-Type": "application/json"})
        if self.target.auth == "token":
            headers["Authorization"] = f"token {self.target.token}"
        if self._cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self._cookies.items())
            headers["X-XSRFToken"] = self._cookies.get("_xsrf", "")
        return headers

    async def _take_xsrf_cookie(self) -> bool:
        """Whether a Jupyter Server that asks for no credentials now gave its `_xsrf` cookie.

        It wants that back with each POST; every page sets it.
        """
        if self.target.auth != "none" or self._cookies:
            return False
        page = await self._send(self._form_request("GET", self.target.http_url("login"), {}, None))
        self._cookies = {name: value for name, value in _cookies_of(page).items() if name == "_xsrf"}
        return bool(self._cookies)

    async def _ensure_login(self) -> None:
        """Log in by a Jupyter Server's form: GET sets the `_xsrf` cookie, POST the login's."""
        if self.target.auth != "password" or self._cookies:
            return
        async with self._login_lock:
            if self._cookies:
                return
            url = self.target.http_url("login")
            page = await self._send(self._form_request("GET", url, {}, None))
            cookies = _cookies_of(page)
            form = {"password": self.target.password, "_xsrf": cookies.get("_xsrf", "")}
            answer = await self._send(self._form_request("POST", url, cookies, form))
            if answer.code not in (302, 303):
                if answer.code in (401, 403):
                    raise GatewayError("The gateway refuses gateway_password.", code="gateway_unauthorized")
                raise GatewayError(
                    "The gateway has no login form; set gateway_auth to 'token' or 'none'.",
                    code="gateway_unauthorized",
                )
            self._cookies = {**cookies, **_cookies_of(answer)}

    def _form_request(
        self, method: str, url: str, cookies: Mapping[str, str], form: Mapping[str, str] | None
    ) -> HTTPRequest:
        headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())}
        if form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        return HTTPRequest(
            url,
            method=method,
            headers=headers,
            body=None if form is None else urlencode(form),
            follow_redirects=False,
            connect_timeout=self.target.connect_timeout,
            request_timeout=self.target.request_timeout,
            ssl_options=self.target.tls,
        )

    def _error_of(self, response: HTTPResponse, parts: tuple[str, ...], body: JSON | None) -> Exception:
        """The error that a refusal of the gateway means to whoever asked us."""
        name = (body or {}).get("name")
        # Stock gateways answer 500 for an unknown kernelspec; only the words tell.
        if name and _NO_KERNELSPEC.search(_words(response)):
            return InvalidRequestError(
                f"There is no kernelspec '{name}'; GET /v1/kernelspecs lists those that can be used.",
                param="kernel_name",
                code="no_such_kernelspec",
            )
        if name and (response.code == 429 or _is_full(response)):
            return GatewayError(
                "The gateway refuses another kernel: its own limit is reached (max_kernels of the gateway).",
                code="gateway_full",
            )
        if response.code in (301, 302, 303, 307, 308, 401, 403):
            return GatewayError(unauthorized_sentence(self.target), code="gateway_unauthorized")
        if (death := find_death(response.body)) is not None:
            if response.code == 404:
                return GatewayError(death.sentence, code="kernel_gone")
            return GatewayError(start_failure(death), code="kernel_not_up")
        if response.code == 404 and len(parts) > 2:
            return GatewayError("The gateway does not know the kernel any more.", code="kernel_gone")
        if response.code == 404:
            return GatewayError(
                f"The server at gateway_url ({self.target.url}) does not know this path; "
                "is its base path in gateway_url?",
                code="not_jupyter",
            )
        told = find_start_failure(response.body) or f"The gateway answered with status {response.code}."
        return GatewayError(told, code="gateway_failed")


def _server_name(answer: JSON) -> str:
    """``version`` is Jupyter Server's in every gateway; ours and Enterprise Gateway tell their own besides."""
    server = f"Jupyter server {answer['version']}"
    own = answer.get("gateway_version")
    return f"Kernel gateway {own} ({server})" if own else server


def _words(response: HTTPResponse) -> bytes:
    return str(response.reason).encode() + b"\n" + (response.body or b"")


def _is_full(response: HTTPResponse) -> bool:
    return response.code in (403, 429) and _FULL.search(_words(response)) is not None


def _parsed(response: HTTPResponse) -> Any:
    """The JSON value of a body; None when it is none."""
    try:
        return json.loads(response.body)
    except (ValueError, RecursionError):
        return None


def _spec_summary(name: str, entry: Any) -> JSON:
    spec = entry.get("spec") if isinstance(entry, dict) else None
    spec = spec if isinstance(spec, dict) else {}
    return {
        "display_name": str(spec.get("display_name") or name),
        "language": str(spec.get("language") or ""),
    }


def _cookies_of(response: HTTPResponse) -> dict[str, str]:
    cookies: SimpleCookie = SimpleCookie()
    for line in response.headers.get_list("Set-Cookie"):
        cookies.load(line)
    return {name: morsel.value for name, morsel in cookies.items() if morsel.value}
