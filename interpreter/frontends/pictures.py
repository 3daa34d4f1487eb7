"""Pictures that code showed and did not save. Pure."""

from dataclasses import dataclass

from interpreter.models import JSON, Run

_IMAGES = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}
_IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".bmp", ".avif", ".tif", ".tiff")


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that the code showed and did not save: base64, and the ending of its file's name."""

    data: str
    ending: str


def pictures_of(run: Run) -> list[Picture]:
    """The pictures that are only shown; none when the code saved as many as it showed."""
    found = [picture for output in run.folded.outputs if (picture := find_picture(output)) is not None]
    saved = sum(file.change != "deleted" and file.path.lower().endswith(_IMAGE_ENDINGS) for file in run.files)
    return [] if saved >= len(found) else found


def find_picture(output: JSON) -> Picture | None:
    """The picture that an output shows, if it does."""
    data = output.get("data", {})
    for kind, ending in _IMAGES.items():
        if isinstance(data.get(kind), str):
            return Picture(data[kind], ending)
    return None
