"""What answers in place of Amazon SNS, on loopback, and checks what it is sent."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from aiohttp import web
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.model import ServiceModel
from botocore.parsers import create_parser
from botocore.session import Session

TOPIC = "arn:aws:sns:eu-central-1:123456789012:alerts"
PUBLISH = ServiceModel(Session().get_service_data("sns"), "sns").operation_model("Publish")
ACCESS_KEY, SECRET_KEY = "AKIDFORTESTSONLY", "secretForTestsOnly"


@dataclass
class TopicsStandIn:
    """What answers in place of SNS, with its query protocol; botocore checks the signatures."""

    url: str = ""
    error: tuple[int, str] | None = None
    requests: list[dict[str, str]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """What a service needs in its environment to publish here."""
        return {
            "AWS_ENDPOINT_URL_SNS": self.url,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        }

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        if not _is_signed({name.lower(): value for name, value in request.headers.items()}, body):
            return self._refuse(403, "SignatureDoesNotMatch")
        self.requests.append(dict(parse_qsl(body.decode(), strict_parsing=True)))
        if self.error is not None:
            return self._refuse(*self.error)
        answer = (
            '<PublishResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><PublishResult>'
            "<MessageId>567910cd-659e-55d4-8ccb-5aaf14679dc0</MessageId></PublishResult>"
            "<ResponseMetadata><RequestId>d74b8436</RequestId></ResponseMetadata></PublishResponse>"
        )
        return web.Response(text=answer, content_type="text/xml")

    def _refuse(self, status: int, code: str) -> web.Response:
        answer = (
            '<ErrorResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><Error><Type>Sender'
            f"</Type><Code>{code}</Code><Message>{SECRET_KEY}</Message></Error></ErrorResponse>"
        )
        assert PUBLISH.output_shape is not None
        parsed = create_parser("query").parse(
            {"body": answer.encode(), "headers": {}, "status_code": status}, PUBLISH.output_shape
        )
        assert parsed["Error"]["Code"] == code
        return web.Response(status=status, text=answer, content_type="text/xml")


def _is_signed(headers: dict[str, str], body: bytes) -> bool:
    parts = dict(re.findall(r"(\w+)=([^, ]+)", headers["authorization"]))
    signed = {name: headers[name] for name in parts["SignedHeaders"].split(";")}
    request = AWSRequest("POST", f"http://{headers['host']}/", headers=signed, data=body)
    request.context["timestamp"] = headers["x-amz-date"]
    auth = SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "sns", "eu-central-1")
    text = auth.string_to_sign(request, auth.canonical_request(request))
    return bool(parts["Signature"] == auth.signature(text, request))


@asynccontextmanager
async def open_topics() -> AsyncIterator[TopicsStandIn]:
    standin = TopicsStandIn()
    app = web.Application()
    app.router.add_post("/", standin.take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    standin.url = f"http://127.0.0.1:{port}"
    try:
        yield standin
    finally:
        await runner.cleanup()
