"""Sessions: who owns which kernel, how many there may be, and when they end.

A session outlives its kernel: when the kernel dies or the service restarts, the next run gets a
fresh one and is told so. What a session is stands in the record; this package holds the live part.
"""

from interpreter.sessions.kernels import Launcher, SessionKernels
from interpreter.sessions.manager import SessionManager
from interpreter.sessions.session import Session

__all__ = ["Launcher", "Session", "SessionKernels", "SessionManager"]
