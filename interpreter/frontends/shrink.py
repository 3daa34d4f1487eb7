"""Reads an image on stdin, writes a PNG of at most so many bytes and pixels on stdout. Run as a program.

It decodes what someone's code made, so it takes its limits from the system first.
"""

import io
import resource
import sys
import warnings

MEMORY_BYTES = 1536 * 1024**2
CPU_SECONDS = 10
MAX_PIXELS = 40_000_000
MAX_STEPS = 8
MIN_SIDE = 64  # pixels


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def shrink(data: bytes, max_bytes: int, max_side: int = 0) -> bytes | None:
    """The PNG, ``max_side`` pixels wide and high at most (0: no bound); None when it would have to be tiny."""
    from PIL import Image  # noqa: PLC0415  # after the limits are set

    warnings.simplefilter("error", Image.DecompressionBombWarning)
    Image.MAX_IMAGE_PIXELS = MAX_PIXELS
    with Image.open(io.BytesIO(data), formats=("PNG", "JPEG", "WEBP", "GIF", "BMP")) as opened:
        has_alpha = "A" in opened.getbands() or "transparency" in opened.info
        image = opened.convert("RGBA" if has_alpha else "RGB")
    if max_side:
        image.thumbnail((max_side, max_side), Image.Resampling.LANCZOS)
    for step in range(MAX_STEPS):
        method = Image.Quantize.FASTOCTREE if has_alpha else Image.Quantize.MEDIANCUT
        # Full colours first; then a palette, which keeps plots sharp; then fewer pixels.
        candidates = [image, image.quantize(256, method=method)] if step == 0 else [image]
        for candidate in candidates:
            written = io.BytesIO()
            candidate.save(written, "PNG", optimize=False, compress_level=9)
            if (size := written.tell()) <= max_bytes:
                return written.getvalue()
        factor = min(0.85, (max_bytes / size) ** 0.5)
        width, height = (int(side * factor) for side in image.size)
        if min(width, height) < MIN_SIDE:
            return None
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    return None


def main() -> int:
    """The program: 0 when the PNG was written."""
    _limit()
    png = shrink(sys.stdin.buffer.read(), *map(int, sys.argv[1:]))
    if png is None:
        return 1
    sys.stdout.buffer.write(png)
    return 0


if __name__ == "__main__":
    sys.exit(main())
