"""Front ends whose clients send their key as ``X-API-Key``, or in the URL (Basic), not as a Bearer token."""

from interpreter.api.operations import Operation
from interpreter.errors import RateLimitedError
from interpreter.frontends.dialect import DialectHandler
from interpreter.frontends.identity import Identifier, Identity


class KeyHandler(DialectHandler):
    """A handler that takes a token as ``X-API-Key``, Bearer, or either part of Basic."""

    _identity: Identity | None = None

    @property
    def identity(self) -> Identity:
        """Who asks. Only for operations that need a token."""
        assert self._identity is not None, "the operation is not public"
        return self._identity

    async def _authenticate(self, operation: Operation | None) -> None:
        identity = self._identity = await Identifier(self.services.tokens).find(self.request.headers)
        self._principal = identity.principal
        self.token_id = identity.principal.token_id
        if seconds := self.toolbox.rates.take(self.token_id):
            raise RateLimitedError("Too many requests; send fewer per minute.", retry_after=seconds)
