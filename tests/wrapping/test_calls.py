"""A wrapped client of boto3: what it is asked, what is sent, and what is counted for it.

The judge is always the same: our ledger equals the bill of the stand-in, priced by the test itself.
"""

import io
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pricekeeper.errors import InvalidValueError
from wrapping.bodies import FAMILIES, body_of, encoded
from wrapping.deployment import FOUNDATION, MODELS, PROFILE, PROFILE_ELSEWHERE
from wrapping.faces import FACES, call
from wrapping.world import MakeProgram, Program, directive, messages

CACHED = {"cache_read": 11, "cache_write_5m": 300, "cache_write_1h": 7_000}
THREADS = 8


def text_of(reply: Any) -> str:
    """What the model said to Converse."""
    text: str = reply["output"]["message"]["content"][0]["text"]
    return text


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_operation_is_counted_for_every_family(
    program: Program, face: str, family: str
) -> None:
    script = {"input_tokens": 1_234, "output_tokens": 56}
    asked: dict[str, Any] = {
        "modelId": MODELS[family],
        "messages": messages(**script, **CACHED),
        "inferenceConfig": {"maxTokens": 100},
    }
    invoked: dict[str, Any] = {"modelId": MODELS[family], "body": encoded(family, 100, **script)}
    assert len(text_of(call(face, program, **asked).reply)) == 56 * 4
    events = call(face, program, "converse_stream", **asked).reply["stream"]
    assert next(iter(events[-1])) == "metadata"
    assert json.loads(call(face, program, "invoke_model", **invoked).reply["body"])
    reply = call(face, program, "invoke_model_with_response_stream", **invoked).reply
    assert "amazon-bedrock-invocationMetrics" in json.loads(reply["body"][-1]["chunk"]["bytes"])
    assert len(program.ledger.entries) == 4
    program.assert_exact()


def test_an_invoked_body_may_be_read_in_parts(program: Program) -> None:
    body = program.client().invoke_model(modelId="nova", body=encoded("nova"))["body"]
    first, rest = body.read(10), body.read()
    assert json.loads(first + rest)
    assert body.read() == b""
    program.assert_exact()


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("family", ["premium", "gpt"])
def test_invoke_counts_tokens_of_the_cache_by_their_own_prices(
    program: Program, family: str, streams: bool
) -> None:
    cached = CACHED if family == "premium" else {"cache_read": 900}
    body = encoded(family, 100, input_tokens=1_000, output_tokens=56, **cached)
    bedrock = program.client()
    if streams:
        list(bedrock.invoke_model_with_response_stream(modelId=family, body=body)["body"])
    else:
        bedrock.invoke_model(modelId=family, body=body)
    program.assert_exact()


@pytest.mark.parametrize(
    ("asked", "called"),
    [
        ("auto", MODELS["premium"]),
        ("standard", MODELS["standard"]),
        (MODELS["standard"], MODELS["standard"]),
        (MODELS["nova"], MODELS["nova"]),
        ("profile", PROFILE),
        (PROFILE, PROFILE),
        (PROFILE_ELSEWHERE, PROFILE_ELSEWHERE),
        (FOUNDATION, FOUNDATION),
        ("eu.anthropic.claude-opus-5-5", "eu.anthropic.claude-opus-5-5"),
    ],
)
def test_labels_become_ids_and_ids_stay_what_they_are(
    program: Program, asked: str, called: str
) -> None:
    """An id in the deployment file is called in the program's spelling, which may matter to AWS."""
    for face in FACES:
        for operation in ("converse", "converse_stream"):
            call(face, program, operation, modelId=asked, messages=messages())
    assert [entry.model_id for entry in program.ledger.entries] == [called] * 4
    program.assert_exact()


def test_a_call_that_falls_back_calls_the_other_model(make_program: MakeProgram) -> None:
    quotas = {**dict.fromkeys(MODELS, 10**9), "premium": 1}
    program = make_program(org={"quotas": quotas, "quota_enforcement": "STRICT"})
    bedrock = program.client(fallback=True)
    bedrock.converse(modelId="eu.anthropic.claude-opus-5-5", messages=messages())
    assert program.ledger.entries[0].model_id == MODELS["standard"]
    program.assert_exact()


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("served", ["flex", "default", "priority"])
def test_the_tier_that_served_is_what_counts(program: Program, face: str, served: str) -> None:
    script = {"service_tier": served, "output_tokens": 40}
    tagged: dict[str, Any] = {"modelId": "nova", "requestMetadata": {"team": "chat"}}
    asked = {**tagged, "messages": messages(**script), "serviceTier": {"type": "priority"}}
    for operation in ("converse", "converse_stream"):
        assert call(face, program, operation, **asked).error is None
    invoke: dict[str, Any] = {"modelId": "nova", "body": encoded("nova", **script)}
    for operation in ("invoke_model", "invoke_model_with_response_stream"):
        assert call(face, program, operation, **invoke, serviceTier="priority").error is None
    assert [entry.service_tier for entry in program.ledger.entries] == [served] * 4
    program.assert_exact()
    tags = [record["tags"] for record in program.records()]
    assert (tags.count({"team": "chat"}), tags.count({})) == (2, 2)


def test_a_dearer_tier_is_held_at_its_price(make_program: MakeProgram) -> None:
    """A budget that fits the call only at the default tier denies it at another one."""
    program = make_program(limit_usd_micros=3_000)
    bedrock = program.client()
    asked = {"modelId": "premium", "inferenceConfig": {"maxTokens": 300}}
    bedrock.converse(**asked, messages=messages())
    program.assert_exact()
    with pytest.raises(bedrock.exceptions.ServiceQuotaExceededException):
        bedrock.converse(**asked, messages=messages(), serviceTier={"type": "priority"})
    body = {**body_of("gpt", 250), "service_tier": "priority"}
    with pytest.raises(bedrock.exceptions.ServiceQuotaExceededException):
        bedrock.invoke_model(modelId="gpt", body=json.dumps(body))


def test_request_metadata_becomes_the_tags_of_the_record(program: Program) -> None:
    bedrock = program.client(tags={"team": "search", "stage": "test"})
    metadata = {"team": "chat", "user": "me"}
    bedrock.converse(modelId="auto", messages=messages(), requestMetadata=metadata)
    bedrock.invoke_model(
        modelId="premium", body=encoded("premium"), requestMetadata=json.dumps(metadata)
    )
    program.assert_exact()
    for record in program.records():
        assert record["tags"] == {"team": "chat", "stage": "test", "user": "me"}
    assert [dict(entry.request_metadata) for entry in program.ledger.entries] == [metadata] * 2


def test_a_tag_is_kept_or_the_call_is_refused(program: Program) -> None:
    bedrock = program.client(tags={"team": "search"})
    longest = {"n" * 256: "long name", "long": "v" * 256}
    many = {f"key{index:02}": "x" for index in range(13)}
    asked: dict[str, Any] = {"modelId": "auto", "messages": messages()}
    bedrock.converse(**asked, requestMetadata={**longest, **many})
    program.assert_exact()
    assert program.records()[0]["tags"] == {"team": "search", **longest, **many}
    for refused in ({"wide": "ü" * 200}, {**longest, **many, "one": "more"}):
        with pytest.raises(bedrock.exceptions.ValidationException, match="tags"):
            bedrock.converse(**asked, requestMetadata=refused)
    program.assert_exact()
    assert len(program.ledger.entries) == 1


def test_tags_of_a_client_are_checked_when_it_is_wrapped(program: Program) -> None:
    with pytest.raises(InvalidValueError, match=r"tags\.team"):
        program.client(tags={"team": "v" * 257})


class TestTheLongestAnswer:
    """The model is never allowed more than ``maxTokens``, which is what is held."""

    def test_one_that_is_said_is_sent_as_it_is(self, program: Program) -> None:
        """The model would write more."""
        bedrock = program.client()
        bedrock.converse(
            modelId="auto",
            messages=messages(output_tokens=500),
            inferenceConfig={"maxTokens": 7, "temperature": 0.5},
        )
        assert program.ledger.totals.output_tokens == 7
        program.assert_exact()

    @pytest.mark.parametrize("family", FAMILIES)
    def test_one_that_is_not_said_is_the_keepers(
        self, make_program: MakeProgram, family: str
    ) -> None:
        """Each family has its own member for it."""
        program = make_program()
        bedrock = program.client()
        script = {"output_tokens": 9_000}
        bedrock.converse(modelId=family, messages=messages(**script))
        assert program.ledger.totals.output_tokens == 4_096
        if family != "premium":  # whose validation says that it is missing
            bedrock.invoke_model(modelId=family, body=encoded(family, None, **script))
            assert program.ledger.totals.output_tokens == 2 * 4_096
        program.assert_exact()

    @pytest.mark.parametrize("family", FAMILIES)
    def test_one_that_the_budget_can_hold_only_in_part_is_lowered(
        self, make_program: MakeProgram, family: str
    ) -> None:
        program = make_program(limit_usd_micros=4_000)
        bedrock = program.client(allow_lower_max_output=True, min_output_tokens=20)
        script = {"output_tokens": 9_000, "input_tokens": 1}
        bedrock.invoke_model(modelId=family, body=encoded(family, 9_000, **script))
        assert 20 <= program.ledger.totals.output_tokens < 600
        program.assert_exact()
        before = program.attempts()
        with pytest.raises(bedrock.exceptions.ServiceQuotaExceededException):
            bedrock.converse(
                modelId=family, messages=messages("x" * 4_000), inferenceConfig={"maxTokens": 9_000}
            )
        assert program.attempts() == before

    @pytest.mark.parametrize("family", FAMILIES)
    def test_one_above_the_cap_is_lowered_if_that_is_allowed(
        self, make_program: MakeProgram, family: str
    ) -> None:
        program = make_program()
        program.change(max_output_tokens_cap=30)
        asked = {"modelId": family, "body": encoded(family, 9_000, output_tokens=9_000)}
        bedrock = program.client()
        with pytest.raises(bedrock.exceptions.ValidationException, match="max_output_tokens_cap"):
            bedrock.invoke_model(**asked)
        assert program.attempts() == 0
        program.client(allow_lower_max_output=True).invoke_model(**asked)
        assert program.ledger.totals.output_tokens == 30
        program.assert_exact()

    def test_thinking_is_left_its_room(self, make_program: MakeProgram) -> None:
        """Never lowered to a body that Claude refuses."""
        program = make_program(limit_usd_micros=40_000)
        bedrock = program.client(allow_lower_max_output=True)
        script = {"output_tokens": 9_000, "input_tokens": 1}
        body = {**body_of("premium", 9_000, **script), "thinking": {"budget_tokens": 1_024}}
        asked = {"modelId": "premium", "body": json.dumps(body)}
        bedrock.invoke_model(**asked)
        assert 1_024 < program.ledger.totals.output_tokens < 9_000
        program.assert_exact()
        program.change(10**9, max_output_tokens_cap=1_024)
        with pytest.raises(bedrock.exceptions.ValidationException, match="max_output_tokens_cap"):
            bedrock.invoke_model(**asked)
        program.change(10**9, max_output_tokens_cap=1_025)
        bedrock.invoke_model(**asked)
        assert program.ledger.entries[-1].tokens.output_tokens == 1_025
        program.assert_exact()

    def test_one_under_another_name_is_written_where_the_model_reads_it(
        self, program: Program
    ) -> None:
        bedrock = program.client()
        body = {**body_of("nova", None, output_tokens=9_000), "max_tokens": 5}
        bedrock.invoke_model(modelId=MODELS["nova"], body=json.dumps(body))
        asked = {"modelId": "nova", "messages": messages(output_tokens=9_000)}
        bedrock.converse(**asked, additionalModelRequestFields={"max_tokens": 5})
        assert [entry.tokens.output_tokens for entry in program.ledger.entries] == [5] * 2
        program.assert_exact()

    def test_both_names_of_openai_are_lowered(self, make_program: MakeProgram) -> None:
        program = make_program(limit_usd_micros=4_000)
        bedrock = program.client(allow_lower_max_output=True)
        body = {**body_of("gpt", 9_000, output_tokens=9_000), "max_tokens": 9_000}
        bedrock.invoke_model(modelId="gpt", body=json.dumps(body))
        program.assert_exact()
        assert program.ledger.totals.output_tokens < 600


BODIES: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "bytearray": bytearray,
    "str": bytes.decode,
    "file": io.BytesIO,
}


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("max_tokens", [None, 33])
def test_a_body_may_be_bytes_text_or_a_file(
    program: Program, kind: str, max_tokens: int | None
) -> None:
    body = BODIES[kind](encoded("nova", max_tokens, input_tokens=77, output_tokens=5_000))
    program.client().invoke_model(modelId="nova", body=body)
    expected = 4_096 if max_tokens is None else max_tokens
    assert program.ledger.totals.output_tokens == expected
    program.assert_exact()


@pytest.mark.parametrize(
    "body",
    [b"", b"no json", b"[1]", b'"text"', b"[" * 100_000, b"\xff\xfe",
     b'\xef\xbb\xbf{"max_tokens":64000}', '{"max_tokens":64000}'.encode("utf-16")],
)  # fmt: skip
def test_a_body_that_is_no_json_of_ours_is_refused(program: Program, body: bytes) -> None:
    """Bedrock may read what we can't, and no hold would cover the answer."""
    bedrock = program.client()
    with pytest.raises(bedrock.exceptions.ValidationException, match="must be a JSON object"):
        bedrock.invoke_model(modelId="premium", body=body)
    program.assert_nothing()
    assert program.attempts() == 0


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"guardrailConfig": {"guardrailIdentifier": "g", "guardrailVersion": "1"}},
         "models.premium.units.guardrail"),
        ({"toolConfig": {"tools": [{"systemTool": {"name": "nova_grounding"}}]}},
         "models.premium.units.tool_call:nova_grounding"),
        ({"additionalModelRequestFields": {"anthropic_beta": ["context-9m-2027-01-01"]}},
         "models.premium.context_window_tokens"),
    ],
)  # fmt: skip
def test_what_the_deployment_file_has_no_price_for_is_refused(
    program: Program, more: dict[str, Any], told: str
) -> None:
    """As by the gateway, with the line that the file lacks."""
    bedrock = program.client()
    with pytest.raises(bedrock.exceptions.ClientError, match=told):
        bedrock.converse(modelId="premium", messages=messages(), **more)
    program.assert_nothing()
    assert program.attempts() == 0


def test_pictures_and_documents_are_held_for_by_their_own_bounds(make_program: MakeProgram) -> None:
    program = make_program(limit_usd_micros=40_000)
    picture = {"image": {"format": "png", "source": {"bytes": b"\x89PNG" + bytes(1_000_000)}}}
    note = {"document": {"format": "txt", "name": "note", "source": {"bytes": b"words " * 50}}}
    said = {"text": directive(input_tokens=3_000, output_tokens=10)}
    program.client().converse(
        modelId="premium",
        messages=[{"role": "user", "content": [picture, note, said]}],
        inferenceConfig={"maxTokens": 10},
    )
    program.assert_exact()


def test_a_call_above_its_hold_is_counted_in_full(program: Program) -> None:
    """A bound that was too low does not limit the bill."""
    program.client().converse(
        modelId="premium",
        messages=messages(input_tokens=90_000, cache_write_1h=5_000),
        inferenceConfig={"maxTokens": 10},
    )
    program.assert_exact()


@pytest.mark.parametrize("operation", ["converse", "converse_stream", "invoke", "invoke_stream"])
def test_a_reply_that_does_not_say_what_it_used_stays_held(
    program: Program, operation: str
) -> None:
    """Unknown is never zero: the caller has its answer, and the hold is marked."""
    bedrock = program.client()
    asked = {"modelId": "premium", "messages": messages(no_usage=True)}
    body = {"modelId": "premium", "body": encoded("premium", no_usage=True)}
    match operation:
        case "converse":
            assert text_of(bedrock.converse(**asked))
        case "converse_stream":
            assert list(bedrock.converse_stream(**asked)["stream"])
        case "invoke":
            assert bedrock.invoke_model(**body)["body"].read()
        case _:
            assert list(bedrock.invoke_model_with_response_stream(**body)["body"])
    program.assert_marked(1)


def test_eight_threads_share_one_client(program: Program) -> None:
    bedrock = program.client()
    ready = threading.Barrier(THREADS)

    def work(number: int) -> None:
        ready.wait()
        for step in range(4):
            script = {"input_tokens": 10 * number + step, "output_tokens": number + 1}
            asked = {"modelId": "auto", "messages": messages(**script)}
            body = {"modelId": "standard", "body": encoded("standard", **script)}
            bedrock.converse(**asked)
            list(bedrock.converse_stream(**asked)["stream"])
            bedrock.invoke_model(**body)["body"].read()
            stream = bedrock.invoke_model_with_response_stream(**body)["body"]
            next(iter(stream))
            del stream

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(work, range(THREADS)))
    assert len(program.ledger.entries) == THREADS * 16
    program.assert_exact()
