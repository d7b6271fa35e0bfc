"""Administration: named keys with roles, and what a credential may see."""

from __future__ import annotations

from functools import partial
from typing import Final

from pricekeeper.admin_keys import is_key_id
from pricekeeper.authority import Role
from pricekeeper.errors import InvalidValueError
from pricekeeper.http.gate import attribution_of, authority_of
from pricekeeper.http.oauth import NO_STORE
from pricekeeper.http.operation import AFTER, Access, Answer, Call, Operation
from pricekeeper.http.provisioning import LIMIT, page_of
from pricekeeper.usecases import admin_keys as cases
from pricekeeper.wire import administration as wire

_KEYS: Final = "/api/v1/admin-keys"
_ONE: Final = "/api/v1/admin-keys/{key_id}"
KEY_ID: Final = "^[A-Za-z0-9]{12}$"
_PAGES: Final = (AFTER({"type": "string", "pattern": KEY_ID}), LIMIT)


async def create_key(call: Call) -> Answer:
    """Make a key with a role; it is shown in this answer and never again.

    A key covers no more than the one it is made with, and does not outlive it.
    """
    made = await cases.create_key(call.services, call.body, attribution_of(call))
    return Answer(201, made, NO_STORE)


async def list_keys(call: Call) -> Answer:
    """The keys that cover nothing which this one does not, the oldest first; never their texts."""
    after, limit = page_of(call)
    if after is not None and not is_key_id(after):
        raise InvalidValueError("after", "must be the id of a key")
    return Answer(200, await cases.list_keys(call.services, call.coverage, after, limit), NO_STORE)


async def rotate_key(call: Call) -> Answer:
    """Give a key another text, shown once; the one in use counts until the grace ends.

    A key that is greater than the one that asks is refused, as when it is made.
    """
    by, key_id = attribution_of(call), call.path["key_id"]
    made = await cases.rotate_key(call.services, key_id, call.body, by)
    return Answer(200, made, NO_STORE)


async def delete_key(call: Call) -> Answer:
    """End a key: at once here, within 30 seconds everywhere."""
    by, key_id = attribution_of(call), call.path["key_id"]
    await cases.delete_key(call.services, key_id, by)
    return Answer(204)


async def get_me(call: Call) -> Answer:
    """What the credential of this request is, and what it may see."""
    if call.principal is not None:
        return Answer(200, cases.client_answer(call.principal), NO_STORE)
    return Answer(200, cases.key_answer(authority_of(call)), NO_STORE)


_row: Final = partial(
    Operation, access=Access.DEPLOYMENT, tag="administration", limit="provisioning"
)
OPERATIONS: Final = (
    _row("POST", _KEYS, "createAdminKey", create_key, {201: wire.IssuedAdminKey},
         role=Role.ADMIN, body=wire.AdminKeyBody),
    _row("GET", _KEYS, "listAdminKeys", list_keys, {200: wire.AdminKeyList},
         role=Role.ADMIN, query=_PAGES),
    _row("POST", f"{_ONE}/rotate", "rotateAdminKey", rotate_key, {200: wire.IssuedAdminKey},
         role=Role.ADMIN, body=wire.RotateKeyBody, problems=(404, 409)),
    _row("DELETE", _ONE, "deleteAdminKey", delete_key, {204: None},
         role=Role.ADMIN, problems=(404,)),
    _row("GET", "/api/v1/me", "getMe", get_me, {200: wire.Me},
         role=Role.VIEWER, access=Access.ANY_CLIENT),
)  # fmt: skip
