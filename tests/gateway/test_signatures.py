"""SigV4: we sign what botocore signs, and what botocore signs is verified to the last bit."""

import hashlib
import hmac
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import aiobotocore.session
import botocore.session
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from gateway.conftest import MakeWorld
from gateway.models import ARN
from gateway.wire import Received, Upstream, running_upstream, whole
from gateway.world import App, World, converse_body
from http_fixtures import Reply
from pricekeeper.settings import BedrockLocation
from pricekeeper.sigv4 import (
    AwsKeys,
    SigningKey,
    claim_of,
    derived_key,
    escaped_path,
    parse_presented,
    signature_by,
    signed_headers,
)
from pricekeeper.tokens.aws_credentials import derive_access_key_id

NOW_EPOCH = 1_794_000_000
SCOPE = "AKIDEXAMPLE0000000/20261116/us-east-1/bedrock/aws4_request"
OTHER_KEY_ID = derive_access_key_id("another-token")
PATH = "/bedrock/model/premium/converse"


@pytest.mark.parametrize(
    "model_id",
    ["anthropic.claude-opus-5-5-v1:0", ARN, "tilde~and.dots-and_lines", "größe", "a b+c%d", "日本"],
)
@pytest.mark.parametrize("token", [None, "session-token=="])
@pytest.mark.parametrize("body", [b"", b'{"a":1}'])
def test_what_we_sign_is_what_botocore_signs(
    monkeypatch: pytest.MonkeyPatch, model_id: str, token: str | None, body: bytes
) -> None:
    """The same header, character for character."""
    path = f"/prefix/model/{quote(model_id, safe='-._~')}/converse"
    digest = hashlib.sha256(body).hexdigest()
    headers = {"content-type": "application/json", "accept": "a,  b   c", "anthropic-beta": "x"}
    ours = signed_headers(
        AwsKeys("AKIDEXAMPLE", "secret", token),
        service="bedrock",
        method="POST",
        host="bedrock-runtime.us-east-1.amazonaws.com",
        path=escaped_path(path),
        region="us-east-1",
        content_sha256=digest,
        now_epoch=NOW_EPOCH,
        headers=headers,
    )
    url = f"https://bedrock-runtime.us-east-1.amazonaws.com{path}"
    request = AWSRequest("POST", url, {**headers, "x-amz-content-sha256": digest}, body)
    _sign_at(monkeypatch, request, NOW_EPOCH, Credentials("AKIDEXAMPLE", "secret", token))
    assert ours["authorization"] == request.headers["Authorization"]
    assert ours["x-amz-date"] == request.headers["X-Amz-Date"]


@pytest.mark.parametrize(
    "path", ["", "/", "/a b", "/%3A:", "/größe/日本", "/~-._", "/\x7f\x00?#&="]
)
def test_a_path_is_escaped_as_the_standard_library_does_it(path: str) -> None:
    assert escaped_path(path) == quote(path, safe="/~")


@pytest.mark.parametrize("key", [b"", b"k", bytes(range(32)), bytes(range(64))])
def test_a_key_signs_as_hmac_does(key: bytes) -> None:
    made = SigningKey(key)
    for message in (b"", b"one", b"x" * 1_000, b"one"):
        assert made.sign(message) == hmac.digest(key, message, "sha256").hex()


def _sign_at(
    monkeypatch: pytest.MonkeyPatch,
    request: AWSRequest,
    epoch: int,
    credentials: Credentials,
    region: str = "us-east-1",
    service: str = "bedrock",
) -> None:
    moment = datetime.fromtimestamp(epoch, UTC)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: moment)
    SigV4Auth(credentials, service, region).add_auth(request)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer x",
        "AWS4-HMAC-SHA256",
        f"AWS4-HMAC-SHA256 Credential={SCOPE}",
        f"AWS4-HMAC-SHA256 Credential={SCOPE}, SignedHeaders=host, Signature=abc",
        f"AWS4-ECDSA-P256-SHA256 Credential={SCOPE}, SignedHeaders=host, Signature={'a' * 64}",
    ],
)
def test_another_header_is_no_signature(header: str) -> None:
    assert parse_presented(header) is None


@dataclass(frozen=True)
class Signed:
    """A request that was signed, and what of it is sent otherwise."""

    world: World
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes

    def send(self) -> Reply:
        target = self.path + (f"?{self.query}" if self.query else "")
        return self.world.api.call("POST", target, data=self.body, headers=dict(self.headers))

    @property
    def stamp(self) -> str:
        return self.headers["X-Amz-Date"]

    def with_header(self, name: str, value: str | None) -> "Signed":
        headers = {key: one for key, one in self.headers.items() if key.lower() != name}
        return replace(self, headers=headers if value is None else {**headers, name: value})


Change = Callable[[Signed], Signed]


@dataclass
class Signer:
    """Signs as botocore does, with an app's credentials, at the moment that the service has."""

    world: World
    monkeypatch: pytest.MonkeyPatch
    app: App
    keys: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.keys = self.app.aws_credentials()

    @property
    def now_epoch(self) -> int:
        return self.world.clock.now_ms() // 1000

    def sign(
        self, path: str = PATH, query: str = "", body: bytes | None = None, **more: Any
    ) -> Signed:
        data = json.dumps(converse_body()).encode() if body is None else body
        url = self.world.url + path + (f"?{query}" if query else "")
        headers = {"content-type": "application/json", **more.pop("headers", {})}
        request = AWSRequest("POST", url, headers, data)
        credentials = more.pop("credentials", None) or Credentials(
            self.keys["AccessKeyId"], self.keys["SecretAccessKey"], self.keys["Token"]
        )
        epoch = more.pop("epoch", self.now_epoch)
        _sign_at(self.monkeypatch, request, epoch, credentials, **more)
        return Signed(self.world, path, query, dict(request.headers.items()), data)


@pytest.fixture
def signer(world: World, app: App, monkeypatch: pytest.MonkeyPatch) -> Iterator[Signer]:
    """The clock stops while something is signed, sent and verified."""
    world.clock.stopped_at_ms = world.clock.now_ms()
    yield Signer(world, monkeypatch, app)
    world.clock.stopped_at_ms = None


def assert_refused(reply: Reply, by: Signer) -> None:
    """403, nothing was authorized, and nothing was sent on."""
    assert reply.status == 403, reply.data
    assert reply.headers["x-amzn-errortype"] in (
        "InvalidSignatureException", "AccessDeniedException", "MissingAuthenticationTokenException"
    )  # fmt: skip
    assert by.world.ledger.attempts == {}
    assert by.app.unfinished("open") == []
    assert by.app.usage() == []


@pytest.mark.parametrize(
    "model",
    ["premium", "us.amazon.nova-pro-v1%3A0", quote(ARN, safe=""), "us.amazon.nova-pro-v1:0"],
)
@pytest.mark.parametrize("query", ["", "b=2&a=1", "flag"])
def test_a_signature_of_botocores_is_accepted(
    world: World, app: App, signer: Signer, model: str, query: str
) -> None:
    reply = signer.sign(f"/bedrock/model/{model}/converse", query).send()
    assert reply.status == 200, reply.data
    world.assert_equal(app)


@pytest.mark.parametrize(("authority", "status"), [("", 200), ("another.example", 403)])
def test_a_client_of_http2_signs_the_authority(
    world: World, signer: Signer, authority: str, status: int
) -> None:
    """A proxy makes it the host, which must be the signed one."""
    signed = signer.sign()
    header = signed.headers["Authorization"].replace("content-type;host", ":authority;content-type")
    presented = parse_presented(header)
    assert presented is not None
    host = authority or world.url.removeprefix("http://")
    lower = {name.lower(): value for name, value in signed.headers.items()}
    signature = signature_by(
        derived_key(signer.keys["SecretAccessKey"], presented.claim),
        presented.claim,
        method="POST",
        path=PATH,
        query="",
        headers={**lower, ":authority": host},
        content_sha256=hashlib.sha256(signed.body).hexdigest(),
        stamp=signed.stamp,
    )
    renewed = header.replace(presented.signature, signature)
    assert signed.with_header("authorization", renewed).send().status == status


def _in_authorization(old: str, new: str) -> Change:
    return lambda signed: signed.with_header(
        "authorization", signed.headers["Authorization"].replace(old, new)
    )


def _in_header(name: str, value: str | None) -> Change:
    return lambda signed: signed.with_header(name, value)


def _with_another_key_id(signed: Signed) -> Signed:
    header = signed.headers["Authorization"]
    name = header.partition("Credential=")[2].partition("/")[0]
    return signed.with_header("authorization", header.replace(name, OTHER_KEY_ID))


def _with_signature(change: Callable[[str], str]) -> Change:
    def changed(signed: Signed) -> Signed:
        head, _, signature = signed.headers["Authorization"].rpartition("=")
        return signed.with_header("authorization", f"{head}={change(signature)}")

    return changed


CHANGES: dict[str, Change] = {
    "path": lambda one: replace(one, path=one.path.replace("premium", "economy")),
    "path-encoding": lambda one: replace(one, path=one.path.replace("premium", "%70remium")),
    "query": lambda one: replace(one, query="a=2"),
    "query-added": lambda one: replace(one, query="a=1&b=2"),
    "query-gone": lambda one: replace(one, query=""),
    "body": lambda one: replace(one, body=one.body.replace(b"hello", b"jello")),
    "body-grown": lambda one: replace(one, body=one.body + b" "),
    "signed-header": _in_header("content-type", "text/plain"),
    "date": lambda one: one.with_header("x-amz-date", one.headers["X-Amz-Date"][:-2] + "xZ"),
    "date-moved": lambda one: one.with_header(
        "x-amz-date", one.headers["X-Amz-Date"][:-3] + ("00Z" if "00Z" not in one.stamp else "01Z")
    ),
    "date-gone": _in_header("x-amz-date", None),
    "token-gone": _in_header("x-amz-security-token", None),
    "host": _in_header("host", "elsewhere.example"),
    "region": _in_authorization("us-east-1", "us-west-2"),
    "service": _in_authorization("/bedrock/", "/s3/"),
    "key-id": _with_another_key_id,
    "signature": _with_signature(lambda text: text[:-1] + ("0" if text[-1] != "0" else "1")),
    "capital-signature": _with_signature(str.upper),
    "names": _in_authorization("content-type;", ""),
    "unknown-name": _in_authorization("SignedHeaders=", "SignedHeaders=absent;"),
    "unsigned-payload": _in_header("x-amz-content-sha256", "UNSIGNED-PAYLOAD"),
    "another-digest": _in_header("x-amz-content-sha256", hashlib.sha256(b"x").hexdigest()),
}


@pytest.mark.parametrize("what", list(CHANGES))
def test_any_change_of_a_signed_request_is_refused(signer: Signer, what: str) -> None:
    """One change at a time; the unchanged request would be served."""
    signed = signer.sign(query="a=1")
    reply = CHANGES[what](signed).send()
    if what != "capital-signature":  # which is none
        assert reply.headers["x-amzn-errortype"] == "InvalidSignatureException"
    assert_refused(reply, signer)
    assert signed.send().status == 200


@pytest.mark.parametrize("what", list(CHANGES))
def test_a_change_is_refused_also_where_the_signer_is_known(
    world: World, signer: Signer, what: str
) -> None:
    """What a token signs with is remembered; whether a request was signed with it is not."""
    signed = signer.sign(query="a=1")
    assert signed.send().status == 200
    assert CHANGES[what](signed).send().status == 403
    assert signed.send().status == 200
    assert world.ledger.attempts == {"Converse": 2}


@pytest.mark.parametrize("service", ["s3", "dynamodb", "bedrock-agent", "execute-api"])
def test_a_signature_for_another_service_is_refused(signer: Signer, service: str) -> None:
    assert_refused(signer.sign(service=service).send(), signer)


def test_the_newer_name_of_the_service_is_accepted(signer: Signer) -> None:
    assert signer.sign(service="bedrock-mantle", region="eu-central-1").send().status == 200


@pytest.mark.parametrize(
    ("apart_secs", "status"), [(-301, 403), (-300, 200), (0, 200), (300, 200), (301, 403)]
)
def test_clocks_may_be_five_minutes_apart(signer: Signer, apart_secs: int, status: int) -> None:
    """And not a second more, either way."""
    reply = signer.sign(epoch=signer.now_epoch + apart_secs).send()
    assert reply.status == status, reply.data
    if status == 403:
        assert "clock" in reply.json["message"]
        assert_refused(reply, signer)


def test_a_day_that_is_not_the_dates_is_refused(world: World, signer: Signer) -> None:
    """The scope names another day than the date, and the signature is right for that."""
    signed = signer.sign()
    presented = parse_presented(signed.headers["Authorization"])
    assert presented is not None
    claim = presented.claim

    def with_day(day: str) -> Signed:
        made = claim_of(claim.access_key, day, claim.region, claim.service, claim.names)
        headers = {name.lower(): value for name, value in signed.headers.items()}
        signature = signature_by(
            derived_key(signer.keys["SecretAccessKey"], made),
            made,
            method="POST",
            path=escaped_path(signed.path),
            query="",
            headers={**headers, "host": "{}:{}".format(*world.address)},
            content_sha256=hashlib.sha256(signed.body).hexdigest(),
            stamp=signed.stamp,
        )
        header = signed.headers["Authorization"].replace(presented.signature, signature)
        return signed.with_header("authorization", header.replace(f"/{claim.day}/", f"/{day}/"))

    assert with_day(claim.day).headers["authorization"] == signed.headers["Authorization"]
    assert_refused(with_day(f"{int(claim.day) - 1:08}").send(), signer)


def test_a_token_of_another_app_does_not_fit(world: World, signer: Signer) -> None:
    """Neither in the place of the own one, nor signed with the own secret."""
    other = App(world.api).register()
    token = other.aws_credentials()["Token"]
    assert_refused(signer.sign().with_header("x-amz-security-token", token).send(), signer)
    keys = signer.keys
    mixed = Credentials(keys["AccessKeyId"], keys["SecretAccessKey"], token)
    assert_refused(signer.sign(credentials=mixed).send(), signer)
    assert other.usage() == []


def test_a_token_that_is_not_signed_is_refused(signer: Signer) -> None:
    """Else it could be put into another's request."""
    keys = signer.keys
    without = Credentials(keys["AccessKeyId"], keys["SecretAccessKey"])
    signed = signer.sign(credentials=without)
    assert_refused(signed.with_header("x-amz-security-token", keys["Token"]).send(), signer)


def test_aws_credentials_that_are_not_ours_are_refused(signer: Signer) -> None:
    """With no token, with a made-up token, and with one that another key signed."""
    parts = signer.keys["Token"].split(".")
    forged = ".".join([parts[0], parts[1], parts[2][::-1]])
    for token in (None, "made-up", forged):
        credentials = Credentials("AKIDEXAMPLE00000000", "secret", token)
        reply = signer.sign(credentials=credentials).send()
        assert "AWS_PROFILE" in reply.json["message"]  # where an SDK may have found them
        assert_refused(reply, signer)


def test_a_forged_token_is_refused_also_with_the_right_secret_for_it(
    app: App, signer: Signer
) -> None:
    """The secret is derived from the token's text, so the text has to be validated as well."""
    token = app.login()
    credentials = Credentials(OTHER_KEY_ID, signer.keys["SecretAccessKey"], token)
    assert_refused(signer.sign(credentials=credentials).send(), signer)


ACTED_ON = {
    "x-pricekeeper-tag-team": "search",
    "x-amzn-bedrock-service-tier": "priority",
    "anthropic-beta": "a-longer-window",
}


@pytest.mark.parametrize("header", ACTED_ON)
def test_what_a_call_is_counted_by_has_to_be_signed(signer: Signer, header: str) -> None:
    """Otherwise a replay could use another budget or a dearer tier."""
    added = signer.sign().with_header(header, ACTED_ON[header]).send()
    assert header in added.json["message"]
    assert_refused(added, signer)
    assert signer.sign(headers={header: ACTED_ON[header]}).send().status == 200


def test_no_credentials_at_all(signer: Signer) -> None:
    """The message says what to send."""
    reply = signer.world.api.call("POST", PATH, converse_body())
    assert reply.headers["x-amzn-errortype"] == "MissingAuthenticationTokenException"
    assert "/auth/aws-credentials" in reply.json["message"]
    assert_refused(reply, signer)


def test_signatures_are_compared_in_constant_time(
    signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the one function that does so."""
    compared: list[tuple[str, str]] = []

    def compare(first: str, second: str) -> bool:
        compared.append((first, second))
        return first == second

    signed = signer.sign()
    monkeypatch.setattr("pricekeeper.gateway.identity.hmac.compare_digest", compare)
    assert signed.send().status == 200
    assert signed.headers["Authorization"].endswith(compared[0][0])


def environment_of(world: World, app: App) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": f"{world.url}/bedrock",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{world.url}/auth/aws-credentials",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN": app.basic,
    }


@pytest.fixture
def by_environment(world: World, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a deployment sets, and nothing else."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name, value in environment_of(world, app).items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("model", ["auto", "us.amazon.nova-pro-v1:0", ARN])
@pytest.mark.usefixtures("by_environment")
def test_botocore_works_by_its_environment_alone(world: World, app: App, model: str) -> None:
    client: Any = botocore.session.get_session().create_client("bedrock-runtime")
    try:
        reply = client.converse(modelId=model, **converse_body())
        assert reply["usage"]["outputTokens"] == 64
        events = client.converse_stream(modelId=model, **converse_body())["stream"]
        assert [next(iter(event)) for event in events][-1] == "metadata"
    finally:
        client.close()
    world.assert_equal(app)


@pytest.mark.usefixtures("by_environment")
async def test_aiobotocore_works_by_its_environment_alone(world: World, app: App) -> None:
    session = aiobotocore.session.get_session()
    async with session.create_client("bedrock-runtime") as client:
        reply = await client.converse(modelId=ARN, **converse_body())
        assert reply["usage"]["outputTokens"] == 64
        stream = (await client.converse_stream(modelId="auto", **converse_body()))["stream"]
        assert [next(iter(event)) async for event in stream][-1] == "metadata"
    world.assert_equal(app)


@pytest.mark.parametrize("operation", ["converse", "invoke", "count-tokens"])
def test_calls_are_signed_anew_with_the_services_own_credentials(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """As botocore signs them; also below a prefix."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a-session-token")

    def answer(_: Upstream, peer: socket.socket, __: Received) -> None:
        peer.sendall(whole(b"{}"))

    with running_upstream(answer) as upstream:
        location = BedrockLocation(f"{upstream.url}/prefix", "eu-west-1", signs=True)
        world = make_world(upstream.url, bedrock=location)
        app = App(world.api).register()
        model = quote(ARN, safe="")
        reply = world.post(f"/model/{model}/{operation}", {"messages": []}, app)
        assert reply.status == 200, reply.data
        (got,) = upstream.requests
    assert got.path == f"/prefix/model/{model}/{operation}"
    names = got.headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0]
    sent = {name: got.headers[name] for name in names.split(";") if name != "host"}
    for made in ("x-amz-date", "x-amz-security-token"):
        sent.pop(made)
    request = AWSRequest("POST", upstream.url + got.path, sent, got.body)
    stamp = got.headers["x-amz-date"]
    epoch = int(datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp())
    keys = Credentials(
        os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"], "a-session-token"
    )
    _sign_at(monkeypatch, request, epoch, keys, "eu-west-1")
    assert got.headers["authorization"] == request.headers["Authorization"]
    assert got.headers["x-amz-security-token"] == "a-session-token"
    assert app.pair not in str(got.headers)


def test_a_service_without_aws_credentials_says_so(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent on, and nothing stays held."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    location = BedrockLocation("https://127.0.0.1:1", "eu-west-1", signs=True)
    world = make_world("https://127.0.0.1:1", bedrock=location)
    app = App(world.api).register()
    reply = world.converse(app)
    assert (reply.status, reply.headers["x-amzn-errortype"]) == (503, "ServiceUnavailableException")
    assert "credentials" in reply.json["message"]
    world.assert_equal(app)
