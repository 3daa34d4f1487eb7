"""Every way in which a request can fail before it becomes a run.

::

    InterpreterError                    status  type
    ├── InvalidRequestError             400     invalid_request
    ├── UnauthorizedError               401     unauthorized
    ├── ForbiddenError                  403     forbidden
    ├── NotFoundError                   404     not_found
    │   └── SessionGoneError            404     not_found   (code: session_expired | session_deleted)
    ├── MethodNotAllowedError           405     method_not_allowed
    ├── ConflictError                   409     conflict
    ├── TooLargeError                   413     too_large
    ├── UnsupportedMediaTypeError       415     unsupported_media_type
    ├── RangeNotSatisfiableError        416     range_not_satisfiable
    ├── RateLimitedError                429     rate_limited
    ├── TooManySessionsError            429     too_many_sessions
    ├── GatewayError                    502     gateway_error
    ├── UnavailableError                503     unavailable
    │   └── RecordUnavailableError      503     unavailable (code: record_not_writable)
    └── KernelStartTimeoutError         504     kernel_start_timeout
    SettingsError                       (stops the start; never a response)

User code that raised, timed out, was interrupted or lost its kernel is *not* here: it is a normal
result with a status. Messages are written for the person who reads them: one sentence that names
what to change, without paths, tokens or tracebacks.
"""

from typing import ClassVar


class InterpreterError(Exception):
    """Base of all errors that have a place in the API's one error shape."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after


class InvalidRequestError(InterpreterError):
    """The request itself is wrong; ``param`` names the field to change."""

    status = 400
    type = "invalid_request"


class UnauthorizedError(InterpreterError):
    """No token, or one that is unknown, revoked or expired."""

    status = 401
    type = "unauthorized"


class ForbiddenError(InterpreterError):
    """The token is good, but its role does not allow this."""

    status = 403
    type = "forbidden"


class NotFoundError(InterpreterError):
    """Unknown, or it belongs to another token (the two are not told apart)."""

    status = 404
    type = "not_found"


class SessionGoneError(NotFoundError):
    """The session has ended; its record can still be read."""


class MethodNotAllowedError(InterpreterError):
    """The route exists, but not with this method."""

    status = 405
    type = "method_not_allowed"


class ConflictError(InterpreterError):
    """The request contradicts the present state (say, an idempotency key used for other code)."""

    status = 409
    type = "conflict"


class TooLargeError(InterpreterError):
    """A body, a code text or a file is over its limit."""

    status = 413
    type = "too_large"


class UnsupportedMediaTypeError(InterpreterError):
    """The body is not of a content type that the route reads."""

    status = 415
    type = "unsupported_media_type"


class RangeNotSatisfiableError(InterpreterError):
    """The file has none of the bytes that were asked for."""

    status = 416
    type = "range_not_satisfiable"


class RateLimitedError(InterpreterError):
    """Too many requests, or too many queued runs; try again after ``retry_after`` seconds."""

    status = 429
    type = "rate_limited"


class TooManySessionsError(InterpreterError):
    """Every session slot is taken."""

    status = 429
    type = "too_many_sessions"


class GatewayError(InterpreterError):
    """The kernel gateway refused or answered nonsense."""

    status = 502
    type = "gateway_error"


class UnavailableError(InterpreterError):
    """Starting, shutting down, or a part that the request needs is down."""

    status = 503
    type = "unavailable"


class RecordUnavailableError(UnavailableError):
    """The record can't be written, so nothing may run."""


class KernelStartTimeoutError(InterpreterError):
    """The kernel did not answer within ``kernel_start_timeout`` seconds."""

    status = 504
    type = "kernel_start_timeout"


class SettingsError(Exception):
    """A setting is wrong: one sentence that names it. It stops the start."""
