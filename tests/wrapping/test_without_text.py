"""A wrapped client that calls embedding, reranking and image models."""

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from pricekeeper import PriceKeeper, wrap
from pricekeeper.bedrock import judge
from pricekeeper.client.errors import UnavailableError
from wrapping.deployment import ALL, PRICES, WITHOUT_TEXT
from wrapping.faces import FACES, call
from wrapping.world import PLENTY_USD_MICROS, MakeProgram, Program, directive, messages

BODIES: dict[str, dict[str, Any]] = {
    "vectors": {"inputText": directive(input_tokens=321), "dimensions": 256},
    "cohere-vectors": {"texts": [directive(input_tokens=321)], "input_type": "search_query"},
    "ranks": {
        "query": directive(input_tokens=321),
        "documents": ["a"],
        "api_version": 2,
        "max_tokens_per_doc": 512,
    },
    "amazon-ranks": {"query": directive(input_tokens=321), "documents": [{"text": "a"}]},
}
PICTURE = {"taskType": "TEXT_IMAGE", "textToImageParams": {"text": "hello"}}


@pytest.fixture
def program(make_program: MakeProgram) -> Program:
    labels = [*WITHOUT_TEXT, "premium"]
    quotas = dict.fromkeys(labels, PLENTY_USD_MICROS)
    return make_program(org={"model_ordering": labels, "quotas": quotas})


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("label", BODIES)
def test_what_is_reported_is_counted(program: Program, face: str, label: str) -> None:
    for model in (label, ALL[label]):
        body = json.dumps(BODIES[label])
        made = call(face, program, "invoke_model", modelId=model, body=body)
        assert made.error is None
    assert [entry.tokens.output_tokens for entry in program.ledger.entries] == [0, 0]
    assert [entry.tokens.input_tokens for entry in program.ledger.entries] == [321, 321]
    program.assert_exact()


@pytest.mark.parametrize("options", [{"allow_lower_max_output": True, "min_output_tokens": 200},
                                     {"min_output_tokens": 0}, {}])  # fmt: skip
def test_options_for_text_do_not_matter(program: Program, options: dict[str, Any]) -> None:
    client = program.client(**options)
    client.invoke_model(modelId="vectors", body=json.dumps(BODIES["vectors"]))
    program.assert_exact()


@pytest.mark.parametrize("label", ["vectors", "pictures"])
def test_what_nothing_reports_stays_at_the_hold(program: Program, label: str) -> None:
    """Unknown is never zero."""
    silent = {"inputText": directive(input_tokens=5, no_usage=True)}
    body = silent if label == "vectors" else PICTURE
    program.client().invoke_model(modelId=label, body=json.dumps(body))
    program.assert_marked(1)


@pytest.mark.parametrize("label", ["vectors", "pictures"])
@pytest.mark.parametrize("stated", [{}, {"inferenceConfig": {"maxTokens": 5}}])
def test_a_conversation_is_refused_before_it_is_sent(
    program: Program, label: str, stated: dict[str, Any]
) -> None:
    for model in (label, ALL[label]):
        with pytest.raises(ClientError, match="writes no text") as error:
            program.client().converse(modelId=model, messages=messages(), **stated)
        assert error.value.response["Error"]["Code"] == "ValidationException"
    assert program.attempts() == 0
    program.assert_nothing()


def test_auto_skips_them(program: Program) -> None:
    program.client().converse(modelId="auto", messages=messages())
    (entry,) = program.ledger.entries
    assert entry.model_id == ALL["image-captions"]
    program.assert_exact()


@pytest.mark.parametrize("stated", [None, 50])
def test_a_label_says_nothing_about_its_model(program: Program, stated: int | None) -> None:
    """A model with text is held for its answer, with any label."""
    config = {} if stated is None else {"inferenceConfig": {"maxTokens": stated}}
    said = [{"role": "user", "content": [{"text": directive(output_tokens=9_000)}]}]
    body = {"schemaVersion": "messages-v1", "messages": said, **config}
    program.client().invoke_model(modelId="image-captions", body=json.dumps(body))
    (entry,) = program.ledger.entries
    assert entry.tokens.output_tokens == (stated or 4_096)
    program.assert_exact()


def test_without_the_service_a_known_model_is_called_as_it_is(program: Program) -> None:
    settings = {**program.credentials, "url": "http://127.0.0.1:9", "on_unavailable": "allow"}
    models = {"auto": ALL["vectors"], "vectors": ALL["vectors"]}
    with PriceKeeper(**settings, unavailable_models=models) as keeper:
        client = wrap(program.bare_client(retries={"total_max_attempts": 1}), keeper)
        for model in ("vectors", ALL["vectors"]):
            client.invoke_model(modelId=model, body=json.dumps(BODIES["vectors"]))
        assert len(program.ledger.entries) == 2
        for model in ("auto", "vectors", ALL["vectors"]):
            with pytest.raises(ClientError):
                client.converse(modelId=model, messages=messages())
        assert len(program.ledger.entries) == 2
        with pytest.raises(UnavailableError):
            keeper.authorize(100, 100, model="auto")
        assert keeper.untold == 3  # both, and that nothing is to be held for the first question


def test_a_model_that_writes_text_is_never_granted_no_output(make_program: MakeProgram) -> None:
    """Otherwise its body would be sent without a longest answer."""
    prompt = {"messages": messages()}
    prompt_micros = judge(prompt, None).bounds.input_tokens * PRICES["premium"]["input"] // 10**6
    program = make_program(limit_usd_micros=prompt_micros + 2)  # less than a token of output costs
    client = program.client(allow_lower_max_output=True, min_output_tokens=0)
    with pytest.raises(ClientError) as error:
        client.converse(modelId="premium", **prompt)
    assert error.value.response["Error"]["Code"] == "ServiceQuotaExceededException"
    assert program.attempts() == 0
