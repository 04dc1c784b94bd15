"""Loaded by the servers of these tests: users by token, and what each may do."""

from __future__ import annotations

from typing import Any

from jupyter_server.auth import Authorizer, User
from jupyter_server.auth.identity import IdentityProvider

MAY = {
    "owner": {"read", "write", "execute"},
    "writer": {"read", "write"},
    "reader": {"read"},
}


class Tokens(IdentityProvider):
    """The token is the user's name."""

    async def get_user_token(self, handler: Any) -> User | None:
        token = self.get_token(handler)
        return User(username=token) if token in MAY else None


class Rules(Authorizer):
    """As MAY says, of time travel; of all else everything."""

    def is_authorized(self, handler: Any, user: User, action: str, resource: str) -> bool:
        return resource != "timetravel" or action in MAY[user.username]
