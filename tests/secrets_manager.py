"""What answers in place of AWS Secrets Manager, with its wire protocol (JSON 1.1).

It checks what a request is signed with, by botocore, and what it asks for, by botocore's model of
the service. Tests read its answers with botocore, too.
"""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.model import ServiceModel
from botocore.session import Session
from botocore.validate import ParamValidator

from http_handler import Handler, serving

SERVICE = "secretsmanager"
ACCOUNT = "123456789012"
MODEL = ServiceModel(Session().get_service_data(SERVICE), SERVICE)
OPERATION = MODEL.operation_model("GetSecretValue")
CONTENT_TYPE = f"application/x-amz-json-{MODEL.metadata['jsonVersion']}"
TARGET = f"{MODEL.metadata['targetPrefix']}.GetSecretValue"


@dataclass
class Refusal:
    """An error as the service tells it."""

    name: str
    status: int = 400
    message: str = "no"


@dataclass
class SecretsManagerStandIn:
    """Secrets by name; ``refusals`` are what the next requests get instead."""

    access_key: str = "AKIDFORTESTSONLY"
    secret_key: str = "secretForTestsOnly"
    secrets: dict[str, str | bytes] = field(default_factory=dict)
    refusals: list[Refusal | bytes] = field(default_factory=list)
    always: Refusal | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    url: str = ""

    def arn(self, name: str, region: str = "us-east-1") -> str:
        return f"arn:aws:secretsmanager:{region}:{ACCOUNT}:secret:{name}-AbCdEf"

    def answer(self, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        refusal = self._refusal(headers, body)
        if isinstance(refusal, bytes):
            return 200, refusal
        if refusal is not None:
            told = {"__type": refusal.name, "Message": refusal.message}
            return refusal.status, json.dumps(told).encode()
        asked = json.loads(body)["SecretId"]
        name = asked.partition(":secret:")[2].rpartition("-")[0] or asked
        secret = self.secrets[name]
        kept = {"SecretString": secret}
        if isinstance(secret, bytes):
            kept = {"SecretBinary": base64.b64encode(secret).decode()}
        found = {
            "ARN": self.arn(name),
            "CreatedDate": 1_768_000_000.123,
            "Name": name,
            "VersionId": "01234567-89ab-4def-8123-456789abcdef",
            "VersionStages": ["AWSCURRENT"],
            **kept,
        }
        return 200, json.dumps(found).encode()

    def _refusal(self, headers: dict[str, str], body: bytes) -> Refusal | bytes | None:
        self.tokens.append(headers.get("x-amz-security-token"))
        if headers["content-type"] != CONTENT_TYPE or headers["x-amz-target"] != TARGET:
            return Refusal("UnknownOperationException")
        if not self._is_signed(headers, body):
            echo = f"The Canonical String was {headers}"
            return Refusal("InvalidSignatureException", 403, echo)
        request = json.loads(body)
        self.requests.append(request)
        assert OPERATION.input_shape is not None
        report = ParamValidator().validate(request, OPERATION.input_shape)
        if report.has_errors():
            return Refusal("InvalidParameterException", message=report.generate_report())
        if self.refusals:
            return self.refusals.pop(0)
        if self.always is not None:
            return self.always
        asked = request["SecretId"]
        if (asked.partition(":secret:")[2].rpartition("-")[0] or asked) not in self.secrets:
            return Refusal("ResourceNotFoundException", message="can't find the specified secret")
        return None

    def _is_signed(self, headers: dict[str, str], body: bytes) -> bool:
        """Whether botocore would have signed it so."""
        given = headers["authorization"]
        parts = dict(part.split("=", 1) for part in given.partition(" ")[2].split(", "))
        region = parts["Credential"].split("/")[2]
        keys = Credentials(self.access_key, self.secret_key)
        signed = {name: headers[name] for name in parts["SignedHeaders"].split(";")}
        request = AWSRequest("POST", f"http://{headers['host']}/", headers=signed, data=body)
        request.context["timestamp"] = headers["x-amz-date"]
        auth = SigV4Auth(keys, SERVICE, region)
        text = auth.string_to_sign(request, auth.canonical_request(request))
        scope = f"{self.access_key}/{headers['x-amz-date'][:8]}/{region}/{SERVICE}/aws4_request"
        wanted = (scope, auth.signature(text, request))
        return (parts["Credential"], parts["Signature"]) == wanted


@contextmanager
def running_secrets_manager(**secrets: str) -> Iterator[SecretsManagerStandIn]:
    """A stand-in on a free port of the loopback address until the end of the block."""
    standin = SecretsManagerStandIn(secrets=dict(secrets))

    class Secrets(Handler):
        def answer(self) -> None:
            status, content = standin.answer(*self.read())
            self.reply(status, content, {"content-type": CONTENT_TYPE})

    with serving(Secrets) as standin.url:
        yield standin
