"""Whether somebody can administer this deployment: by the environment's key, or one in the store.

The environment's key can be retired once an ADMIN key for all organisations is in the store. A
service without both could never be told anything, so it does not start. One whose keys have all
expired does: apps must not stop because an administrator has forgotten a date. Whoever can open
the store can always make another key.
"""

from __future__ import annotations

from typing import Final

import structlog

from pricekeeper.bootstrap.services import Services
from pricekeeper.credentials.strength import HOW_TO_MAKE_ONE
from pricekeeper.errors import SettingsError
from pricekeeper.settings import PROVISIONING_KEY

HOW_TO_MAKE_A_ROOT: Final = "pricekeeper admin-keys create NAME --role ADMIN, on the store"

_log = structlog.get_logger(__name__)


def no_administrator() -> SettingsError:
    """What is told where nobody could administer, with both ways out."""
    return SettingsError(
        PROVISIONING_KEY,
        "is not set, and the store has no ADMIN key for all organisations; make one: "
        f"{HOW_TO_MAKE_ONE}, or {HOW_TO_MAKE_A_ROOT}",
    )


async def require_administrator(services: Services) -> None:
    """Refuse to start where nobody could administer; say so where nobody can any more."""
    if services.settings.provisioning_key is not None:
        return
    roots = await services.admin_keys.list_roots()
    if not roots:
        raise no_administrator()
    now_epoch = services.clock.now_ms() // 1000
    if all(key.has_ended(now_epoch) for key in roots):
        _log.error("admin_keys_expired", fix=HOW_TO_MAKE_A_ROOT)
