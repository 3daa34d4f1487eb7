"""Dify's sandbox: ``CODE_EXECUTION_ENDPOINT=http://…/dify``, ``CODE_EXECUTION_API_KEY=<token>``.

Facts are from Dify's ``code_executor.py`` and from ``dify-sandbox``. The code of a node comes wrapped: it
prints its result between two marks, so stdout must hold what was printed and nothing else. Dify fails
the node when ``code`` is not 0 (it shows ``message``) or when ``error`` is not empty (it shows that).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from tornado.routing import URLSpec

from interpreter.api.base import Toolbox
from interpreter.api.operations import Access, Answer, Operation
from interpreter.errors import InterpreterError, InvalidRequestError
from interpreter.frontends.dialect import JSON_TYPE, DialectHandler, make_specs, text_of
from interpreter.frontends.keys import KeyHandler
from interpreter.frontends.languages import cell_of, find_language
from interpreter.frontends.scripts import ended_as_script, exit_code
from interpreter.frontends.texts import texts_of
from interpreter.frontends.wording import reworded
from interpreter.models import JSON, Run, RunStatus
from interpreter.toolcalls import without_hints

PREFIX = "/dify"

_TAG = "Dify"
_LANGUAGES = {"python3": "py", "nodejs": "js"}
_HTTP_STATUSES = frozenset({401, 403, 405})


def _operation(name: str, summary: str, access: Access = Access.RUN) -> Operation:
    return Operation(name, summary, _TAG, {200: Answer("What came of it.", {JSON_TYPE: None})}, access)


class DifyHandler(KeyHandler):
    """What all routes share: the answers' frame."""

    def succeed(self, data: JSON) -> None:
        """Answer with data."""
        self.reply({"code": 0, "message": "success", "data": data})

    def error_of(self, error: InterpreterError) -> JSON:
        return {"code": -error.status, "message": error.message, "data": None}

    def show_error(self, error: InterpreterError) -> None:
        """Of an HTTP error Dify shows no sentence; so only those about the key are such."""
        if error.status in _HTTP_STATUSES:
            super().show_error(error)
        else:
            self.reply(self.error_of(reworded(error)))


class RunHandler(DifyHandler):
    """``/dify/v1/sandbox/run``"""

    operations: ClassVar = {"POST": _operation("difyRun", "Run the code of a node of Dify")}

    async def do_post(self) -> None:
        body = self.body_object()
        language, kernel_name = await self._language(text_of(body, "language"))
        request = self.request_of(_code_of(body))
        request = replace(request, code=cell_of(language, request.code, ()))
        run = await self.wait_for(
            await self.services.runs.submit_one_off(self.principal, request, kernel_name=kernel_name)
        )
        if run.folded.truncated and run.status is RunStatus.OK:
            raise InvalidRequestError(
                f"The code printed more than max_output_bytes ({self.settings_.max_output_bytes})."
            )
        self.succeed(answer(run))

    async def _language(self, language: str) -> tuple[str, str]:
        """Our code of a language, and its kernelspec. Raises InvalidRequestError."""
        code = _LANGUAGES.get(language)
        found = find_language(code, await self.services.sessions.kernelspecs()) if code else None
        if found is None:
            raise InvalidRequestError(f"No kernel for {language[:40]} is installed here.", param="language")
        return found.code, found.kernel_name


class DependenciesHandler(DifyHandler):
    """``/dify/v1/sandbox/dependencies``, and its ``update`` and ``refresh``, which have nothing to do here."""

    operations: ClassVar = {
        "GET": _operation("difyDependencies", "List packages for Dify"),
        "POST": _operation("difyUpdateDependencies", "Update packages for Dify"),
    }

    async def do_get(self) -> None:
        self.succeed({"dependencies": []})

    async def do_post(self) -> None:
        self.succeed({"dependencies": []})


class HealthHandler(DifyHandler):
    """``/dify/health``"""

    operations: ClassVar = {"GET": _operation("difyHealth", "Whether the service lives", Access.PUBLIC)}

    async def do_get(self) -> None:
        self.reply("ok")


def answer(run: Run) -> JSON:
    """The data of an answer. Warnings are in ``stderr``; ``error`` is empty unless the code failed."""
    run = ended_as_script(run)
    succeeded, code = run.status is RunStatus.OK, exit_code(run)
    return {
        "stdout": run.folded.stdout,
        "stderr": without_hints(run.folded.stderr),
        "error": "" if succeeded else _error_of(run),
        "exit_code": 0 if succeeded else code or 1,
    }


def _error_of(run: Run) -> str:
    failures = tuple(output for output in run.folded.outputs if output["output_type"] == "error")
    _, text = texts_of(replace(run, folded=replace(run.folded, outputs=failures)), "py")
    return text or f"The run ended as {run.status.value}.\n"


def _code_of(body: Mapping[str, Any]) -> str:
    preload, code = text_of(body, "preload", ""), text_of(body, "code")
    return f"{preload}\n{code}" if preload.strip() else code


ROUTES: tuple[tuple[str, type[DialectHandler]], ...] = (
    (f"{PREFIX}/v1/sandbox/run", RunHandler),
    (f"{PREFIX}/v1/sandbox/dependencies", DependenciesHandler),
    (f"{PREFIX}/v1/sandbox/dependencies/update", DependenciesHandler),
    (f"{PREFIX}/v1/sandbox/dependencies/refresh", DependenciesHandler),
    (f"{PREFIX}/health", HealthHandler),
)
PATHS = (PREFIX, *(path for path, _ in ROUTES))


def make_routes(toolbox: Toolbox) -> list[URLSpec]:
    """The rules of this front end."""
    return make_specs(toolbox, ROUTES)
