"""Pictures that code showed and did not save. Pure."""

from dataclasses import dataclass

from interpreter.models import JSON, Run
from interpreter.toolcalls.readable import text_field

_IMAGES = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}
_IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".bmp", ".avif", ".tif", ".tiff")


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that the code showed: base64 (of SVG its text), and the ending of its file's name."""

    data: str
    ending: str


def pictures_of(run: Run) -> list[Picture]:
    """The pictures that are only shown; none when the code saved as many as it showed."""
    shown = ((output, find_picture(output)) for output in run.folded.outputs)
    found = [kept for output, picture in shown if (kept := picture or _drawing(output)) is not None]
    return [] if len(saved_pictures_of(run)) >= len(found) else found


def saved_pictures_of(run: Run) -> list[str]:
    """The paths of the pictures that the code saved."""
    files = (file.path for file in run.files if file.change != "deleted")
    return [path for path in files if path.lower().endswith(_IMAGE_ENDINGS)]


def shows_picture(output: JSON) -> bool:
    """Whether `pictures_of` has an output's picture, when that was not saved."""
    return (find_picture(output) or _drawing(output)) is not None


def find_picture(output: JSON) -> Picture | None:
    """The picture that an output shows, if it does."""
    data = output.get("data", {})
    for kind, ending in _IMAGES.items():
        if isinstance(data.get(kind), str):
            return Picture(data[kind], ending)
    return None


def _drawing(output: JSON) -> Picture | None:
    drawing = text_field(output.get("data", {}), "image/svg+xml")
    return Picture(drawing, "svg") if drawing is not None else None
