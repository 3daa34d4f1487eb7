"""One output that needs scripts, as a document of its own, for a frame of the notebook's page.

Its policy gives it an origin of its own and no network. It can't leave its frame (the page allows only
frames of this service), open windows or touch the page. Opened by itself, outside of a page, it
shows nothing: there it could send its reader elsewhere.
"""

import asyncio
import json
from typing import ClassVar

from interpreter.api.notebooks import RecordHandler
from interpreter.api.operations import Answer, Operation
from interpreter.api.shown import framed_html
from interpreter.errors import NotFoundError
from interpreter.models import parse_run_id

_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'unsafe-inline'; img-src data: blob:; font-src data:; media-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_CONNECTIONS = "()"
"""Of ``Connection-Allowlist``: none. It covers what the policy can't in browsers that know it (WebRTC)."""

_DOCUMENT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Output</title>
<style>html { color-scheme: light; background: #fff; color: #1d1f23; font: 15px/1.5 system-ui, sans-serif; }</style>
</head>
<body>
<script type="application/json" id="output">%s</script>
<script>
(() => {
  const output = document.getElementById("output");
  const html = JSON.parse(output.textContent);
  output.remove();
  for (const name of ["RTCPeerConnection", "webkitRTCPeerConnection", "RTCDataChannel"]) delete self[name];
  document.currentScript.remove();
  document.write(self === top ? "<p>This output is shown on the page of its notebook only.</p>" : html);
})();
</script>
</body>
</html>
"""


class FrameHandler(RecordHandler):
    """``/v1/notebooks/{session_id}/frames/{run}/{index}``"""

    operations: ClassVar = {
        "GET": Operation(
            "getNotebookFrame",
            "One output that needs scripts, for a frame",
            "Record",
            {
                200: Answer(
                    "A document that shows the output when it is in the notebook's page.", {"text/html": None}
                )
            },
            description="`run` is the run's number in the session (from 1), `index` that of the output (from 0).",
        )
    }

    def wants_page(self) -> bool:
        return False  # errors are JSON

    async def do_get(self, session_id: str, run: str, index: str) -> None:
        record = await self.find_record(session_id)
        run_id = f"run_{record.info.id}_{run}"
        if parse_run_id(run_id) is None or not (index.isascii() and index.isdecimal() and len(index) < 7):
            raise _no_frame()
        with self.reading(record.info.id):
            found = await self.services.recorder.get_run(run_id)
        outputs = found.folded.outputs if found else ()
        if int(index) >= len(outputs):
            raise _no_frame()
        html = await asyncio.to_thread(framed_html, outputs[int(index)])
        if html is None:
            raise _no_frame()
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Content-Security-Policy", _POLICY)
        self.set_header("Connection-Allowlist", _CONNECTIONS)
        self.set_header("X-DNS-Prefetch-Control", "off")
        self.finish(await asyncio.to_thread(frame_document, html))


def frame_document(html: str) -> bytes:
    """The document that shows ``html`` once it is in a frame, and keeps it as mere text before."""
    text = json.dumps(html).replace("<", "\\u003c")
    return (_DOCUMENT % text).encode("utf-8", "replace")


def _no_frame() -> NotFoundError:
    return NotFoundError("The notebook has no such output that needs a frame.")
