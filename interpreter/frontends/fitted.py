"""Shown pictures made to fit into an answer, for clients that take only so much."""

from collections.abc import Sequence
from dataclasses import replace

from interpreter.frontends.images import ImageShrinker
from interpreter.frontends.pictures import find_picture
from interpreter.models import JSON, Run
from interpreter.toolcalls.displays import MAX_PIXELS, images

MAX_MADE = 8
"""Pictures of one answer that are made smaller: each takes up to seconds."""


async def fit_pictures(run: Run, max_bytes: int, shrinker: ImageShrinker) -> Run:
    """The run for an answer with ``max_bytes`` of base64 for all pictures: those too large made smaller.

    What can't be made so small stays as it is.
    """
    outputs = run.folded.outputs
    count = sum(find_picture(output) is not None for output in outputs)
    if len(images(outputs, max_bytes)) == count:
        return run
    fitted = await _fit(outputs, max_bytes // min(count, MAX_MADE), shrinker)
    return replace(run, folded=replace(run.folded, outputs=tuple(fitted)))


async def _fit(outputs: Sequence[JSON], share: int, shrinker: ImageShrinker) -> list[JSON]:
    fitted, made = [], 0
    for output in outputs:
        picture = find_picture(output)
        if picture is None or made == MAX_MADE or images([output], share):
            fitted.append(output)
            continue
        made += 1
        png = await shrinker.to_png(picture.data, share, MAX_PIXELS)
        others = {mime: data for mime, data in output["data"].items() if not mime.startswith("image/")}
        fitted.append(output if png is None else {**output, "data": {**others, "image/png": png}})
    return fitted
