"""Forged and modified tokens are all refused alike, without a read."""

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OctKey, RSAKey
from joserfc.jws import JWSRegistry
from structlog.testing import capture_logs

from pricekeeper.clock import ManualClock
from pricekeeper.errors import InvalidTokenError
from pricekeeper.settings import MEMORY, SqliteLocation
from pricekeeper.storage import open_store
from pricekeeper.telemetry import StoreMeter
from pricekeeper.tenants import Client
from pricekeeper.tokens.access_token import ACCESS_TOKEN_LENGTH_MAX
from pricekeeper.tokens.keyring import TokenKey
from tenants.conftest import new_org_id
from tokens.conftest import AUDIENCE, Instance

ORDER_OF_P256 = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def compact(header: dict[str, Any]) -> str:
    return json.dumps(header, separators=(",", ":"))


@dataclass
class Forge:
    """A genuine token, taken apart, and the key that signed it."""

    token: str
    key: TokenKey
    now_epoch: int

    @property
    def parts(self) -> list[str]:
        return self.token.split(".")

    @property
    def header(self) -> dict[str, Any]:
        return dict(json.loads(unb64(self.parts[0])))

    @property
    def claims(self) -> dict[str, Any]:
        return dict(json.loads(unb64(self.parts[1])))

    @property
    def public_pem(self) -> bytes:
        return self.key.public.public_key.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def signed(self, header: dict[str, Any] | None = None, **claims: Any) -> str:
        """Signed with our own key, which an attacker does not have."""
        body = {k: v for k, v in {**self.claims, **claims}.items() if v is not ...}
        return self.raw(compact(header or self.header), json.dumps(body).encode())

    def raw(self, header: str, payload: bytes) -> str:
        """Signed with our own key, with any header in any spelling."""
        message = f"{b64(header.encode())}.{b64(payload)}"
        algorithm = JWSRegistry.algorithms["ES256"]
        return f"{message}.{b64(algorithm.sign(message.encode(), self.key.private))}"

    def unsigned(self, signature: bytes = b"", **header: Any) -> str:
        head = b64(compact({**self.header, **header}).encode())
        return f"{head}.{self.parts[1]}.{b64(signature)}"

    def hmac(self, secret: bytes, name: str = "HS256") -> str:
        message = self.unsigned(alg=name).rpartition(".")[0]
        return f"{message}.{b64(hmac.digest(secret, message.encode(), hashlib.sha256))}"

    def by(self, key: ECKey | RSAKey | OctKey, algorithm: str, **header: Any) -> str:
        """Signed with a foreign key."""
        registry = JWSRegistry(algorithms=[algorithm], strict_check_header=False)
        return jws.serialize_compact(
            {**self.header, "alg": algorithm, **header},
            unb64(self.parts[1]),
            key,
            registry=registry,
        )

    def other_s(self) -> str:
        """The same signature with its second half negated: as valid, and not ours."""
        signature = unb64(self.parts[2])
        s = ORDER_OF_P256 - int.from_bytes(signature[32:], "big")
        return ".".join([*self.parts[:2], b64(signature[:32] + s.to_bytes(32, "big"))])


def _flipped(text: str, place: int) -> str:
    return text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]


def _payload(forge: Forge, payload: bytes) -> str:
    """Any payload under a header that is ours to the byte, with a right signature."""
    message = f"{forge.parts[0]}.{b64(payload)}"
    algorithm = JWSRegistry.algorithms["ES256"]
    return f"{message}.{b64(algorithm.sign(message.encode(), forge.key.private))}"


def _canonical(forge: Forge, **claims: Any) -> str:
    changed = {k: v for k, v in {**forge.claims, **claims}.items() if v is not ...}
    return _payload(forge, json.dumps(changed).encode())


def _with_own_key(forge: Forge) -> str:
    own = ECKey.generate_key("P-256")
    return forge.by(own, "ES256", jwk=own.as_dict(private=False))


ATTACKS: dict[str, Callable[[Forge], str]] = {
    # No signature, or one of another kind
    "alg none": lambda f: f.unsigned(alg="none"),
    "alg None": lambda f: f.unsigned(alg="None"),
    "alg none, our signature": lambda f: f.unsigned(unb64(f.parts[2]), alg="none"),
    "no alg": lambda f: f.unsigned(unb64(f.parts[2]), alg=None),
    "no signature": lambda f: f.unsigned(),
    "HS256 with the public key": lambda f: f.hmac(f.public_pem),
    "HS256 with the public point": lambda f: f.hmac(unb64(f.key.jwk["x"])),
    "HS256 with the JWKS": lambda f: f.hmac(json.dumps({"keys": [f.key.jwk]}).encode()),
    "HS256 with nothing": lambda f: f.hmac(b""),
    "HS256 said to be ES256": lambda f: f.hmac(f.public_pem, "ES256"),
    "RS256": lambda f: f.by(RSAKey.generate_key(2048), "RS256"),
    "ES384": lambda f: f.by(ECKey.generate_key("P-384"), "ES384"),
    "zero signature": lambda f: f.unsigned(bytes(64)),
    "signature in DER": lambda f: f.unsigned(b"\x30\x44" + unb64(f.parts[2])),
    "short signature": lambda f: f.unsigned(unb64(f.parts[2])[:63]),
    # Another key
    "another key, our kid": lambda f: f.by(ECKey.generate_key("P-256"), "ES256"),
    "unknown kid": lambda f: f.signed({**f.header, "kid": "unknown"}),
    "kid that leads elsewhere": lambda f: f.signed({**f.header, "kid": "../../../dev/null"}),
    "kid that asks a database": lambda f: f.signed({**f.header, "kid": "' OR 1=1 --"}),
    "kid of another type": lambda f: f.signed({**f.header, "kid": ["a"]}),
    "no kid": lambda f: f.signed({"typ": "at+jwt", "alg": "ES256"}),
    "its own key": _with_own_key,
    "key by address": lambda f: f.signed({**f.header, "jku": "https://evil.example/jwks"}),
    "certificate by address": lambda f: f.signed({**f.header, "x5u": "https://evil.example/c"}),
    # Another header
    "wrong typ": lambda f: f.signed({**f.header, "typ": "JWT"}),
    "typ in capitals": lambda f: f.signed({**f.header, "typ": "AT+JWT"}),
    "no typ": lambda f: f.signed({"alg": "ES256", "kid": f.key.kid}),
    "crit": lambda f: f.signed({**f.header, "crit": ["exp"]}),
    "crit unknown": lambda f: f.signed({**f.header, "crit": ["x"], "x": 1}),
    "b64 false": lambda f: f.signed({**f.header, "b64": False, "crit": ["b64"]}),
    "duplicate alg": lambda f: f.raw(compact(f.header)[:-1] + ',"alg":"ES256"}', unb64(f.parts[1])),
    "duplicate kid": lambda f: f.raw('{"kid":"evil",' + compact(f.header)[1:], unb64(f.parts[1])),
    "header not an object": lambda f: f.raw('"alg"', unb64(f.parts[1])),
    "header a list": lambda f: f.raw('["alg"]', unb64(f.parts[1])),
    "header not JSON": lambda f: f.raw("{", unb64(f.parts[1])),
    "header deeply nested": lambda f: f.raw("[" * 300, unb64(f.parts[1])),
    "header spelt otherwise": lambda f: f.raw(json.dumps(f.header), unb64(f.parts[1])),
    # Other claims, under our own signature
    "wrong aud": lambda f: _canonical(f, aud="another"),
    "aud list": lambda f: _canonical(f, aud=[AUDIENCE, "another"]),
    "no aud": lambda f: _canonical(f, aud=...),
    "wrong iss": lambda f: _canonical(f, iss="https://evil.example"),
    "no iss": lambda f: _canonical(f, iss=...),
    "expired": lambda f: _canonical(f, exp=f.now_epoch),
    "exp text": lambda f: _canonical(f, exp="9999999999"),
    "exp a fraction": lambda f: _canonical(f, exp=f.now_epoch + 0.5),
    "exp true": lambda f: _canonical(f, exp=True),
    "exp null": lambda f: _canonical(f, exp=None),
    "no exp": lambda f: _canonical(f, exp=...),
    "exp NaN": lambda f: _payload(f, b'{"exp":NaN}'),
    "not yet valid": lambda f: _canonical(f, nbf=f.now_epoch + 60),
    "issued in the future": lambda f: _canonical(f, iat=f.now_epoch + 60),
    "no jti": lambda f: _canonical(f, jti=...),
    "no sid": lambda f: _canonical(f, sid=...),
    "sid of no shape": lambda f: _canonical(f, sid="000-#"),
    "another org": lambda f: _canonical(f, org_id="00000000-0000-0000-0000-000000000000"),
    "another client_id": lambda f: _canonical(f, client_id="org-another"),
    "an app of it": lambda f: _canonical(f, app_id="api"),
    "sub of no shape": lambda f: _canonical(f, sub="admin"),
    "claims without end": lambda f: _payload(f, b"[" * 1_000),
    "claims not an object": lambda f: _payload(f, b"[]"),
    "claims not JSON": lambda f: _payload(f, b"{"),
    "claims not text": lambda f: _payload(f, b"\xff\xfe"),
    "no claims": lambda f: _payload(f, b""),
    # Mangled
    "empty": lambda f: f.token[:0],
    "dots": lambda f: "." * len(f.parts),
    "truncated": lambda f: f.token[:-10],
    "header alone": lambda f: f.parts[0],
    "two parts": lambda f: ".".join(f.parts[:2]),
    "four parts": lambda f: f.token + ".x",
    "five parts, as if encrypted": lambda f: f.token + ".x.y",
    "detached": lambda f: f"{f.parts[0]}..{f.parts[2]}",
    "claims of another": lambda f: f"{f.parts[0]}.{b64(b'{}')}.{f.parts[2]}",
    "one bit of the header": lambda f: _flipped(f.token, 10),
    "one bit of the claims": lambda f: _flipped(f.token, len(f.parts[0]) + 20),
    "one bit of the signature": lambda f: _flipped(f.token, len(f.token) - 20),
    "padded": lambda f: f.token + "==",
    "last character spelt otherwise": lambda f: (
        f.token[:-1] + chr(ord(f.token[-1]) + (1 if f.token[-1] != "z" else -1))
    ),
    "line break": lambda f: f.token + "\n",
    "leading space": lambda f: " " + f.token,
    "null byte": lambda f: f.token + "\0",
    "not ascii": lambda f: f.token[:-1] + "é",
    "surrogate": lambda f: f.token[:-1] + "\ud800",
    "full-width dot": lambda f: f.token.replace(".", "\uff0e"),
    "Bearer": lambda f: "Bearer " + f.token,
    "JSON serialisation": lambda f: json.dumps(
        dict(zip(("protected", "payload", "signature"), f.parts, strict=True))
    ),
    "refresh token": lambda f: "pkrt_" + f.parts[0],
    "huge": lambda f: f.token + "A" * 10_000_000,
    "huge claims": lambda f: _canonical(f, padding="A" * ACCESS_TOKEN_LENGTH_MAX),
}


@pytest.fixture
async def scene(keyring: str) -> Any:
    """One instance on a real store, with a stopped clock, and a genuine token."""
    clock, meter = ManualClock(), StoreMeter()
    store = await open_store(SqliteLocation(MEMORY), clock=clock, meter=meter)
    await store.create_tables()
    instance = Instance(store, clock, keyring)
    member = await instance.register(Client(new_org_id()))
    grant = await member.login(instance)
    forge = Forge(grant.access_token, instance.keys.signing_key(), clock.now_ms() // 1000)
    yield instance, forge, meter
    await store.close()


def is_signed(forge: Forge, token: str) -> bool:
    """Whether our own key signed it, under our own header: then it is no guess."""
    parts = token.split(".")
    if len(token) > ACCESS_TOKEN_LENGTH_MAX or len(parts) != 3 or parts[0] != forge.parts[0]:
        return False
    try:
        jws.deserialize_compact(token, forge.key.public, registry=JWSRegistry(algorithms=["ES256"]))
    except (JoseError, ValueError):
        return False
    return True


@pytest.mark.parametrize("attack", ATTACKS)
async def test_it_is_refused_like_any_other(
    scene: tuple[Instance, Forge, StoreMeter], attack: str
) -> None:
    """The same error, no store call, the reason and not the token in the log."""
    instance, forge, meter = scene
    token = ATTACKS[attack](forge)
    assert token != forge.token
    meter.clear()
    with capture_logs() as logs, pytest.raises(InvalidTokenError) as refusal:
        await instance.identity.validate(token)
    assert (refusal.value.code, str(refusal.value)) == ("INVALID_TOKEN", "the token is not valid")
    assert meter.calls == {}
    assert refusal.value.genuine is is_signed(forge, token)
    (line,) = logs
    assert line["event"] == "access_token_refused"
    assert forge.parts[2] not in str(line)
    await instance.identity.validate(forge.token)


async def test_what_the_forge_changes_is_what_is_refused(
    scene: tuple[Instance, Forge, StoreMeter],
) -> None:
    """Signed again without changes, a token is valid: each attack fails by its change."""
    instance, forge, _ = scene
    for token in (_canonical(forge), _canonical(forge, nbf=forge.now_epoch, extra="ignored")):
        assert (await instance.identity.validate(token)).token_id == forge.claims["jti"]


async def test_another_spelling_of_the_signature_is_revoked_with_it(
    scene: tuple[Instance, Forge, StoreMeter],
) -> None:
    """Who negates a half of the signature gets a second token for the same id, and no more."""
    instance, forge, _ = scene
    twin = forge.other_s()
    principal = await instance.identity.validate(twin)
    await instance.identity.revoke(principal.client_id, forge.token)
    for token in (twin, forge.token):
        with pytest.raises(InvalidTokenError):
            await instance.identity.validate(token)


class Unread(str):
    """A text that must not be looked at, but for its length."""

    __slots__ = ()

    def encode(self, *_: object, **__: object) -> bytes:
        raise AssertionError("a token that is too long was read")

    partition = startswith = isascii = encode  # type: ignore[assignment]


async def test_a_huge_token_is_not_even_read(scene: tuple[Instance, Forge, StoreMeter]) -> None:
    """Its length is looked at before anything else."""
    instance, forge, _ = scene
    with pytest.raises(InvalidTokenError):
        await instance.identity.validate(Unread(forge.token + "A" * ACCESS_TOKEN_LENGTH_MAX))
    with pytest.raises(AssertionError):
        await instance.identity.validate(Unread(forge.token))


async def test_noise_is_refused(scene: tuple[Instance, Forge, StoreMeter]) -> None:
    """Nothing that can be sent raises anything else."""
    instance, forge, _ = scene
    alphabet = forge.token + ".=-_ é\0"
    for _ in range(500):
        length = secrets.randbelow(60)
        noise = "".join(secrets.choice(alphabet) for _ in range(length))
        for token in (noise, f"{forge.parts[0]}.{noise}", f"{noise}.{forge.parts[1]}.{noise}"):
            with pytest.raises(InvalidTokenError):
                await instance.identity.validate(token)


async def test_a_token_names_its_client_in_both_claims(
    scene: tuple[Instance, Forge, StoreMeter],
) -> None:
    """A token without `client_id` is none of ours."""
    instance, forge, _ = scene
    assert forge.claims["client_id"] == forge.claims["sub"]
    assert (await instance.identity.validate(_canonical(forge))).client_id == forge.claims["sub"]
    with pytest.raises(InvalidTokenError):
        await instance.identity.validate(_canonical(forge, client_id=...))
