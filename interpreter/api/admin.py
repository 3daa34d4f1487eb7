"""Tokens: make, list, revoke. For admins."""

from datetime import UTC, datetime
from typing import ClassVar

from interpreter.api.base import BaseHandler
from interpreter.api.operations import Access, Answer, Operation, json_answer
from interpreter.api.paging import page_of
from interpreter.errors import InvalidRequestError, NotFoundError
from interpreter.models import Role
from interpreter.tokens import TokenInfo, TokenOptions

_TAG = "Tokens"


class TokensHandler(BaseHandler):
    """``/v1/tokens``"""

    operations: ClassVar = {
        "POST": Operation(
            "createToken",
            "Make a token",
            _TAG,
            {201: json_answer("The token with its secret, which is shown this once.", "TokenWithSecret")},
            Access.ADMIN,
            "`run` uses what is its own, `review` reads every record and runs nothing, `admin` does all.",
            body="TokenCreate",
            body_required=True,
        ),
        "GET": Operation(
            "listTokens",
            "List the tokens",
            _TAG,
            {200: json_answer("The tokens, without their secrets.", "TokenList")},
            Access.ADMIN,
            query="ListQuery",
        ),
    }

    async def do_post(self) -> None:
        body = await self.read_json()
        name = body["name"].strip()
        if not name or not name.isprintable():
            raise InvalidRequestError("`name` must be visible text on one line.", param="name")
        expires_at = self._expiry(body["expires_at"]) if "expires_at" in body else None
        options = TokenOptions(**body.get("options", {}))
        info, secret = await self.services.tokens.create(name, Role(body["role"]), expires_at, options)
        self.reply({**info.as_json(), "token": secret}, 201)

    async def do_get(self) -> None:
        query = self.read_query()
        infos = await self.services.tokens.list()
        self.reply(page_of(infos, query, id_of=lambda info: info.id, show=TokenInfo.as_json))

    def _expiry(self, text: str) -> datetime:
        try:
            at = datetime.fromisoformat(text)
            if at.tzinfo is None:
                raise ValueError("no offset")
            at = at.astimezone(UTC)
        except (ValueError, OverflowError) as error:
            raise InvalidRequestError(
                "`expires_at` must be a time in ISO 8601 with its offset, like 2031-01-31T12:00:00Z.",
                param="expires_at",
            ) from error
        if at <= self.services.clock():
            raise InvalidRequestError("`expires_at` is in the past; give a future time.", param="expires_at")
        return at


class TokenHandler(BaseHandler):
    """``/v1/tokens/{token_id}``"""

    operations: ClassVar = {
        "DELETE": Operation(
            "revokeToken",
            "Revoke a token",
            _TAG,
            {204: Answer("The token is good for nothing from now on.")},
            Access.ADMIN,
            "The last admin token can't be revoked (409).",
        )
    }

    async def do_delete(self, token_id: str) -> None:
        if not await self.services.tokens.revoke(token_id):
            raise NotFoundError("There is no such token; list them with GET /v1/tokens.")
        self.set_status(204)
