"""The ids by which LibreChat names files.

It names a file by two ids, that of its storage session and its own. The second is made from the first
and the file's path, so nothing has to be remembered to find it again.
"""

import hashlib

from interpreter.frontends.storages import Storage, not_found
from interpreter.workspace import FileInfo, parse_path

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PAGE = 1000
_DATA_FOLDER = "/mnt/data/"


def object_id(storage_id: str, path: str) -> str:
    """The id of a file: 21 letters and digits."""
    digest = hashlib.sha256(f"{storage_id}/{path}".encode("utf-8", "surrogatepass")).digest()
    number, digits = int.from_bytes(digest), []
    for _ in range(21):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(digits)


async def find_object(storage: Storage, wanted: str, name: str = "") -> FileInfo:
    """The file with that id; fast when its ``name`` is known. Raises NotFoundError."""
    if name and object_id(storage.id, name) == wanted:
        found = await storage.files.find(name)
        if found is not None:
            return found
        raise not_found()
    after = None
    while True:
        listing = await storage.files.list(limit=_PAGE, after=after)
        for info in listing.files:
            if object_id(storage.id, info.path) == wanted:
                return info
        if not listing.has_more:
            raise not_found()
        after = listing.files[-1].path


def path_of(name: str) -> str:
    """The path below the session's folder of a file's name. InvalidRequestError when it can't be one."""
    path = name.replace("\\", "/").removeprefix(_DATA_FOLDER)
    path = "/".join(part for part in path.split("/") if part not in ("", "."))
    parse_path(path)
    return path
