"""``/api/sessions``: Jupyter's sessions, which tie a document of a client to a kernel.

Source: the REST API of Jupyter Server (``jupyter_server/services/api/api.yaml``).
"""

from typing import ClassVar

from interpreter.api.operations import Access
from interpreter.errors import InvalidRequestError, NotFoundError
from interpreter.frontends.jupyter.base import JupyterHandler, operation, text_field
from interpreter.frontends.jupyter.documents import Documents
from interpreter.frontends.jupyter.ids import kernel_id_of
from interpreter.models import JSON, new_id


class _DocumentsHandler(JupyterHandler):
    """What both routes of Jupyter's sessions share."""

    @property
    def documents(self) -> Documents:
        return self.front.documents

    def model(self, document: JSON) -> JSON:
        """The session of Jupyter's REST API. NotFoundError when its kernel is gone; then it is, too."""
        try:
            kernel = self.front.describe(self.session_of(document["kernel_id"]))
        except NotFoundError:
            self.documents.remove(document["id"])
            raise
        shown = {name: document[name] for name in ("id", "path", "name", "type")}
        return {**shown, "kernel": kernel, "notebook": {"path": shown["path"], "name": shown["name"]}}

    async def kernel_id(self, fields: JSON) -> str | None:
        """The kernel that a body names: one that lives, or a new one. None when it names none."""
        kernel = fields.get("kernel")
        if kernel is None:
            return None
        if not isinstance(kernel, dict):
            raise InvalidRequestError("`kernel` must be an object.", param="kernel")
        if known := text_field(kernel, "id"):
            return kernel_id_of(self.session_of(known).id)
        return kernel_id_of((await self.front.start_kernel(self.token, text_field(kernel, "name"))).id)


class DocumentsHandler(_DocumentsHandler):
    """``/api/sessions``"""

    operations: ClassVar = {
        "GET": operation("list sessions"),
        "POST": operation("start a session", Access.RUN),
    }

    async def do_get(self) -> None:
        models = []
        for document in self.documents.list(self.token.id):
            try:
                models.append(self.model(document))
            except NotFoundError:
                continue
        self.reply(models)

    async def do_post(self) -> None:
        fields = self.read_fields()
        path = text_field(fields, "path")
        if path is None:
            raise InvalidRequestError("`path` is missing; name the document.", param="path")
        known = self.documents.find(self.token.id, path)
        if known is not None:
            try:
                self.reply(self.model(known), 201)
                return
            except NotFoundError:
                pass  # its kernel is gone
        kernel_id = await self.kernel_id({"kernel": fields.get("kernel") or {}})
        document: JSON = {
            "id": kernel_id_of(new_id()),
            "path": path,
            "name": text_field(fields, "name") or path.rpartition("/")[2],
            "type": text_field(fields, "type") or "notebook",
            "kernel_id": kernel_id,
        }
        self.documents.put(self.token.id, document)
        self.set_header("Location", f"/api/sessions/{document['id']}")
        self.reply(self.model(document), 201)


class DocumentHandler(_DocumentsHandler):
    """``/api/sessions/{document_id}``"""

    operations: ClassVar = {
        "GET": operation("get a session"),
        "PATCH": operation("change a session", Access.RUN),
        "DELETE": operation("end a session", Access.RUN),
    }

    async def do_get(self, document_id: str) -> None:
        self.reply(self.model(self.documents.get(self.token.id, document_id)))

    async def do_patch(self, document_id: str) -> None:
        document = dict(self.documents.get(self.token.id, document_id))
        fields = self.read_fields()
        for name in ("path", "name", "type"):
            document[name] = text_field(fields, name) or document[name]
        document["kernel_id"] = await self.kernel_id(fields) or document["kernel_id"]
        self.documents.put(self.token.id, document)
        self.reply(self.model(document))

    async def do_delete(self, document_id: str) -> None:
        document = self.documents.get(self.token.id, document_id)
        self.documents.remove(document_id)
        session = self.session_of(document["kernel_id"])
        if not self.front.is_shared(session):
            await self.services.sessions.delete(self.principal, session.id)
        self.set_status(204)
