"""`auto` beside labels that can't take a call, and calls of models that write no text."""

import json
import socket
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from gateway.kinds import (
    BODIES,
    INPUT_USD_MICROS,
    NO_TEXT,
    OUTPUT_USD_MICROS,
    PRICED_UNIT,
    SHORT_TOKENS,
    TEXT,
    write_deployment,
)
from gateway.wire import Received, Upstream, running_upstream, whole
from gateway.world import App, World, claude_body, converse_body, held_by, running_world
from http_fixtures import Reply
from scraping import until

PLENTY = 10**9
COUNTED_TOKENS = 5


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Upstream]]:
    """A service whose upstream keeps what it gets."""
    folder = tmp_path_factory.mktemp("kinds")

    def reply(_: Upstream, peer: socket.socket, request: Received) -> None:
        peer.sendall(_answer(request))

    with (
        running_upstream(reply) as upstream,
        running_world(folder, upstream.url, config_path=write_deployment(folder)) as world,
    ):
        yield world, upstream


def _answer(request: Received) -> bytes:
    """What Bedrock answers: embeddings say what they read in a header alone."""
    if "count-tokens" in request.path:
        return whole(b'{"inputTokens":%d}' % COUNTED_TOKENS)
    if "embed" in request.path:
        return whole(b'{"embedding":[0.5]}', "x-amzn-bedrock-input-token-count: 7")
    if "rerank" in request.path:
        return whole(b'{"results":[{"index":0}]}', "x-amzn-bedrock-input-token-count: 9")
    return whole(b"{}")


class Caller:
    """An app with an ordering, and what the upstream has got of it."""

    def __init__(self, kinds: tuple[World, Upstream], *ordering: str, **settings: Any) -> None:
        self.world, self.upstream = kinds
        quotas = {**dict.fromkeys(ordering, PLENTY), **settings.pop("quotas", {})}
        self.app = App(self.world.api).register(
            model_ordering=list(ordering), quotas=quotas, **settings
        )
        self.upstream.requests.clear()

    def post(self, path: str, body: Any) -> Reply:
        return self.world.post(path, body, self.app)

    def authorize(self, **body: Any) -> Reply:
        body = {"input_tokens": 100, "max_output_tokens": 100, **body}
        path = f"{self.app.path}/authorizations"
        return self.world.api.call("POST", path, body, token=self.app.token)

    def override(self, label: str) -> None:
        path = f"{self.app.path}/model-override"
        assert self.world.api.provision("PUT", path, {"model_label": label}).status == 200

    @property
    def sent(self) -> list[Received]:
        return self.upstream.requests


def label_of(reply: Reply) -> str:
    assert reply.status == 200, reply.data
    return reply.headers["x-pricekeeper-model-label"]


def message_of(reply: Reply) -> str:
    assert reply.status == 400, reply.data
    found: str = reply.json.get("message") or reply.json["error"]["message"]
    return found


CallerOf = Callable[..., Caller]


@pytest.fixture
def caller_of(kinds: tuple[World, Upstream]) -> CallerOf:
    """Makes an app with an ordering."""
    return partial(Caller, kinds)


CONVERSATIONS = [
    ("/model/{}/converse", converse_body()),
    ("/model/{}/converse", converse_body(inferenceConfig={"maxTokens": 5})),
    ("/model/{}/converse-stream", converse_body()),
    ("/openai/v1/chat/completions", {"messages": []}),
    ("/anthropic/v1/messages", {"messages": []}),
]


@pytest.mark.parametrize("label", NO_TEXT)
@pytest.mark.parametrize("stated", [{}, {"inferenceConfig": {"maxTokens": 5}}])
def test_auto_skips_what_writes_no_text(
    caller_of: CallerOf, label: str, stated: dict[str, Any]
) -> None:
    caller = caller_of(label, "premium")
    assert label_of(caller.post("/model/auto/converse", converse_body(**stated))) == "premium"
    (sent,) = caller.sent
    assert sent.json["inferenceConfig"]["maxTokens"] == (5 if stated else 4_096)


def test_the_authorization_says_what_was_skipped_and_why(caller_of: CallerOf) -> None:
    caller = caller_of("vectors", "short", "premium")
    reply = caller.authorize(max_output_tokens=SHORT_TOKENS + 1)
    assert reply.status == 201, reply.data
    vectors, short, premium = reply.json["considered"]
    assert (vectors["label"], vectors["outcome"]) == ("vectors", "SKIPPED")
    assert "writes no text" in vectors["because"]
    assert (short["label"], short["outcome"]) == ("short", "SKIPPED")
    assert f"{SHORT_TOKENS} tokens" in short["because"]
    assert premium == {"label": "premium", "outcome": "CHOSEN"}
    assert reply.json["model"]["reason"] == "NORMAL"


def test_a_call_that_states_no_length_gets_the_longest_answer_of_a_short_model(
    caller_of: CallerOf,
) -> None:
    """It was not asked for more, so the operator's order holds; the same for one that is named."""
    caller = caller_of("short", "premium")
    for model in ("auto", "short"):
        reply = caller.post(f"/model/{model}/converse", converse_body())
        assert label_of(reply) == "short"
        assert caller.sent[-1].json["inferenceConfig"]["maxTokens"] == SHORT_TOKENS


def test_a_length_that_is_asked_for_goes_to_a_model_that_has_it(caller_of: CallerOf) -> None:
    caller = caller_of("short", "premium")
    config: dict[str, Any] = {"inferenceConfig": {"maxTokens": SHORT_TOKENS + 1}}
    reply = caller.post("/model/auto/converse", converse_body(**config))
    assert label_of(reply) == "premium"
    assert caller.sent[-1].json["inferenceConfig"] == config["inferenceConfig"]


def test_a_stated_length_that_no_file_knows_is_still_sent(caller_of: CallerOf) -> None:
    """A deployment file may be older than its models; Bedrock knows."""
    caller = caller_of("short", "vectors")
    config: dict[str, Any] = {"inferenceConfig": {"maxTokens": SHORT_TOKENS + 1}}
    assert label_of(caller.post("/model/auto/converse", converse_body(**config))) == "short"


def test_a_call_that_no_label_can_take_names_each_and_why(caller_of: CallerOf) -> None:
    caller = caller_of("vectors", "short", "canvas")
    config: dict[str, Any] = {"inferenceConfig": {"maxTokens": 100_000}}
    told = message_of(caller.post("/model/auto/converse", converse_body(**config)))
    for part in ("vectors", NO_TEXT["vectors"], "short", str(SHORT_TOKENS), "canvas"):
        assert part in told
    reply = caller.authorize(max_output_tokens=100_000)
    assert (reply.status, reply.json["code"]) == (400, "INVALID_REQUEST")
    assert "vectors" in reply.json["detail"]
    assert "short" in reply.json["detail"]
    assert caller.sent == []
    assert caller.app.unfinished("open") == []


@pytest.mark.parametrize(("path", "body"), CONVERSATIONS)
def test_a_conversation_never_goes_to_an_app_of_vectors(
    caller_of: CallerOf, path: str, body: dict[str, Any]
) -> None:
    caller = caller_of("vectors", "canvas", "cohere-ranks")
    for model in ("auto", "vectors", "canvas", NO_TEXT["cohere-ranks"]):
        named = body if "{}" in path else {**body, "model": model}
        told = message_of(caller.post(path.format(model), named))
        assert model == "auto" or "writes no text" in told
    assert caller.sent == []


def test_a_lowered_answer_is_no_reason_to_send_a_conversation_to_vectors(
    caller_of: CallerOf,
) -> None:
    """Only a caller that names such a label is lowered to no answer."""
    caller = caller_of("vectors")
    assert caller.authorize(allow_lower_max_output=True).status == 400
    assert caller.authorize(model="vectors").status == 400
    named = caller.authorize(model="vectors", allow_lower_max_output=True)
    assert (named.status, named.json["max_output_tokens"]) == (201, 0)
    assert caller.authorize(model="vectors", max_output_tokens=0).status == 201
    assert caller.authorize(max_output_tokens=0).status == 201


def test_a_named_label_falls_back_to_its_kind_alone(caller_of: CallerOf) -> None:
    quotas = {"premium": 1, "vectors": 1}
    caller = caller_of(
        "premium", "vectors", "nova", "cohere-vectors",
        quotas=quotas, quota_enforcement="STRICT",
    )  # fmt: skip
    text = caller.authorize(model="premium", fallback=True)
    assert text.json["model"]["label"] == "nova"
    vectors = caller.authorize(model="vectors", fallback=True, max_output_tokens=0)
    assert vectors.json["model"]["label"] == "cohere-vectors"


def test_a_label_without_fallback_is_the_first_that_can_take_the_call(caller_of: CallerOf) -> None:
    caller = caller_of("vectors", "premium", "nova")
    reply = caller.authorize(fallback=False)
    assert reply.json["model"]["label"] == "premium", reply.data


def test_the_model_to_call_is_one_that_answers(caller_of: CallerOf) -> None:
    caller = caller_of("vectors", "premium", "canvas", "nova", quotas={"premium": 0})

    def selected() -> Any:
        path = f"{caller.app.path}/model-selection?force_check=true"
        return caller.world.api.call("GET", path, token=caller.app.token).json

    assert selected()["recommended_model"]["label"] == "nova"
    assert set(selected()["quota_status"]["models_status"]) == {
        "vectors", "premium", "canvas", "nova",
    }  # fmt: skip


def test_an_app_of_vectors_has_one_to_call(caller_of: CallerOf) -> None:
    caller = caller_of("vectors", "cohere-vectors")
    path = f"{caller.app.path}/model-selection"
    selected = caller.world.api.call("GET", path, token=caller.app.token).json
    assert selected["recommended_model"]["label"] == "vectors"
    reply = caller.post("/model/auto/invoke", BODIES["vectors"])
    assert label_of(reply) == "vectors"
    assert caller.sent[-1].json == BODIES["vectors"]


def test_an_override_to_vectors_is_told(caller_of: CallerOf) -> None:
    caller = caller_of("premium", "vectors")
    caller.override("vectors")
    told = message_of(caller.post("/model/auto/converse", converse_body()))
    assert "override" in told
    assert "writes no text" in told
    assert caller.sent == []


@pytest.mark.parametrize("label", NO_TEXT)
def test_the_body_of_a_model_without_text_is_sent_as_it_is(caller_of: CallerOf, label: str) -> None:
    """By its label and by its id: no longest answer is added, and none is taken out."""
    caller = caller_of(label, "premium")
    for model in (label, NO_TEXT[label].replace("/", "%2F")):
        reply = caller.post(f"/model/{model}/invoke", BODIES[label])
        assert label_of(reply) == label
        assert caller.sent[-1].json == BODIES[label]


WRITTEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "titan": ({"inputText": "x"}, {"textGenerationConfig": {"maxTokenCount": 4_096}}),
    "nova": (
        {"schemaVersion": "messages-v1", "messages": []},
        {"inferenceConfig": {"maxTokens": 4_096}},
    ),
    "cohere": ({"message": "x"}, {"max_tokens": 4_096}),
}


@pytest.mark.parametrize("family", WRITTEN)
def test_auto_of_a_family_takes_the_model_that_writes_text(
    caller_of: CallerOf, family: str
) -> None:
    """Though others of the family come first; they would refuse the length that is written."""
    body, written = WRITTEN[family]
    caller = caller_of(*NO_TEXT, family)
    assert label_of(caller.post("/model/auto/invoke", body)) == family
    assert caller.sent[-1].json == {**body, **written}


def test_auto_of_a_family_whose_labels_write_no_text_is_told_to_name_one(
    caller_of: CallerOf,
) -> None:
    caller = caller_of("vectors", "premium")
    told = message_of(caller.post("/model/auto/invoke", BODIES["vectors"]))
    assert "vectors" in told
    assert "writes no text" in told
    assert "name" in told


@pytest.mark.parametrize(("label", "tokens"), [("vectors", 7), ("cohere-vectors", 7),
                                               ("cohere-ranks", 9), ("ranks", 9)])  # fmt: skip
def test_what_the_header_reports_is_settled(caller_of: CallerOf, label: str, tokens: int) -> None:
    caller = caller_of(label)
    reply = caller.post(f"/model/{label}/invoke", BODIES[label])
    assert reply.headers["x-pricekeeper-cost-usd-micros"] == str(tokens * INPUT_USD_MICROS)
    until(lambda: caller.app.books().held == 0, caller.app.books)
    assert caller.app.books().spent == tokens * INPUT_USD_MICROS


def test_what_nothing_reports_stays_at_the_hold(caller_of: CallerOf) -> None:
    """Not known is never zero."""
    caller = caller_of("canvas")
    reply = caller.post("/model/canvas/invoke", BODIES["canvas"])
    held = held_by(reply)
    assert held > 0
    assert "x-pricekeeper-cost-usd-micros" not in reply.headers
    assert caller.app.books().held == held


FAMILY_PATHS = [
    ("/openai/v1/chat/completions", {"model": "auto", "messages": []}, "gpt", "openai"),
    ("/anthropic/v1/messages", {"model": "auto", "messages": []}, "premium", "anthropic"),
]


@pytest.mark.parametrize(("path", "body", "label", "family"), FAMILY_PATHS)
def test_auto_of_another_clients_words_finds_the_family(
    caller_of: CallerOf, path: str, body: dict[str, Any], label: str, family: str
) -> None:
    caller = caller_of("vectors", "nova", label)
    assert label_of(caller.post(path, body)) == label
    assert caller.sent[-1].json["model"] == TEXT[label]


@pytest.mark.parametrize(("path", "body", "label", "family"), FAMILY_PATHS)
def test_auto_without_the_family_says_what_to_add(
    caller_of: CallerOf, path: str, body: dict[str, Any], label: str, family: str
) -> None:
    caller = caller_of("nova", "vectors")
    told = message_of(caller.post(path, body))
    assert family in told
    assert f"add {label}" in told
    assert "model_ordering" in told
    assert caller.sent == []


def test_auto_of_a_family_whose_quota_is_spent_is_denied_by_that_quota(caller_of: CallerOf) -> None:
    """The label in force is of another family, and says nothing about this one."""
    caller = caller_of("premium", "gpt", quotas={"gpt": 0})
    body = {"model": "auto", "messages": []}
    told = message_of(caller.post("/openai/v1/chat/completions", body))
    assert "gpt" in told
    assert "quota" in told


def test_what_a_skipped_label_has_no_price_for_does_not_matter(caller_of: CallerOf) -> None:
    """Only the labels that may be called need a price for what is billed beside tokens."""
    tool = {"systemTool": {"name": PRICED_UNIT.partition(":")[2]}}
    body = converse_body(toolConfig={"tools": [tool]})
    caller = caller_of("vectors", "nova", "premium")
    assert label_of(caller.post("/model/auto/converse", body)) == "premium"
    told = message_of(caller_of("vectors", "nova").post("/model/auto/converse", body))
    assert f"models.nova.units.{PRICED_UNIT}" in told


def test_a_prompt_is_counted_for_a_model_that_reads_it(caller_of: CallerOf) -> None:
    caller = caller_of("vectors", "nova", "premium")
    body = {"input": {"converse": converse_body()}}
    assert caller.post("/model/auto/count-tokens", body).status == 200
    assert caller.sent[-1].path == "/model/us.amazon.nova-pro-v1%3A0/count-tokens"


def test_a_label_that_is_skipped_does_not_keep_a_prompt_from_being_counted(
    caller_of: CallerOf,
) -> None:
    caller = caller_of("vectors", "nova")
    config: dict[str, Any] = {"inferenceConfig": {"maxTokens": 1}}
    reply = caller.post("/model/auto/converse", converse_body("x" * 5_000, **config))
    assert label_of(reply) == "nova"
    held = COUNTED_TOKENS * INPUT_USD_MICROS + OUTPUT_USD_MICROS
    assert held_by(reply) == held


def test_an_invoke_body_is_counted_by_a_model_of_its_family(caller_of: CallerOf) -> None:
    caller = caller_of("vectors", "nova", "premium")
    prompt = b64encode(json.dumps(claude_body()).encode()).decode()
    body = {"input": {"invokeModel": {"body": prompt}}}
    assert caller.post("/model/auto/count-tokens", body).status == 200
    assert caller.sent[-1].path == "/model/us.anthropic.claude-opus-5-5/count-tokens"
    nowhere = caller_of("vectors", "nova")
    assert "name one" in message_of(nowhere.post("/model/auto/count-tokens", body))
    assert nowhere.sent == []
