"""The home of kernels that Jupyter's clients started: the session's folder.

A Jupyter server's contents are the files below the home of who runs it, and its kernels have the same
home. So some clients upload ``workspace/7/data.csv`` and let code look below ``~/workspace/7``.
"""

from interpreter.frontends.asking import ask
from interpreter.sessions import Session

_MOVE = "__import__('os').environ.__setitem__('HOME', str(_dh[0]))"
"""IPython's ``_dh`` begins with the folder in which the kernel was started."""


async def move_home(session: Session) -> None:
    """Make the session's folder the home of its kernel, when that is idle; for new kernels, and again later."""
    await ask(session, _MOVE)
