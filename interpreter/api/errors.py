"""Exception → the one error body. The only place where that is decided."""

import math
from collections.abc import Mapping

from tornado.web import HTTPError

from interpreter.errors import (
    ForbiddenError,
    InterpreterError,
    InvalidRequestError,
    MethodNotAllowedError,
    NotFoundError,
    TooLargeError,
    UnauthorizedError,
    UnavailableError,
    UnsupportedMediaTypeError,
)
from interpreter.models import JSON

_INTERNAL = "The service failed; its log has the details under this request id."

_OF_STATUS: Mapping[int, tuple[type[InterpreterError], str]] = {
    400: (InvalidRequestError, "The request could not be read; check its path, query and form fields."),
    401: (UnauthorizedError, "Send a valid token as `Authorization: Bearer <token>`."),
    403: (ForbiddenError, "The form has expired or came from another page; reload it and send it again."),
    404: (NotFoundError, "There is no such route; /openapi.json lists them."),
    405: (MethodNotAllowedError, "This route does not have that method; the Allow header lists its methods."),
    413: (TooLargeError, "The body is too large."),
    415: (UnsupportedMediaTypeError, "Send the body as application/json."),
    503: (UnavailableError, "The service is not available now; try again later."),
}
"""What Tornado raises by itself, by status."""


def to_error(error: BaseException | None) -> InterpreterError:
    """The error to show for any exception: itself when it is one of ours, else an opaque 500."""
    if isinstance(error, InterpreterError):
        return error
    if isinstance(error, HTTPError) and error.status_code in _OF_STATUS:
        kind, message = _OF_STATUS[error.status_code]
        return kind(message)
    return InterpreterError(_INTERNAL)


def error_body(error: InterpreterError, request_id: str) -> JSON:
    """The JSON body of an error response."""
    shape = {"type": error.type, "message": error.message, "param": error.param, "code": error.code}
    return {"error": shape, "message": error.message, "request_id": request_id}


def retry_after(error: InterpreterError) -> str | None:
    """The value of ``Retry-After`` in whole seconds, at least 1; None when the error has none."""
    seconds = error.retry_after
    if seconds is None and error.status == 429:
        seconds = 1.0
    return None if seconds is None else str(max(1, math.ceil(seconds)))
