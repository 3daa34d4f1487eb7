"""Images made smaller, in a process of its own: what code made is not decoded in the service's."""

import asyncio
import base64
import binascii
import contextlib
import logging
import sys
from pathlib import Path

log = logging.getLogger(__name__)

TIMEOUT = 60.0  # seconds for one image; its process has a bound of its own for processor time
AT_ONCE = 2
_SHRINK = Path(__file__).with_name("shrink.py")


class ImageShrinker:
    """Makes images small, a few at once."""

    def __init__(self) -> None:
        self._limit = asyncio.Semaphore(AT_ONCE)

    async def to_png(self, encoded: str, max_bytes: int, max_side: int = 0) -> str | None:
        """The image (Base64) as a PNG (Base64) of at most ``max_bytes`` characters, scaled down if need be.

        ``max_side`` bounds its width and height in pixels; 0: no bound.

        None when it is no image, or one that can't be made so small within `TIMEOUT`.
        """
        try:
            image = base64.b64decode(encoded)
        except (binascii.Error, ValueError):
            return None
        async with self._limit:
            png = await _shrink(image, max_bytes // 4 * 3, max_side)
        return base64.b64encode(png).decode() if png else None


async def _shrink(image: bytes, max_bytes: int, max_side: int) -> bytes | None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        str(_SHRINK),
        str(max_bytes),
        str(max_side),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={},
    )
    try:
        async with asyncio.timeout(TIMEOUT):
            output, _ = await process.communicate(image)
    except TimeoutError:
        log.warning("An image took longer than %g seconds to be made smaller; it is left out.", TIMEOUT)
        return None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return output if process.returncode == 0 else None
