"""Which outputs show which display id, over the life of one kernel. Pure."""

from collections.abc import Iterable

_MAX_IDS = 10_000
_MAX_PLACES = 1_000  # of one display id

Place = tuple[str, int]


class Displays:
    """``display_id`` → places ``(run_id, output index)``, the oldest forgotten first.

    One object per session; `clear` it when the kernel restarts, as its display ids mean nothing then.
    """

    def __init__(self) -> None:
        self._places: dict[str | int, dict[Place, None]] = {}

    def clear(self) -> None:
        """Forget all."""
        self._places.clear()

    def add(self, display_id: str | int, run_id: str, index: int) -> None:
        """Remember that an output shows this display."""
        places = self._places.pop(display_id, {})
        places[(run_id, index)] = None
        if len(places) > _MAX_PLACES:
            del places[next(iter(places))]
        self._places[display_id] = places
        if len(self._places) > _MAX_IDS:
            del self._places[next(iter(self._places))]

    def find(self, display_id: str | int) -> tuple[Place, ...]:
        """The places of this display; empty for an unknown id."""
        return tuple(self._places.get(display_id, ()))

    def forget(self, display_ids: Iterable[str | int], run_id: str, from_index: int) -> None:
        """Forget the places of a run, from an index on, that show one of these displays."""
        for display_id in display_ids:
            places = self._places.get(display_id)
            if places is None:
                continue
            for place in [p for p in places if p[0] == run_id and p[1] >= from_index]:
                del places[place]
            if not places:
                del self._places[display_id]
