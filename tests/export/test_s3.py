"""Exports in S3: the same bytes as in a folder, on a server that speaks S3.

That server looks at the access key and does not compute signatures of version 4. So these are held
equal to botocore's, header by header.
"""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from conftest import S3_BUCKET
from export.conftest import ORGS, Company, exported, tree
from free_port import free_port
from pricekeeper.clock import ManualClock, SystemClock
from pricekeeper.errors import ExportError
from pricekeeper.export import Exporter
from pricekeeper.export.files import WrittenFile
from pricekeeper.export.manifest import FileEntry
from pricekeeper.export.s3 import ATTEMPTS_MAX, S3Destination, encoded_path
from pricekeeper.settings import S3Location
from pricekeeper.sigv4 import AwsKeys, signed_headers
from pricekeeper.storage import Store
from stores import ShiftedClock

NOW_EPOCH = 1_768_000_000


@pytest.fixture
async def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[S3Destination]:
    """A prefix of its own, with the keys that the server knows."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "S3RVER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "S3RVER")
    location = S3Location(S3_BUCKET, f"usage/{uuid.uuid4().hex}")
    opened = await S3Destination.open(location, SystemClock(), endpoint=s3_server)
    yield opened
    await opened.close()


async def test_objects_are_put_read_compared_and_removed(bucket: S3Destination) -> None:
    """By the hash that they carry."""
    content = "ümlaut".encode()
    path = "day=20260101/org=..%2Fx/a b.json"
    assert await bucket.read(path) is None
    await bucket.put_bytes(path, content)
    assert await bucket.read(path) == content
    entry = FileEntry(path, 1, len(content), sha256(content).hexdigest())
    assert await bucket.has(entry)
    assert not await bucket.has(FileEntry(path, 1, len(content), sha256(b"").hexdigest()))
    assert not await bucket.has(FileEntry(path, 1, 1, entry.sha256))
    assert not await bucket.has(FileEntry("nothing", 1, 1, entry.sha256))
    for _ in range(2):
        await bucket.remove(path)
    assert await bucket.read(path) is None


async def test_a_day_in_s3_is_the_day_in_a_folder(
    store: Store,
    clock: ShiftedClock,
    company: Company,
    day: str,
    folder: Path,
    bucket: S3Destination,
) -> None:
    """Every file and the manifest; nothing else is left, there or here."""
    await exported(store, clock, folder, day)
    await Exporter(store, clock, bucket).export_day(day)
    files = tree(folder)
    assert len(files) == 2 * len(ORGS) + 1
    for path, content in files.items():
        assert await bucket.read(path) == content
    for org_id in ORGS:
        assert await bucket.read(f"day={day}/org={org_id}/.jsonl.part") is None
    assert tree(bucket.scratch) == {}


async def test_a_stopped_export_to_s3_goes_on(
    store: Store,
    clock: ShiftedClock,
    company: Company,
    day: str,
    bucket: S3Destination,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is there, by its hash, is not sent again."""
    put_bytes, sent = bucket.put_bytes, list[str]()

    async def stop_at_the_manifest(path: str, content: bytes) -> None:
        if path.endswith("manifest.json"):
            raise asyncio.CancelledError
        await put_bytes(path, content)

    monkeypatch.setattr(bucket, "put_bytes", stop_at_the_manifest)
    with pytest.raises(asyncio.CancelledError):
        await Exporter(store, clock, bucket).export_day(day)
    monkeypatch.setattr(bucket, "put_bytes", put_bytes)
    await bucket.put_bytes(f"day={day}/org={ORGS[1]}/totals.jsonl.gz", b"damaged")
    put_file = bucket.put_file

    async def note_sent(path: str, written: WrittenFile) -> None:
        sent.append(path)
        await put_file(path, written)

    monkeypatch.setattr(bucket, "put_file", note_sent)
    await Exporter(store, clock, bucket).export_day(day)
    assert sent == [f"day={day}/org={ORGS[1]}/{name}.jsonl.gz" for name in ("records", "totals")]
    manifest = json.loads(await bucket.read(f"day={day}/manifest.json") or b"")
    for org in manifest["organisations"]:
        for file in org["files"]:
            content = await bucket.read(file["path"]) or b""
            assert sha256(content).hexdigest() == file["sha256"]


@pytest.mark.parametrize("token", [None, "a-session-token/with=signs"])
@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD", "DELETE"])
def test_requests_are_signed_as_botocore_signs_them(
    method: str, token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Header by header, for a path with every sign that ours may have."""
    path = encoded_path("bucket", "usage", "day=20260101/org=..%2Fx y~/records.jsonl.gz")
    digest = sha256(b"content").hexdigest()
    own = {"x-amz-meta-sha256": digest, "content-length": "7"} if method == "PUT" else {}
    found = signed_headers(
        AwsKeys("AKID", "secret", token),
        service="s3",
        method=method,
        host="127.0.0.1:9000",
        path=path,
        region="eu-central-1",
        content_sha256=digest,
        now_epoch=NOW_EPOCH,
        headers=own,
    )
    request = AWSRequest(
        method,
        f"http://127.0.0.1:9000{path}",
        headers={**own, "X-Amz-Content-SHA256": digest},
        data=b"content" if method == "PUT" else b"",
    )
    stamped = datetime.fromtimestamp(NOW_EPOCH, UTC)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda **_: stamped)
    signer = S3SigV4Auth(Credentials("AKID", "secret", token), "s3", "eu-central-1")
    monkeypatch.setattr(signer, "_should_sha256_sign_payload", lambda _: True)
    monkeypatch.setattr(signer, "payload", lambda _: digest)
    signer.add_auth(request)
    assert found["authorization"] == request.headers["Authorization"]
    assert found["x-amz-date"] == request.headers["X-Amz-Date"]
    assert found.get("x-amz-security-token") == request.headers.get("X-Amz-Security-Token")


async def test_a_bucket_that_is_not_there_is_told(s3_server: str, bucket: S3Destination) -> None:
    """At once, with its name and what the server says."""
    other = await S3Destination.open(
        S3Location("no-such-bucket"), SystemClock(), endpoint=s3_server
    )
    with pytest.raises(ExportError, match=r"no-such-bucket.*was refused: HTTP 404.*NoSuchBucket"):
        await other.put_bytes("x", b"y")
    await other.close()


async def test_a_server_that_fails_is_asked_again_and_not_forever() -> None:
    """With a pause before each attempt; the same bytes are sent each time."""
    seen: list[bytes] = []
    answers = [500, 503, 429, 200]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        seen.append(await reader.readexactly(size))
        status = answers[len(seen) - 1] if len(seen) <= len(answers) else 500
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % status)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    clock = ImpatientClock(NOW_EPOCH * 1000)
    bucket = await S3Destination.open(
        S3Location("bucket"), clock, endpoint=f"http://127.0.0.1:{port}"
    )
    await bucket.put_bytes("x", b"content")
    assert seen == [b"content"] * 4
    with pytest.raises(ExportError, match=r"PUT of x at .* failed: HTTP 500"):
        await bucket.put_bytes("x", b"content")
    assert len(seen) == 4 + ATTEMPTS_MAX
    assert clock.pauses == 3 + ATTEMPTS_MAX - 1
    await bucket.close()
    server.close()
    await server.wait_closed()


async def test_a_server_that_is_not_there_is_told() -> None:
    """After so many attempts."""
    clock = ImpatientClock(NOW_EPOCH * 1000)
    bucket = await S3Destination.open(
        S3Location("bucket"), clock, endpoint=f"http://127.0.0.1:{free_port()}"
    )
    with pytest.raises(ExportError, match=r"GET of x at .* failed: ClientConnector"):
        await bucket.read("x")
    assert clock.pauses == ATTEMPTS_MAX - 1
    await bucket.close()


async def test_aws_itself_has_the_bucket_in_the_host_name() -> None:
    """Unless the bucket's name has a dot, which no certificate covers."""
    for name, host in (
        ("bucket", "bucket.s3.us-east-1.amazonaws.com"),
        ("my.bucket", "s3.us-east-1.amazonaws.com"),
    ):
        aws = await S3Destination.open(S3Location(name, "p"), SystemClock())
        assert aws._host in (host, host.replace(".us-east-1", ""))
        assert aws._root == (["p"] if name == "bucket" else [name, "p"])
        await aws.close()


class ImpatientClock(ManualClock):
    """Counts pauses, and waits for none."""

    pauses = 0

    async def sleep_ms(self, milliseconds: int) -> None:
        del milliseconds
        self.pauses += 1
