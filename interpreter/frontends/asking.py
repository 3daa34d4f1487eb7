"""Idle Python kernels asked and prepared between runs: nothing of it is recorded."""

import ast
import asyncio
import json
from typing import Any

from interpreter.errors import UnavailableError
from interpreter.kernels.kernel import KernelDiedError
from interpreter.sessions import Session

ASK_TIMEOUT = 2.0  # seconds; a kernel that is busy is not asked


async def ask(session: Session, expression: str, *, first: str = "") -> Any:
    """The value of an expression in an idle Python kernel, through JSON; None when there is no answer.

    ``first`` is code that is executed before it.
    """
    kernel = session.kernel
    if kernel is None or kernel.dead or session.active_runs or session.info.language != "python":
        return None
    wrapped = f"__import__('json').dumps({expression}, default=str)"
    try:
        async with asyncio.timeout(ASK_TIMEOUT):
            reply = await kernel.evaluate(first, {"answer": wrapped})
        return json.loads(ast.literal_eval(reply["user_expressions"]["answer"]["data"]["text/plain"]))
    except (TimeoutError, UnavailableError, KernelDiedError):
        return None
    except (LookupError, TypeError, ValueError, SyntaxError):
        return None  # the code of the session has changed what IPython is
