"""Exports in S3: the same bytes as in a folder, on a server that speaks S3."""

import asyncio
import base64
import json
import uuid
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest

from certificates import make_certificate
from conftest import S3_BUCKET
from export.conftest import ORGS, Company, tree
from free_port import free_port
from pricekeeper.clock import ManualClock, SystemClock
from pricekeeper.errors import ExportError
from pricekeeper.export.files import WrittenFile
from pricekeeper.export.manifest import FileEntry
from pricekeeper.export.s3 import ATTEMPTS_MAX, S3Destination
from pricekeeper.settings import S3Location

NOW_EPOCH = 1_768_000_000


@pytest.fixture
async def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[S3Destination]:
    """A prefix of its own, with the keys that the server knows."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "S3RVER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "S3RVER")
    location = S3Location(S3_BUCKET, f"usage/{uuid.uuid4().hex}")
    opened = S3Destination(location, SystemClock(), endpoint=s3_server)
    yield opened
    await opened.close()


async def test_objects_are_put_read_compared_and_removed(bucket: S3Destination) -> None:
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
    company: Company,
    day: str,
    folder: Path,
    bucket: S3Destination,
) -> None:
    """Every file and the manifest; nothing else is left, there or here."""
    await company.export(folder, day)
    await company.exporter(bucket).export_day(day)
    files = tree(folder)
    assert len(files) == 2 * len(ORGS) + 1
    for path, content in files.items():
        assert await bucket.read(path) == content
    for org_id in ORGS:
        assert await bucket.read(f"day={day}/org={org_id}/.jsonl.part") is None
    assert tree(bucket.scratch) == {}


async def test_a_stopped_export_to_s3_goes_on(
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
        await company.exporter(bucket).export_day(day)
    monkeypatch.setattr(bucket, "put_bytes", put_bytes)
    await bucket.put_bytes(f"totals/day={day}/org={ORGS[1]}/totals.jsonl.gz", b"damaged")
    put_file = bucket.put_file

    async def note_sent(path: str, written: WrittenFile) -> None:
        sent.append(path)
        await put_file(path, written)

    monkeypatch.setattr(bucket, "put_file", note_sent)
    await company.exporter(bucket).export_day(day)
    assert sent == [
        f"{name}/day={day}/org={ORGS[1]}/{name}.jsonl.gz" for name in ("records", "totals")
    ]
    manifest = json.loads(await bucket.read(f"day={day}/manifest.json") or b"")
    for org in manifest["organisations"]:
        for file in org["files"]:
            content = await bucket.read(file["path"]) or b""
            assert sha256(content).hexdigest() == file["sha256"]


async def test_a_bucket_that_is_not_there_is_told(s3_server: str, bucket: S3Destination) -> None:
    """At once, with its name and what the server says."""
    other = S3Destination(S3Location("no-such-bucket"), SystemClock(), endpoint=s3_server)
    with pytest.raises(ExportError, match=r"no-such-bucket failed: NoSuchBucket: .*; create the"):
        await other.put_bytes("x", b"y")
    await other.close()


class ImpatientClock(ManualClock):
    """Counts pauses, and waits for none."""

    pauses = 0

    async def sleep_ms(self, milliseconds: int) -> None:
        del milliseconds
        self.pauses += 1


class Scripted:
    """Answers requests with one status after the other, and notes what each asked for."""

    def __init__(self) -> None:
        self.url = ""
        self.statuses: list[int] = []
        self.seen: list[tuple[str, dict[str, str], bytes]] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        pairs = [line.split(": ", 1) for line in lines[1:] if line]
        headers = {name.lower(): value for name, value in pairs}
        if "expect" in headers:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(int(headers["content-length"]))
        status = self.statuses[len(self.seen)]
        self.seen.append((lines[0], headers, body))
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % status)
        await writer.drain()
        writer.close()


@pytest.fixture(params=["http://localhost", "https://127.0.0.1"])
async def scripted(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scripted]:
    """By a name without TLS, and with TLS: botocore treats both in its own way."""
    scripted, trust = Scripted(), None
    if request.param.startswith("https"):
        certificate = make_certificate(tmp_path, "127.0.0.1")
        trust = certificate.server
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate.certificate_file))
    server = await asyncio.start_server(scripted.answer, "127.0.0.1", 0, ssl=trust)
    scripted.url = f"{request.param}:{server.sockets[0].getsockname()[1]}"
    yield scripted
    server.close()
    await server.wait_closed()


async def test_a_server_that_fails_is_asked_again_and_not_forever(scripted: Scripted) -> None:
    """With a pause before each attempt; the same bytes are sent each time."""
    scripted.statuses = [500, 503, 429, 200] + [500] * ATTEMPTS_MAX
    clock = ImpatientClock(NOW_EPOCH * 1000)
    bucket = S3Destination(S3Location("bucket"), clock, endpoint=scripted.url)
    await bucket.put_bytes("x", b"content")
    assert [body for *_, body in scripted.seen] == [b"content"] * 4
    with pytest.raises(ExportError, match=r"put_object of x in the bucket bucket failed: HTTP 500"):
        await bucket.put_bytes("x", b"content")
    assert len(scripted.seen) == 4 + ATTEMPTS_MAX
    assert clock.pauses == 3 + ATTEMPTS_MAX - 1
    await bucket.close()


async def test_a_server_that_is_not_there_is_told() -> None:
    clock = ImpatientClock(NOW_EPOCH * 1000)
    bucket = S3Destination(S3Location("bucket"), clock, endpoint=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(ExportError, match=r"get_object of x in .* failed: EndpointConnectionError"):
        await bucket.read("x")
    assert clock.pauses == ATTEMPTS_MAX - 1
    await bucket.close()


async def test_a_server_checks_the_hash_of_a_file_and_has_no_names_for_buckets(
    scripted: Scripted,
) -> None:
    """The signature covers the hash of the content, which older servers check, too.

    After a failure the file is sent again from its beginning.
    """
    scripted.statuses, content = [500, 200], b"content" * 1_000
    clock = ImpatientClock(NOW_EPOCH * 1000)
    to = S3Destination(S3Location("name", "a/b"), clock, endpoint=scripted.url)
    file, digest = to.scratch / "file", sha256(content)
    file.write_bytes(content)
    await to.put_file("x=..%2F/y z", WrittenFile(file, 1, len(content), digest.hexdigest()))

    assert not file.exists()
    assert len(scripted.seen) == 2
    for asked, headers, body in scripted.seen:
        assert asked == "PUT /name/a/b/x%3D..%252F/y%20z HTTP/1.1"
        assert body == content
        assert headers["x-amz-content-sha256"] == digest.hexdigest()
        assert headers["x-amz-checksum-sha256"] == base64.b64encode(digest.digest()).decode()
        assert headers["x-amz-meta-sha256"] == digest.hexdigest()
        assert "transfer-encoding" not in headers
        assert "content-encoding" not in headers
    await to.close()
