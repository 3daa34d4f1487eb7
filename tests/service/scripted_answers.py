"""What a scripted gateway answers instead of the truth, and what it remembers of its clients."""

import json
from dataclasses import dataclass, field
from typing import Any

from scripted_kernel import JSON

TRACEBACK_MARK = "scripted_traceback_line"  # must never be seen in an answer of the service


@dataclass(frozen=True)
class Answer:
    """A canned HTTP answer. Status 0 cuts the connection instead."""

    status: int
    body: str = ""
    content_type: str = "application/json"


def _refusal(status: int, message: str, **more: str) -> Answer:
    return Answer(status, json.dumps({"message": message, "reason": message, **more}))


_TRACEBACK = (
    f'Traceback (most recent call last):\n  File "/srv/x.py", line 1, in {TRACEBACK_MARK}\nKeyError: 1\n'
)
HTTP_500 = _refusal(500, f"Unhandled error {TRACEBACK_MARK}", traceback=_TRACEBACK)
HTTP_401 = _refusal(401, "Unauthorized")
HTTP_403 = _refusal(403, "Forbidden")
HTTP_404 = _refusal(404, "Kernel does not exist")
MAX_KERNELS = _refusal(403, "Resource Limit")
NO_SUCH_KERNELSPEC = _refusal(500, "Unhandled error: NoSuchKernel", traceback=_TRACEBACK)
NOT_JUPYTER = Answer(200, "<html><body>It works!</body></html>", "text/html")
NOT_JSON = Answer(200, "{")
WRONG_SHAPE = Answer(200, "[1, null]")
CUT = Answer(0)


@dataclass(frozen=True)
class SeenRequest:
    """One HTTP request as it came, upgrades included. ``body`` is None when it is empty or not JSON."""

    op: str
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any = None


@dataclass(frozen=True)
class SeenMessage:
    """One websocket message of a client; ``text`` is the code of an execute request, else empty."""

    kernel_id: str
    channel: str
    msg_type: str
    message: JSON = field(repr=False)

    @property
    def text(self) -> str:
        return str(self.message["content"].get("code", ""))
