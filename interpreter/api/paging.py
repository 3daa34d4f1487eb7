"""Cutting a list into pages. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from interpreter.errors import InvalidRequestError
from interpreter.models import JSON

T = TypeVar("T")

DEFAULT_LIMIT = 20
MAX_LIMIT = 100


def page_of(
    newest_first: Sequence[T],
    query: Mapping[str, Any],
    *,
    id_of: Callable[[T], str],
    show: Callable[[T], JSON],
) -> JSON:
    """The list body for ``limit`` (default 20), ``after`` (an id) and ``order`` (default ``desc``).

    InvalidRequestError when no item has the id ``after``. Only the items of the page are shown.
    """
    items = list(reversed(newest_first)) if query.get("order") == "asc" else newest_first
    limit = query.get("limit", DEFAULT_LIMIT)
    start = _index_of(items, query["after"], id_of) + 1 if "after" in query else 0
    page = items[start : start + limit]
    return {
        "data": [show(item) for item in page],
        "has_more": start + limit < len(items),
        "first_id": id_of(page[0]) if page else None,
        "last_id": id_of(page[-1]) if page else None,
    }


def _index_of(items: Sequence[T], wanted: str, id_of: Callable[[T], str]) -> int:
    for index, item in enumerate(items):
        if id_of(item) == wanted:
            return index
    raise InvalidRequestError(
        "`after` is not the id of an item of this list; start from its first page.", param="after"
    )
