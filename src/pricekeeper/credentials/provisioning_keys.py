"""Keys that administrate one organisation and its apps, at most one for each.

A key is shown once and stored as a hash. It contains its organisation's id, so its holder can't
tell other organisations from absent ones. An imported hash (``provisioning_api_key_hash``) may be
bcrypt; the first use replaces it. An imported key is compared with the requested organisation's
hash.
"""

from __future__ import annotations

import hashlib
import secrets
import uuid
from collections.abc import Mapping
from typing import Final

import structlog

from pricekeeper.audit import AuditTrail, Change
from pricekeeper.authority import Attribution, may_produce, of_org
from pricekeeper.clock import Clock
from pricekeeper.credentials.peppers import Peppers
from pricekeeper.credentials.secret import (
    Secret,
    from_base62,
    is_well_formed,
    mint,
    to_base62,
)
from pricekeeper.credentials.verification import Verifier
from pricekeeper.errors import ConditionFailedError, NotFoundError
from pricekeeper.storage import ITEM_EXISTS, Remove, Set, Store, Update
from pricekeeper.storage.tables import CONFIG
from pricekeeper.tenants import Client, Tenants, config_key
from pricekeeper.values import OrgId

KEY_PREFIX: Final = "pkp_"
KEY_LENGTH_MAX: Final = 512
HASH: Final = "provisioning_api_key_hash"
FINGERPRINT_LENGTH: Final = 12

_ORG_BITS: Final = 128
_ORG_LENGTH: Final = 22

_log = structlog.get_logger(__name__)


class ProvisioningKeys:
    """The provisioning keys in one store."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        tenants: Tenants,
        peppers: Peppers,
        *,
        trail: AuditTrail | None = None,
        verifier: Verifier | None = None,
    ) -> None:
        self._trail = trail or AuditTrail(store, clock)
        self._tenants = tenants
        self._peppers = peppers
        self._verifier = verifier or Verifier(store, clock, peppers)

    async def issue(self, org_id: OrgId, by: Attribution) -> Secret:
        """Make a key, in place of the earlier one: one write.

        After a lost reply, issue another one.
        """
        permit = may_produce(by.authority, of_org(org_id))
        key = mint(permit, _prefix(org_id), secrets.token_bytes)
        hashed = self._peppers.hash(_owner(org_id), key.reveal())
        # Later entries name the key by this fingerprint.
        after = {"fingerprint": self.fingerprint(key.reveal())}
        change = _change(org_id, "provisioning_key.issue", after)
        await self._write(org_id, Set(HASH, hashed), change, by)
        _log.info("provisioning_key_issued", org_id=org_id)
        return key

    async def withdraw(self, org_id: OrgId, by: Attribution) -> None:
        change = _change(org_id, "provisioning_key.withdraw")
        await self._write(org_id, Remove(HASH), change, by)
        _log.info("provisioning_key_withdrawn", org_id=org_id)

    def fingerprint(self, key: str) -> str:
        """A key's name in logs and the audit trail; without the pepper, it can't check guesses."""
        digest = hashlib.sha256(self._peppers.hash("fingerprint", key).encode()).hexdigest()
        return digest[:FINGERPRINT_LENGTH]

    async def find_org(self, key: str, asked_for: OrgId | None) -> OrgId | None:
        """The organisation of this valid key: at most one read.

        ``asked_for`` is the organisation that an imported key may belong to.
        """
        org_id = _named_org(key) if key.startswith(KEY_PREFIX) else asked_for
        if org_id is None or not key or len(key) > KEY_LENGTH_MAX:
            return None
        client = Client(org_id)
        try:
            stored = (await self._tenants.read_record(client)).item.get(HASH)
        except NotFoundError:
            stored = None
        hashes = {HASH: stored if isinstance(stored, str) else None}
        is_valid = await self._verifier.matches(client, _owner(org_id), hashes, key)
        return org_id if is_valid else None

    async def _write(
        self, org_id: OrgId, action: Set | Remove, change: Change, by: Attribution
    ) -> None:
        client = Client(org_id)
        operation = Update(CONFIG, config_key(client), (action,), ITEM_EXISTS)
        try:
            await self._trail.write(by, change, operation)
        except ConditionFailedError as failure:
            raise NotFoundError(client.client_id) from failure


def _change(org_id: OrgId, action: str, after: Mapping[str, str] | None = None) -> Change:
    return Change(action, Client(org_id).client_id, org_id, after=after)


def _owner(org_id: OrgId) -> str:
    """Binds the hash to this use, so that no client secret or other key matches it."""
    return f"{Client(org_id).client_id}/provisioning-key"


def _prefix(org_id: OrgId) -> str:
    return KEY_PREFIX + to_base62(uuid.UUID(org_id).int, _ORG_LENGTH)


def _named_org(key: str) -> OrgId | None:
    prefix = key[: len(KEY_PREFIX) + _ORG_LENGTH]
    if not is_well_formed(prefix, key):
        return None
    number = from_base62(prefix.removeprefix(KEY_PREFIX))
    if number is None or number >> _ORG_BITS:
        return None
    return OrgId(str(uuid.UUID(int=number)))
