"""Open Terminal's notebooks: cells that Open WebUI's file viewer runs, in the chat's own session."""

import json
from typing import TYPE_CHECKING, Any, ClassVar

from interpreter.errors import ConflictError, InvalidRequestError, NotFoundError
from interpreter.frontends.dialect import text_of
from interpreter.frontends.open_terminal.base import Notebook, TerminalHandler, operation
from interpreter.frontends.open_terminal.files import parse_notebook
from interpreter.models import RunStatus, new_id

if TYPE_CHECKING:
    from interpreter.sessions import Session

MAX_NOTEBOOK_BYTES = 32 * 1024**2


class NotebooksHandler(TerminalHandler):
    """``/open-terminal/notebooks``"""

    operations: ClassVar = {"POST": operation("create_notebook_session", "Open a notebook")}

    async def do_post(self) -> None:
        place = self.place(text_of(self.body_object(), "path"))
        session = await self.session()
        _, content = await self.load(session, place, MAX_NOTEBOOK_BYTES)
        parse_notebook(content)
        notebook_id = new_id()
        self.terminals.open(notebook_id, Notebook(self.chat, place, session.info.kernel_name))
        self.reply({"id": notebook_id, "kernel": session.info.kernel_name, "status": "ready"})


class NotebookHandler(TerminalHandler):
    """``/open-terminal/notebooks/{notebook_id}``"""

    operations: ClassVar = {
        "GET": operation("get_notebook_session", "Look at a notebook"),
        "DELETE": operation("delete_notebook_session", "Close a notebook"),
    }

    def notebook(self, notebook_id: str) -> Notebook:
        """An open notebook of this chat. Raises NotFoundError."""
        found = self.terminals.notebooks.get(notebook_id)
        if found is None or found.chat != self.chat:
            raise NotFoundError("This notebook is not open.")
        return found

    async def do_get(self, notebook_id: str) -> None:
        found = self.notebook(notebook_id)
        status = "busy" if found.busy else "ready"
        path = self.shown(found.path)
        self.reply({"id": notebook_id, "path": path, "kernel": found.kernel_name, "status": status})

    async def do_delete(self, notebook_id: str) -> None:
        self.notebook(notebook_id)
        del self.terminals.notebooks[notebook_id]
        self.reply({"status": "stopped"})


class ExecuteCellHandler(NotebookHandler):
    """``/open-terminal/notebooks/{notebook_id}/execute``"""

    operations: ClassVar = {"POST": operation("execute_notebook_cell", "Run a cell")}

    async def do_post(self, notebook_id: str) -> None:
        notebook, body = self.notebook(notebook_id), self.body_object()
        if notebook.busy:
            raise ConflictError("A cell is running already.")
        notebook.busy = True
        try:
            await self._run_cell(await self.session(), notebook, body)
        finally:
            notebook.busy = False

    async def _run_cell(self, session: "Session", notebook: Notebook, body: dict[str, Any]) -> None:
        _, content = await self.load(session, notebook.path, MAX_NOTEBOOK_BYTES)
        cell = _cell(parse_notebook(content)["cells"], body.get("cell_index"))
        source = text_of(body, "source", _joined(cell.get("source", "")))
        run = await self.execute(session, source)
        _, content = await self.load(
            session, notebook.path, MAX_NOTEBOOK_BYTES
        )  # the code may have changed it
        whole = parse_notebook(content)
        outputs = list(run.folded.outputs)
        _cell(whole["cells"], body.get("cell_index")).update(
            source=source, outputs=outputs, execution_count=run.folded.execution_count
        )
        await self.save(session, notebook.path, json.dumps(whole, indent=1, ensure_ascii=False).encode())
        status = "ok" if run.status is RunStatus.OK else "error"
        self.reply({"status": status, "execution_count": run.folded.execution_count, "outputs": outputs})


def _cell(cells: list[Any], index: Any) -> dict[str, Any]:
    valid = isinstance(index, int) and not isinstance(index, bool) and 0 <= index < len(cells)
    if not valid or not isinstance(cells[index], dict):
        raise InvalidRequestError(
            f"`cell_index` must be a whole number below {len(cells)}.", param="cell_index"
        )
    if cells[index].get("cell_type") != "code":
        raise InvalidRequestError("That cell holds no code.", param="cell_index")
    found: dict[str, Any] = cells[index]
    return found


def _joined(source: Any) -> str:
    return "".join(map(str, source)) if isinstance(source, list) else str(source)
