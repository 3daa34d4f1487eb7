"""The Accept header (RFC 9110, 12.5.1): how much a client wants a content type. Pure."""


def weight(accept: str, kind: str) -> float:
    """The q value, 0 to 1, that the most specific range of the header gives to ``text/html`` and the like.

    An absent header takes everything; what is malformed counts as absent from it.
    """
    if not accept.strip():
        return 1.0
    ranges = dict(map(_read, accept.lower().split(",")))
    for name in (kind, f"{kind.partition('/')[0]}/*", "*/*"):
        if name in ranges:
            return ranges[name]
    return 0.0


def names(accept: str, kind: str) -> bool:
    """Whether the header itself names the type, with a weight above 0: as browsers do for HTML."""
    return dict(map(_read, accept.lower().split(","))).get(kind, 0.0) > 0


def _read(part: str) -> tuple[str, float]:
    name, *parameters = (piece.strip() for piece in part.split(";"))
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            try:
                return name, min(max(float(value), 0.0), 1.0)
            except ValueError:
                return name, 0.0
    return name, 1.0
