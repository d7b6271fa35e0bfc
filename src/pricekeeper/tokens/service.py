"""Identity: issues, refreshes, validates, revokes and lists tokens.

A caller is an authenticated client and learns only about its own tokens and sessions.
"""

from __future__ import annotations

import secrets
from typing import Final

import msgspec
import structlog

from pricekeeper.audit import Change
from pricekeeper.authority import Attribution, may_produce
from pricekeeper.clock import Clock, require_trusted_time
from pricekeeper.concurrency import ReadCache
from pricekeeper.credentials import Authenticated, Credentials
from pricekeeper.errors import (
    ConditionFailedError,
    InvalidClientError,
    InvalidTokenError,
    InvalidValueError,
    NotFoundError,
    OutcomeUnknownError,
)
from pricekeeper.sessions import (
    REFRESH_TOKEN_PREFIX,
    Login,
    Opened,
    RefreshToken,
    Session,
    Sessions,
    make_labels,
    parse_session_id,
)
from pricekeeper.storage import Store
from pricekeeper.tenants import Client, Policy, Tenants, parse_client_id
from pricekeeper.tokens.access_token import Principal, TokenClaims, generation_sid, scopes_of, sign
from pricekeeper.tokens.aws_credentials import (
    AwsCredentials,
    derive_access_key_id,
    derive_secret_access_key,
    find_secret_access_key,
)
from pricekeeper.tokens.keyring import ACCESS_SECS, Jwks
from pricekeeper.tokens.keys import Keys
from pricekeeper.tokens.meter import IdentityMeter
from pricekeeper.tokens.validation import Validator, digest_of, revocation

TOKEN_ID_BYTES: Final = 16
JUST_NOW_MS: Final = 1_000
SPENT_MAX: Final = 10_000
SPENT_AGE_MS_MAX: Final = 60_000

_log = structlog.get_logger(__name__)


class TokenGrant(msgspec.Struct, frozen=True):
    """The tokens for a client's secret or refresh token."""

    access_token: str
    refresh_token: str
    expires_in_secs: int
    refresh_expires_in_secs: int
    scope: str
    session_id: str

    def __repr__(self) -> str:
        return f"Grant(session_id={self.session_id!r}, scope={self.scope!r})"


class Introspection(msgspec.Struct, frozen=True):
    """The content of a valid token, RFC 7662."""

    token_type: str
    client_id: str
    scope: str
    session_id: str
    issued_at_epoch: int
    expires_at_epoch: int
    token_id: str | None = None


class Identity(Validator):
    """All operations on tokens. ``client_id`` is that of an authenticated client."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        tenants: Tenants,
        credentials: Credentials,
        sessions: Sessions,
        keys: Keys,
        issuer: str,
        audience: str,
    ) -> None:
        super().__init__(
            store,
            clock=clock,
            keys=keys,
            tenants=tenants,
            issuer=issuer,
            audience=audience,
            meter=IdentityMeter(sessions=sessions.meter),
        )
        self._credentials = credentials
        self._sessions = sessions
        # A process may present a refused refresh token in a loop. The result expires soon, because
        # a leap of the wall clock makes live sessions look expired.
        self._spent: ReadCache[str, bool] = ReadCache(
            clock.monotonic_ms, SPENT_AGE_MS_MAX, SPENT_MAX
        )
        sessions.add_listener(lambda session_id: self.mark_changed(session_id.nonce))

    async def authenticate(
        self, client_id: str, client_secret: str, *, doubted: bool = False
    ) -> Authenticated:
        try:
            return await self._credentials.authenticate(client_id, client_secret, doubted=doubted)
        except InvalidClientError:
            self.meter.logins_refused += 1
            raise

    async def login(
        self, authenticated: Authenticated, *, user_agent: str = "", address: str = ""
    ) -> TokenGrant:
        """Open a session for an authenticated client.

        Raises `SessionLimitRaceError` if other logins kept winning, and `ClockInDoubtError`.
        """
        require_trusted_time(self._clock)
        policy = authenticated.policy
        opened = await self._sessions.open_session(
            Login(
                subject=policy.client_id,
                token_generation=policy.token_generation,
                limit=policy.session_limit,
                labels=make_labels(user_agent, address),
            )
        )
        self.meter.issued += 1
        return self._grant(policy, opened)

    def issue_outside_slots(self, authenticated: Authenticated) -> AwsCredentials:
        """Sign a token of an hour without a session slot, and derive its AWS secret.

        No read, no write. It ends with the client's token generation, or when revoked. Raises
        `ClockInDoubtError`.
        """
        require_trusted_time(self._clock)
        policy, now_epoch = authenticated.policy, self._clock.now_ms() // 1000
        claims = self._claims(
            policy, generation_sid(policy.token_generation), now_epoch, now_epoch + ACCESS_SECS
        )
        key = self._keys.signing_key()
        token = sign(may_produce(authenticated.client, policy.client), claims, key)
        self.meter.issued_outside += 1
        return AwsCredentials(
            access_key_id=derive_access_key_id(claims.jti),
            secret_access_key=derive_secret_access_key(token, key),
            token=token,
            expires_at_epoch=claims.exp,
        )

    def find_aws_secret(self, access_token: str) -> str | None:
        """The secret that signs AWS requests; ``None`` if we did not sign the token.

        The token itself must be validated separately.
        """
        return find_secret_access_key(access_token, self._keys)

    async def refresh(
        self, refresh_token: str, authenticated: Authenticated | None = None
    ) -> TokenGrant:
        """Exchange a refresh token for new tokens, if its session and client exist.

        An authenticated caller may use only its own. Raises `ClockInDoubtError`.
        """
        require_trusted_time(self._clock)
        try:
            policy, opened = await self._refresh_session(refresh_token, authenticated)
        except InvalidTokenError:
            self.meter.refreshes_refused += 1
            raise
        self.meter.refreshed += 1
        return self._grant(policy, opened)

    def refreshes_for(self, refresh_token: str) -> str:
        """The client of a refresh token, without a read.

        Raises `InvalidTokenError` if it is not ours, or was refused within the last minute.
        """
        try:
            return self._open_unspent(refresh_token).subject
        except InvalidTokenError:
            self.meter.refreshes_refused += 1
            raise

    def recall(self, access_token: str) -> Principal | None:
        """The principal of a token that `validate` accepted within the last second."""
        return self.recall_digest(digest_of(access_token))

    async def revoke(self, client_id: str, token: str) -> None:
        """Revoke one of the client's tokens; any other is ignored without an error.

        A refresh token ends its session with all its access tokens.
        """
        if token.startswith(REFRESH_TOKEN_PREFIX):
            try:
                opened = self._sessions.open_refresh_token(token)
            except InvalidTokenError:
                return
            if opened.subject == client_id:
                await self._sessions.end_session(client_id, opened.session_id)
            return
        try:
            principal = await self.validate(token)
        except InvalidTokenError:
            return
        if principal.client_id == client_id:
            await self._revoke_access(principal)

    async def introspect(self, client_id: str, token: str) -> Introspection | None:
        try:
            if token.startswith(REFRESH_TOKEN_PREFIX):
                return await self._introspect_refresh(client_id, token)
            principal = await self.validate(token)
        except InvalidTokenError:
            return None
        if principal.client_id != client_id:
            return None
        return Introspection(
            token_type="access_token",  # noqa: S106 - a kind of token
            client_id=client_id,
            scope=" ".join(sorted(principal.scopes)),
            session_id=principal.session_id,
            issued_at_epoch=principal.issued_at_epoch,
            expires_at_epoch=principal.expires_at_epoch,
            token_id=principal.token_id,
        )

    async def list_sessions(self, client_id: str) -> tuple[Session, ...]:
        policy = await self._read_policy(client_id)
        if policy is None:
            return ()
        return await self._sessions.list_sessions(client_id, policy.token_generation)

    async def end_session(
        self, client_id: str, session_id: str, by: Attribution | None = None
    ) -> None:
        """End one session and its tokens; raises `NotFoundError`.

        ``by`` is left out if the client itself asks.
        """
        parsed = parse_session_id(session_id)
        if parsed is None or not await self._sessions.end_session(client_id, parsed, by):
            raise NotFoundError("session")

    async def end_all_sessions(self, client_id: str, by: Attribution | None = None) -> None:
        """End all sessions and tokens of the client: one read and one write."""
        client = parse_client_id(client_id)
        change = Change("sessions.end_all", client_id, client.org_id)
        audited = None if by is None else (by, change)
        await self._tenants.end_tokens_issued_before_now(client, audited=audited)
        self.meter.clients_ended += 1

    def jwks(self) -> Jwks:
        return self._keys.jwks()

    async def _refresh_session(
        self, refresh_token: str, authenticated: Authenticated | None
    ) -> tuple[Policy, Opened]:
        token = self._open_unspent(refresh_token)
        if authenticated is None:
            policy = await self._read_policy(token.subject)
        elif authenticated.client.client_id == token.subject:
            policy = authenticated.policy
        else:
            # It stays valid for its own client, so it is not cached as spent.
            raise self._refresh_refusal("presented by another client", token)
        if policy is None:
            self._note_spent(token)
            raise self._refresh_refusal("its client is deleted", token)
        try:
            return policy, await self._sessions.refresh(token, policy.token_generation)
        except InvalidTokenError:
            self._note_spent(token)
            raise

    def _note_spent(self, token: RefreshToken) -> None:
        self._spent.keep(token.hash, True, self._spent.reading())  # noqa: FBT003

    def _open_unspent(self, refresh_token: str) -> RefreshToken:
        token = self._sessions.open_refresh_token(refresh_token)
        if self._spent.get(token.hash):
            raise self._refresh_refusal("refused a moment ago", token)
        return token

    def _refresh_refusal(self, reason: str, token: RefreshToken) -> InvalidTokenError:
        _log.info("refresh_token_refused", reason=reason, client_id=token.subject)
        return InvalidTokenError(genuine=True)

    async def _read_policy(self, client_id: str) -> Policy | None:
        try:
            return await self._tenants.read_registered_policy(parse_client_id(client_id))
        except (NotFoundError, InvalidValueError):
            return None

    async def _revoke_access(self, principal: Principal) -> None:
        try:
            await self._store.put(revocation(principal, self._clock.now_ms() // 1000))
        except ConditionFailedError:
            return  # it is revoked already
        except OutcomeUnknownError as lost:
            if lost.item is None:
                raise
        finally:
            self.mark_changed(principal.token_id)
        self.meter.tokens_revoked += 1

    async def _introspect_refresh(self, client_id: str, text: str) -> Introspection | None:
        token = self._sessions.open_refresh_token(text)
        policy = await self._read_policy(token.subject) if token.subject == client_id else None
        if policy is None:
            return None
        session = await self._sessions.find(token, policy.token_generation)
        if session is None:
            return None
        return Introspection(
            token_type="refresh_token",  # noqa: S106 - a kind of token
            client_id=client_id,
            scope=_scope(policy.client),
            session_id=str(session.id),
            issued_at_epoch=session.refreshed_at_ms // 1000,
            expires_at_epoch=session.ends_at_epoch,
        )

    def _grant(self, policy: Policy, opened: Opened) -> TokenGrant:
        now_ms, session = self._clock.now_ms(), opened.session
        if 0 <= now_ms - session.refreshed_at_ms < JUST_NOW_MS:
            now_ms = session.refreshed_at_ms
        now_epoch = now_ms // 1000
        expires_at_epoch = min(now_epoch + ACCESS_SECS, session.ends_at_epoch)
        claims = self._claims(policy, str(session.id), now_epoch, expires_at_epoch)
        permit = may_produce(parse_client_id(session.subject), policy.client)
        return TokenGrant(
            access_token=sign(permit, claims, self._keys.signing_key()),
            refresh_token=opened.refresh_token,
            expires_in_secs=expires_at_epoch - now_epoch,
            refresh_expires_in_secs=session.ends_at_epoch - now_epoch,
            scope=claims.scope,
            session_id=claims.sid,
        )

    def _claims(
        self, policy: Policy, sid: str, now_epoch: int, expires_at_epoch: int
    ) -> TokenClaims:
        return TokenClaims(
            iss=self._issuer,
            sub=policy.client_id,
            aud=self._audience,
            exp=expires_at_epoch,
            iat=now_epoch,
            jti=secrets.token_urlsafe(TOKEN_ID_BYTES),
            sid=sid,
            org_id=policy.org_id,
            scope=_scope(policy.client),
            client_id=policy.client_id,
            app_id=policy.app_id,
        )


def _scope(client: Client) -> str:
    return " ".join(scopes_of(client))
