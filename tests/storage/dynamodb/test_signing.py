"""Our signature is botocore's signature."""

from datetime import UTC, datetime
from random import Random

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotocoreCredentials

from pricekeeper.sigv4 import AwsKeys
from pricekeeper.storage.dynamodb.credentials import (
    CONTENT_TYPE,
    AwsAccess,
    CredentialSource,
    Signer,
)

REGIONS = ["us-east-1", "eu-central-1", "ap-southeast-2", "us-gov-west-1", "cn-north-1"]
BODIES = [
    b"",
    b"{}",
    '{"TableName":"Töpfe ☃ 𝄞"}'.encode(),
    b'{"a":"' + b"x" * 70_000 + b'"}',
    bytes(range(256)),
]
ENDPOINTS = [
    "https://dynamodb.us-east-1.amazonaws.com",
    "https://dynamodb.eu-central-1.amazonaws.com:443",
    "http://127.0.0.1:8000",
    "http://localhost:80",
    "https://vpce-1.dynamodb.us-east-1.vpce.amazonaws.com:8443",
    "http://[::1]:8000",
]
CREDENTIALS = [
    AwsKeys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
    AwsKeys("ASIAEXAMPLE", "another/secret+with=signs", "IQoJb3JpZ2luX2VjE//token=="),
    AwsKeys("LOCAL", "x"),
]
TARGETS = ["GetItem", "UpdateItem", "TransactWriteItems", "DescribeTimeToLive"]


def botocore_headers(
    credentials: AwsKeys, region: str, endpoint: str, target: str, body: bytes
) -> dict[str, str]:
    request = AWSRequest(
        "POST",
        endpoint + "/",
        headers={"Content-Type": CONTENT_TYPE, "X-Amz-Target": target},
        data=body,
    )
    signer = SigV4Auth(
        BotocoreCredentials(
            credentials.access_key, credentials.secret_key, credentials.session_token
        ),
        "dynamodb",
        region,
    )
    signer.add_auth(request)
    return dict(request.headers.items())


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_the_signature_is_botocores(
    region: str, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """150 requests: five in a row for each of thirty signers.

    Days, credentials, bodies and targets all change under one signer, so that a signing key
    kept too long would show.
    """
    random = Random(f"{region} {endpoint}")
    access = AwsAccess(region, endpoint, CredentialSource(None, None))  # type: ignore[arg-type]
    signer = Signer(region, access.host)
    for body in random.sample(BODIES, 5):
        now = datetime(2024, 1, 1, tzinfo=UTC).timestamp() + random.randrange(4 * 365 * 86_400)
        credentials = random.choice(CREDENTIALS)
        target = f"DynamoDB_20120810.{random.choice(TARGETS)}"
        moment = datetime.fromtimestamp(now, UTC)
        monkeypatch.setattr("botocore.auth.get_current_datetime", lambda moment=moment: moment)
        expected = botocore_headers(credentials, region, endpoint, target, body)
        ours = signer.headers(credentials, target, body, int(now))
        assert ours["Authorization"] == expected["Authorization"]
        assert ours["X-Amz-Date"] == expected["X-Amz-Date"]
        assert ours.get("X-Amz-Security-Token") == expected.get("X-Amz-Security-Token")


def test_the_host_is_what_is_signed() -> None:
    hosts = [AwsAccess("r", e, CredentialSource(None, None)).host for e in ENDPOINTS]  # type: ignore[arg-type]
    assert hosts == [
        "dynamodb.us-east-1.amazonaws.com",
        "dynamodb.eu-central-1.amazonaws.com",
        "127.0.0.1:8000",
        "localhost",
        "vpce-1.dynamodb.us-east-1.vpce.amazonaws.com:8443",
        "[::1]:8000",
    ]


def test_credentials_do_not_show() -> None:
    shown = repr([CREDENTIALS[1], (CREDENTIALS[1],)])
    assert "ASIA" not in shown
    assert "secret" not in shown
    assert "token" not in shown.replace("session_token", "")
