"""What a route is: one row that documents it, guards it and checks its input.

The base handler reads who may call and which schemas apply from the same `Operation` from which
``/openapi.json`` is made.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from interpreter.models import Principal


class Access(Enum):
    """Who may call an operation."""

    PUBLIC = "anyone, without a token"
    ANY = "any token"
    RUN = "tokens of role run or admin"
    REVIEW = "tokens of role review or admin"
    ADMIN = "tokens of role admin"

    def allows(self, principal: Principal) -> bool:
        """Whether the principal's role is enough."""
        if self is Access.RUN:
            return principal.may_run
        if self is Access.REVIEW:
            return principal.may_review
        return principal.is_admin if self is Access.ADMIN else True


@dataclass(frozen=True, slots=True)
class Answer:
    """One response: what it means, and the name of its schema for each content type (None: no schema)."""

    description: str
    content: Mapping[str, str | None] = field(default_factory=dict)


def json_answer(description: str, schema: str) -> Answer:
    """A JSON response with the schema of that name."""
    return Answer(description, {"application/json": schema})


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one route. ``body`` and ``query`` name schemas; ``page`` is for browsers."""

    id: str
    summary: str
    tag: str
    answers: Mapping[int, Answer]
    access: Access = Access.ANY
    description: str = ""
    body: str | None = None
    body_required: bool = False
    query: str | None = None
    headers: tuple[str, ...] = ()
    page: bool = False
    upload: str | None = None
    """The content type of a body that the handler takes as it comes."""
    form: bool = False
    """The body is a browser's form: guarded by the XSRF cookie, so a cookie is enough to call it."""
