"""What the headers of a body say that it is. Pure."""

from collections.abc import Mapping

from interpreter.errors import UnsupportedMediaTypeError

_CHARSETS = frozenset({"utf-8", "utf8", "us-ascii"})


def check_media_type(headers: Mapping[str, str], wanted: str) -> None:
    """UnsupportedMediaTypeError unless the body is of the type, in UTF-8 and not compressed."""
    kind, *parameters = (part.strip().lower() for part in headers.get("Content-Type", "").split(";"))
    if kind != wanted:
        raise UnsupportedMediaTypeError(f"Send the body with `Content-Type: {wanted}`.")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip().strip('"') not in _CHARSETS:
            raise UnsupportedMediaTypeError("Send the body in UTF-8; no other charset is read.")
    if headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        raise UnsupportedMediaTypeError("Send the body as it is; no Content-Encoding is read.")
