"""Shown pictures are made to fit into an answer."""

import base64
import io
from dataclasses import replace

import pytest
from PIL import Image
from test_mcp_parts import RUN

from interpreter.frontends.fitted import MAX_MADE, fit_pictures
from interpreter.frontends.images import ImageShrinker
from interpreter.models import JSON, Folded, Run
from interpreter.toolcalls.displays import images


def figure(width: int, height: int, kind: str = "png") -> JSON:
    file = io.BytesIO()
    Image.effect_noise((width, height), 90).convert("RGB").save(file, kind)
    data = {f"image/{kind}": base64.b64encode(file.getvalue()).decode(), "text/plain": "<Figure>"}
    return {"output_type": "display_data", "metadata": {}, "data": data}


def shown(*outputs: JSON) -> Run:
    return replace(RUN, folded=Folded(outputs=outputs))


async def test_a_run_with_small_pictures_stays_as_it_is() -> None:
    run = shown(figure(30, 20), {"output_type": "stream", "name": "stdout", "text": "x"})
    assert await fit_pictures(run, 100_000, ImageShrinker()) is run


@pytest.mark.parametrize(
    ("output", "room"),
    [(figure(300, 300), 60_000), (figure(2500, 40), 10**6), (figure(300, 300, "jpeg"), 30_000)],
    ids=["too-many-bytes", "too-wide", "jpeg"],
)
async def test_a_large_picture_is_made_smaller(output: JSON, room: int) -> None:
    run = await fit_pictures(shown(output), room, ImageShrinker())
    (image,) = images(run.folded.outputs, room)
    assert image.mime_type == "image/png"
    assert run.folded.outputs[0]["data"].keys() == {"image/png", "text/plain"}


async def test_only_some_pictures_are_made_smaller_and_share_the_room() -> None:
    asked = []

    class Shrinker(ImageShrinker):
        async def to_png(self, encoded: str, max_bytes: int, max_side: int = 0) -> str | None:
            asked.append((max_bytes, max_side))
            return None

    run = shown(*[figure(2001, 40)] * (MAX_MADE + 2))
    assert (await fit_pictures(run, 8000, Shrinker())).folded.outputs == run.folded.outputs
    assert asked == [(8000 // MAX_MADE, 2000)] * MAX_MADE
