"""Jupyter's own sessions, as the front end remembers them. Pure."""

from interpreter.errors import NotFoundError
from interpreter.models import JSON

MAX_DOCUMENTS = 1000  # of all tokens


class Documents:
    """Jupyter's own sessions, which tie a document of a client to a kernel, by token. Kept in memory."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, JSON]] = {}

    def list(self, token_id: str) -> list[JSON]:
        """The token's."""
        return [document for owner, document in self._found.values() if owner == token_id]

    def get(self, token_id: str, document_id: str) -> JSON:
        """One of the token's. NotFoundError."""
        owner, document = self._found.get(document_id, ("", {}))
        if owner != token_id:
            raise NotFoundError("There is no session with this id; list them with GET /api/sessions.")
        return document

    def find(self, token_id: str, path: str) -> JSON | None:
        """The one with that path."""
        return next((document for document in self.list(token_id) if document["path"] == path), None)

    def put(self, token_id: str, document: JSON) -> None:
        """Add or change one; when there are too many the oldest goes."""
        self._found[document["id"]] = (token_id, document)
        if len(self._found) > MAX_DOCUMENTS:
            del self._found[next(iter(self._found))]

    def remove(self, document_id: str) -> None:
        """Forget one."""
        self._found.pop(document_id, None)
