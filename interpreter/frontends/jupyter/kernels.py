"""Kernels, kernelspecs, the server's state: ``/api/kernels`` and its neighbours.

Source: the REST API of Jupyter Server (``jupyter_server/services/api/api.yaml``).
"""

from typing import ClassVar
from urllib.parse import quote

from interpreter.api.operations import Access
from interpreter.errors import ForbiddenError, InterpreterError, NotFoundError, UnauthorizedError
from interpreter.frontends.jupyter.base import JupyterHandler, operation, text_field
from interpreter.models import JSON, to_iso

API_VERSION = "2.0.0"
"""Of the REST API that the routes speak; clients compare it with versions of Jupyter Server."""


class RootHandler(JupyterHandler):
    """``/api``"""

    operations: ClassVar = {"GET": operation("get the version")}

    async def do_get(self) -> None:
        self.reply({"version": API_VERSION})


class StatusHandler(JupyterHandler):
    """``/api/status``"""

    operations: ClassVar = {"GET": operation("get the status")}

    async def do_get(self) -> None:
        sessions = self.front.own_sessions(self.token)
        kernels = [self.front.describe(session) for session in sessions]
        last = max((session.last_activity_at for session in sessions), default=self.front.started_at)
        self.reply(
            {
                "started": to_iso(self.front.started_at),
                "last_activity": to_iso(last),
                "connections": sum(kernel["connections"] for kernel in kernels),
                "kernels": len(kernels),
            }
        )


class MeHandler(JupyterHandler):
    """``/api/me``"""

    operations: ClassVar = {"GET": operation("get the user")}

    async def do_get(self) -> None:
        name = self.principal.name
        identity = {
            "username": self.principal.token_id,
            "name": name,
            "display_name": name,
            "initials": name[:1].upper(),
            "avatar_url": None,
            "color": None,
        }
        self.reply({"identity": identity, "permissions": {}})


def describe_spec(name: str, spec: JSON) -> JSON:
    """A kernelspec of Jupyter's REST API. How its process is started is no client's business."""
    described = {
        "argv": [],
        "env": {},
        "display_name": spec["display_name"],
        "language": spec["language"],
        "interrupt_mode": "signal",
        "metadata": {},
    }
    return {"name": name, "spec": described, "resources": {}}


class KernelspecsHandler(JupyterHandler):
    """``/api/kernelspecs``"""

    operations: ClassVar = {"GET": operation("list the kernelspecs")}

    async def do_get(self) -> None:
        found = await self.services.sessions.kernelspecs()
        specs = {name: describe_spec(name, spec) for name, spec in found["kernelspecs"].items()}
        self.reply({"default": found["default"], "kernelspecs": specs})


class KernelspecHandler(JupyterHandler):
    """``/api/kernelspecs/{name}``"""

    operations: ClassVar = {"GET": operation("get a kernelspec")}

    async def do_get(self, name: str) -> None:
        found = (await self.services.sessions.kernelspecs())["kernelspecs"]
        if name not in found:
            raise NotFoundError("There is no such kernelspec; list them with GET /api/kernelspecs.")
        self.reply(describe_spec(name, found[name]))


class _RoleInside(JupyterHandler):
    """For handlers that must look first who is told of a refusal, and how."""

    def check_role(self) -> None:
        """ForbiddenError unless the token may run code."""
        if not self.principal.may_run:
            raise ForbiddenError(f"The token's role does not allow this; it is for {Access.RUN.value}.")


class KernelsHandler(_RoleInside):
    """``/api/kernels``"""

    operations: ClassVar = {"GET": operation("list kernels"), "POST": operation("start a kernel")}

    @property
    def metered(self) -> bool:  # type: ignore[override]
        return self.request.method != "POST"  # which does it itself

    async def do_get(self) -> None:
        self.reply([self.front.describe(session) for session in self.front.own_sessions(self.token)])

    async def do_post(self) -> None:
        try:
            model = await self._start()
        except UnauthorizedError:
            raise
        except InterpreterError as error:
            if self.way == "header":
                raise
            model = _refused_model(self.front.refuse(self.token, error), self.settings_.kernel_name)
        self.set_header("Location", f"/api/kernels/{quote(model['id'])}")
        self.reply(model, 201)

    async def _start(self) -> JSON:
        self.meter()
        self.check_role()
        fields = self.read_fields()
        session = await self.front.start_kernel(self.token, text_field(fields, "name"))
        return self.front.describe(session)


class KernelHandler(_RoleInside):
    """``/api/kernels/{kernel_id}``"""

    operations: ClassVar = {
        "GET": operation("get a kernel"),
        "DELETE": operation("end a kernel"),
    }

    @property
    def metered(self) -> bool:  # type: ignore[override]
        return self.request.method != "DELETE"  # a kernel must never stay for that

    async def do_get(self, kernel_id: str) -> None:
        if self.front.find_refusal(self.token, kernel_id) is not None:
            self.reply(_refused_model(kernel_id, self.settings_.kernel_name))
            return
        session = self.session_of(kernel_id)
        if self.principal.may_run:
            await self.front.hub(session).settle()
        self.reply(self.front.describe(session))

    async def do_delete(self, kernel_id: str) -> None:
        if self.front.find_refusal(self.token, kernel_id) is not None:
            self.front.forget_refusal(kernel_id)
        else:
            self.check_role()
            session = self.session_of(kernel_id)
            # The one session of a token outlives its clients, which delete it after each run.
            if not self.front.is_shared(session):
                await self.services.sessions.delete(self.principal, session.id)
        self.set_status(204)


class InterruptHandler(JupyterHandler):
    """``/api/kernels/{kernel_id}/interrupt``"""

    operations: ClassVar = {"POST": operation("interrupt a kernel", Access.RUN)}

    async def do_post(self, kernel_id: str) -> None:
        session = self.session_of(kernel_id)
        self.front.hub(session).note_interrupt()
        self.services.runs.interrupt(self.principal, session.id)
        self.set_status(204)


class RestartHandler(JupyterHandler):
    """``/api/kernels/{kernel_id}/restart``"""

    operations: ClassVar = {"POST": operation("restart a kernel", Access.RUN)}

    async def do_post(self, kernel_id: str) -> None:
        session = await self.services.runs.restart(self.principal, self.session_of(kernel_id).id)
        await self.front.hub(session).tell_restart()
        self.reply(self.front.describe(session))


def _refused_model(kernel_id: str, name: str) -> JSON:
    return {
        "id": kernel_id,
        "name": name,
        "last_activity": "1970-01-01T00:00:00.000000Z",
        "execution_state": "dead",
        "connections": 0,
    }
