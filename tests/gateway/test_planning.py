"""Which model a call goes to, how long its answer may be, and what it is tagged with."""

import json
from typing import Any

import pytest

from gateway.conftest import ScriptedWorld, SentOn
from gateway.models import BY_LABEL, PRICED_UNIT
from gateway.wire import sending, whole
from gateway.world import App, World, claude_body, converse_body, directive, held_by
from pricekeeper.bedrock.reading import VALUES_MAX
from pricekeeper.bedrock.usage import LATENCY_HEADER
from scraping import until

ORDERING = ["nova", "premium", "economy", "gpt"]


def mixed_app(world: World, **changes: Any) -> App:
    """An app whose labels are of three families, the first of them Nova's."""
    quotas = {**dict.fromkeys(ORDERING, 10**9), **changes.pop("quotas", {})}
    return App(world.api).register(model_ordering=ORDERING, quotas=quotas, **changes)


def called(world: World) -> list[str]:
    """The labels of the models that ran."""
    by_id = {model.model_id: model.label for model in BY_LABEL.values()}
    return [by_id[entry.model_id] for entry in world.ledger.entries]


INVOKED = [
    (claude_body(), "premium"),
    ({"schemaVersion": "messages-v1", "messages": converse_body()["messages"]}, "nova"),
    ({"messages": [{"role": "user", "content": "hello"}], "max_completion_tokens": 50}, "gpt"),
]


@pytest.mark.parametrize(("body", "label"), INVOKED)
@pytest.mark.parametrize("operation", ["invoke", "invoke-with-response-stream"])
def test_auto_takes_a_label_of_the_bodys_family(
    world: World, operation: str, body: dict[str, Any], label: str
) -> None:
    app = mixed_app(world)
    assert world.post(f"/model/auto/{operation}", body, app).status == 200
    assert called(world) == [label]
    world.assert_equal(app)


def test_auto_of_a_family_that_the_app_has_not_is_refused(world: World, app: App) -> None:
    mixed = mixed_app(world)
    reply = world.post("/model/auto/invoke", {"inputText": "hello"}, mixed)
    assert reply.status == 400
    assert "titan" in reply.json["message"]
    assert world.ledger.attempts == {}


def test_converse_falls_back_to_any_label(world: World) -> None:
    """The first whose quota has room; and its model id is the one that is called."""
    app = mixed_app(world, quotas={"nova": 1}, quota_enforcement="STRICT")
    reply = world.converse(app, "auto")
    assert reply.headers["x-pricekeeper-model-label"] == "premium"
    assert called(world) == ["premium"]
    world.assert_equal(app)


def test_invoke_falls_back_within_its_family_alone(world: World) -> None:
    """Past a label of another family that has room."""
    app = mixed_app(world, quotas={"premium": 1}, quota_enforcement="STRICT")
    assert world.post("/model/auto/invoke", claude_body(), app).status == 200
    assert called(world) == ["economy"]
    world.assert_equal(app)


def test_invoke_is_denied_if_its_family_has_no_room(world: World) -> None:
    """The denial names what would admit it; a label of another family would not."""
    quotas = {"premium": 1, "economy": 1}
    app = mixed_app(world, quotas=quotas, quota_enforcement="STRICT")
    reply = world.post("/model/auto/invoke", claude_body(), app)
    assert (reply.status, reply.headers["x-amzn-errortype"]) == (
        400, "ServiceQuotaExceededException",
    )  # fmt: skip
    assert "quota-premium" in reply.json["message"]
    assert "nova" not in reply.json["message"]
    assert called(world) == []


def test_an_override_is_kept_to_within_the_family(world: World) -> None:
    """The operator's label, though another one of the family comes first."""
    app = mixed_app(world)
    path = f"{app.path}/model-override"
    assert world.api.provision("PUT", path, {"model_label": "economy"}).status == 200
    assert world.post("/model/auto/invoke", claude_body(), app).status == 200
    assert called(world) == ["economy"]
    assert world.api.provision("PUT", path, {"model_label": "gpt"}).status == 200
    reply = world.post("/model/auto/invoke", claude_body(), app)
    assert (reply.status, reply.headers["x-amzn-errortype"]) == (400, "ValidationException")
    assert "premium, economy" in reply.json["message"]


def test_a_label_of_another_app_is_unknown(world: World) -> None:
    """An app uses what its ordering has, by label or by id."""
    app = App(world.api).register(model_ordering=["economy"], quotas={"economy": 10**9})
    for model in ("premium", BY_LABEL["premium"].model_id):
        for operation in ("converse", "invoke", "count-tokens"):
            reply = world.post(f"/model/{model}/{operation}", claude_body(), app)
            assert reply.status == 400
            assert "economy" in reply.json["message"]
    assert world.ledger.attempts == {}


@pytest.mark.parametrize(
    ("path", "body", "written"),
    [
        ("/model/premium/converse", converse_body(), {"inferenceConfig": {"maxTokens": 4096}}),
        (
            "/model/premium/converse",
            converse_body(inferenceConfig={"temperature": 0.5}),
            {"inferenceConfig": {"temperature": 0.5, "maxTokens": 4096}},
        ),
        (
            "/model/premium/converse",
            converse_body(inferenceConfig={"maxTokens": None}),
            {"inferenceConfig": {"maxTokens": 4096}},
        ),
        ("/model/llama/invoke", {"prompt": "x"}, {"max_gen_len": 4096}),
        ("/model/mistral/invoke", {"prompt": "x"}, {"max_tokens": 4096}),
        ("/model/nova/invoke", {"messages": []}, {"inferenceConfig": {"maxTokens": 4096}}),
        ("/model/gpt/invoke", {"messages": []}, {"max_completion_tokens": 4096}),
        (
            "/openai/v1/chat/completions",
            {"model": "gpt", "messages": []},
            {"model": BY_LABEL["gpt"].model_id, "max_completion_tokens": 4096},
        ),
        (
            "/anthropic/v1/messages",
            {"model": "premium", "messages": []},
            {"model": BY_LABEL["premium"].model_id, "max_tokens": 4096},
        ),
    ],
)
def test_a_call_that_does_not_say_how_long_its_answer_may_be_is_told(
    sent_on: SentOn, path: str, body: dict[str, Any], written: dict[str, Any]
) -> None:
    """Where the model reads it; the rest is unchanged."""
    assert sent_on(path, body)[1] == {**body, **written}


@pytest.mark.parametrize(
    ("path", "body", "written"),
    [
        (
            "/model/premium/converse",
            converse_body(additionalModelRequestFields={"max_tokens": 77}),
            converse_body(additionalModelRequestFields={}, inferenceConfig={"maxTokens": 77}),
        ),
        (
            "/model/nova/invoke",
            {"messages": [], "max_tokens": 77},
            {"messages": [], "inferenceConfig": {"maxTokens": 77}},
        ),
        (
            "/model/llama/invoke",
            {"prompt": "x", "maxTokens": 77},
            {"prompt": "x", "max_gen_len": 77},
        ),
        (
            "/model/mistral/invoke",
            {"prompt": "x", "max_new_tokens": 77, "max_tokens": 5},
            {"prompt": "x", "max_tokens": 77},
        ),
    ],
)
def test_a_length_where_the_model_does_not_look_is_written_where_it_does(
    sent_on: SentOn, path: str, body: dict[str, Any], written: dict[str, Any]
) -> None:
    """To hold for one token and have a thousand made would get around every budget."""
    assert sent_on(path, body)[1] == written


MASKED = [
    ("'max_tokens'", converse_body(max_tokens=1)),
    ("'textGenerationConfig'", converse_body(textGenerationConfig={"maxTokenCount": 1})),
    ("'type'", {"messages": [{"role": "user", "content": [{"type": "image", "text": "x"}]}]}),
    ("exactly one member", {"messages": [{"role": "user", "content": [{}]}]}),
    ("two service tiers", converse_body(serviceTier={"type": "flex"})),
]


@pytest.mark.parametrize(("told", "body"), MASKED)
@pytest.mark.parametrize("operation", ["converse", "converse-stream"])
def test_what_converse_does_not_have_is_refused(
    world: World, app: App, operation: str, told: str, body: dict[str, Any]
) -> None:
    """With Bedrock's own error and the member's name; nothing is held or sent."""
    headers = {"x-amzn-bedrock-service-tier": "priority"}
    reply = world.post(f"/model/premium/{operation}", body, app, **headers)
    assert (reply.status, reply.headers["x-amzn-errortype"]) == (400, "ValidationException")
    assert told in reply.json["message"]
    assert world.ledger.attempts == {}
    assert app.unfinished("open") == []


USES = [
    ("/model/premium/converse", {"guardrailConfig": {"guardrailIdentifier": "g"}}, {}, "guardrail"),
    ("/model/premium/converse", {"toolConfig": {"tools": [{"systemTool": {"name": "other"}}]}}, {},
     "tool_call:other"),
    ("/model/premium/invoke", {}, {"x-amzn-bedrock-guardrailidentifier": "g"}, "guardrail"),
    ("/anthropic/v1/messages", {"tools": [{"type": "web_search_20250305", "name": "w"}]}, {},
     "tool_call:web_search"),
    ("/openai/v1/chat/completions", {"web_search_options": {}}, {}, "tool_call:web_search"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "more", "headers", "use"), USES)
def test_what_is_billed_beside_tokens_and_has_no_price_is_refused(
    world: World, app: App, path: str, more: dict[str, Any], headers: dict[str, str], use: str
) -> None:
    """The message has the line for the deployment file; with such a line the call goes through."""
    model = "gpt" if "openai" in path else "premium"
    body = converse_body(**more) if "converse" in path else claude_body(model=model, **more)
    reply = world.post(path, body, app, **headers)
    message = reply.json.get("message") or reply.json["error"]["message"]
    assert reply.status == 400
    assert f"models.{model}.units.{use}" in message
    assert world.ledger.attempts == {}


def test_what_has_a_price_is_sent(world: World, app: App) -> None:
    tools = {"tools": [{"systemTool": {"name": PRICED_UNIT.partition(":")[2]}}]}
    assert world.converse(app, "premium", toolConfig=tools).status == 200


def test_a_document_elsewhere_is_held_for_whatever_stands_beside_it(world: World) -> None:
    """Seven calls at once spent 30 dollars of a budget of 30 cents so."""
    app = App(world.api).register(limit_usd_micros=300_000)
    source = {"s3Location": {"uri": "s3://bucket/key"}}
    masks: list[dict[str, Any]]
    masks = [{}, {"text": None}, {"content": []}, {"bytes": ""}, {"type": "image"}]
    for mask in masks:
        document = {"name": "d", "format": "csv", "source": {**source, **mask}}
        body = {"messages": [{"role": "user", "content": [{"document": document}]}]}
        reply = world.post("/model/premium/converse", body, app)
        assert reply.status == 400
        is_whole = not mask or None in mask.values()
        code = "ServiceQuotaExceededException" if is_whole else "ValidationException"
        assert reply.headers["x-amzn-errortype"] == code
    assert world.ledger.attempts == {}


PATHS = [
    *(f"/model/premium/{name}" for name in ("converse", "converse-stream", "invoke")),
    "/openai/v1/chat/completions",
    "/anthropic/v1/messages",
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "bad", ["max_tokens", "n", "inferenceConfig", "additionalModelRequestFields"]
)
def test_a_length_that_is_none_is_refused_by_its_name(
    world: World, app: App, path: str, bad: str
) -> None:
    """Nothing is called."""
    is_converse = "/converse" in path
    body = converse_body() if is_converse else claude_body(model="premium")
    reply = world.post(path, {**body, bad: "1e2"}, app)
    message = reply.json.get("message") or reply.json["error"]["message"]
    told = f"ConverseRequest has no member {bad!r}" if is_converse and "_" in bad else f"{bad}: "
    assert (reply.status, message[: len(told)]) == (400, told)
    assert world.ledger.attempts == {}
    assert app.unfinished("open") == []


@pytest.mark.parametrize("path", [*PATHS, "/model/premium/count-tokens"])
@pytest.mark.parametrize("bad", [b"\xff", b"\xc3(", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"])
def test_a_body_that_is_no_utf_8_is_no_json(world: World, app: App, path: str, bad: bytes) -> None:
    for body in (b'{"a":"%b"}', b'{"%b":1}', b"%b"):
        assert world.post(path, body % bad, app).status == 400
    assert world.ledger.attempts == {}


MARKS = b'[{,\\" \\\\'


@pytest.mark.parametrize(
    "inner",
    [b",".join([b"[[[[[]]]]]"] * 25_000), b",".join([b"{}"] * 110_000),
     b",".join([b'"a"'] * 110_000), b",".join([b"1"] * 110_000), b"[" * 110_000,
     b'{"a":{"b":1},"c":[' + b",".join([b"{}"] * 110_000),
     b",".join([b"2.47e-300"] * 6_000), b",".join([b"9" * 4_000] * 1_000)],
    ids=["nested", "objects", "texts", "numbers", "deep", "broken", "floats", "integers"],
)  # fmt: skip
def test_a_body_has_only_so_many_values(world: World, app: App, inner: bytes) -> None:
    """Reading millions of them would block other calls for seconds."""
    reply = world.post("/model/premium/converse", b'{"messages":[%b]}' % inner, app)
    assert (reply.status, reply.json["message"]) == (
        400,
        f"the body may have {VALUES_MAX} values at most, and fewer long numbers",
    )


def test_whatever_is_granted_can_be_sent_on(scripted: ScriptedWorld) -> None:
    """A body is nested too deeply to be written, and refused, or it is sent on."""
    usage = b'{"usage":{"inputTokens":1,"outputTokens":1}}'
    with scripted(sending(whole(usage))) as (world, _upstream, app):
        statuses = []
        for depth in range(840, 1_010):
            nested = b"[" * depth + b'"x"' + b"]" * depth
            body = b'{"anthropic_version":"v","messages":[],"metadata":%b}' % nested
            statuses.append(world.post("/model/premium/invoke", body, app).status)
        assert set(statuses) == {200, 400}
        assert sorted(statuses) == statuses
        until(lambda: app.unfinished("open") == [])


def test_tags_of_a_header_are_not_pushed_out(world: World, app: App) -> None:
    """A proxy may name the team of a call; the body can't replace or drop that tag."""
    others = {f"a{number:02}": "v" for number in range(15)}
    header = {"x-pricekeeper-tag-team": "search"}
    replies = [
        world.post(
            "/model/premium/converse",
            converse_body(requestMetadata={**others, name: "other"}),
            app,
            **header,
        )
        for name in ("team", "a15")
    ]
    assert [reply.status for reply in replies] == [200, 400]
    assert "at most 16 pairs, not 17" in replies[1].json["message"]
    until(lambda: len(app.usage()) == 1)
    assert app.usage()[0]["tags"] == {**others, "team": "search"}


def test_texts_may_have_any_number_of_marks(world: World, app: App) -> None:
    text = json.loads(b'"%b"' % (MARKS * 60_000))
    assert world.post("/model/premium/converse", converse_body(text), app).status == 200


def test_the_upstream_reads_what_was_measured(scripted: ScriptedWorld) -> None:
    """A name that is there twice is sent on once: else it could take the one and we the other."""
    text = json.dumps(converse_body("long" * 1000, inferenceConfig={"maxTokens": 9_999}))
    last = json.dumps(converse_body("short", inferenceConfig={"maxTokens": 1}))
    twice = f"{text[:-1]},{last[1:]}".encode()

    with scripted(sending(whole(b"{}"))) as (world, upstream, app):
        reply = world.post("/model/premium/converse", twice, app)
        (request,) = upstream.requests
    assert request.json == json.loads(last)
    assert request.body.count(b"maxTokens") == request.body.count(b"messages") == 1
    assert held_by(reply) < 1_000


def test_what_is_said_is_left_as_it_is(sent_on: SentOn) -> None:
    body = converse_body(inferenceConfig={"maxTokens": 77, "topP": 0.1}, system=[{"text": "ß"}])
    assert sent_on("/model/premium/converse", body)[1] == body


def test_an_answer_is_shortened_to_what_the_budget_has_left(sent_on: SentOn) -> None:
    """Only of a call that did not say how long it may be."""
    _, body = sent_on("/model/premium/converse", converse_body(), limit_usd_micros=10_000)
    most = body["inferenceConfig"]["maxTokens"]
    assert 0 < most < 400


def test_request_metadata_and_headers_become_tags(world: World, app: App) -> None:
    """A header wins; both are kept with the record."""
    body = converse_body(requestMetadata={"team": "red", "job": "nightly"})
    headers = {"x-pricekeeper-tag-team": "blue", "x-pricekeeper-tag-env": "prod"}
    assert world.post("/model/premium/converse", body, app, **headers).status == 200
    world.assert_equal(app)
    assert app.usage()[0]["tags"] == {"team": "blue", "job": "nightly", "env": "prod"}
    (entry,) = world.ledger.entries
    assert entry.request_metadata == {"team": "red", "job": "nightly"}


def test_invoke_has_its_metadata_in_a_header(world: World, app: App) -> None:
    header = {"x-amzn-bedrock-request-metadata": json.dumps({"team": "red"})}
    assert world.post("/model/premium/invoke", claude_body(), app, **header).status == 200
    world.assert_equal(app)
    assert app.usage()[0]["tags"] == {"team": "red"}


@pytest.mark.parametrize(
    "metadata",
    ["[" * 20_000, "not json", '{"a":"\\ud800"}', '{"": "x"}', '{"a": 1}', '{"a":"' + "x" * 999],
)
def test_metadata_that_is_none_does_no_harm(world: World, app: App, metadata: str) -> None:
    """It is refused before anything is held: no tag is left out, and it is never a 500."""
    header = {"x-amzn-bedrock-request-metadata": metadata}
    reply = world.post("/model/premium/invoke", claude_body(), app, **header)
    assert (reply.status, reply.headers["x-amzn-errortype"]) == (400, "ValidationException")
    world.assert_equal(app)


def test_a_budget_by_tag_counts_what_its_tag_has(world: World) -> None:
    """So a team that has spent its own is denied, and another is not."""
    per_team = {"name": "team", "window": "DAY", "limit_usd_micros": 6_000, "per_tag": "team"}
    total = {"name": "all", "window": "MONTH", "limit_usd_micros": 10**12}
    app = App(world.api).register(budgets=[total, per_team])
    body = converse_body(directive(output_tokens=150), inferenceConfig={"maxTokens": 150})

    def call(team: str) -> int:
        headers = {"x-pricekeeper-tag-team": team}
        return world.post("/model/premium/converse", body, app, **headers).status

    assert [call("red"), call("red"), call("blue")] == [200, 400, 200]
    world.assert_equal(app)


def test_a_tier_is_held_and_counted_as_it_was_asked_for(world: World, app: App) -> None:
    """What the deployment has no price for is counted at its default, and marked."""
    body = converse_body(serviceTier={"type": "priority"})
    assert world.post("/model/premium/converse", body, app).status == 200
    world.assert_equal(app)
    assert world.ledger.entries[0].service_tier == "priority"


NAMED = b'{"usage":%b,"service_tier":"priority"}'
OPENAI = b'{"prompt_tokens":3,"completion_tokens":4}'
ANTHROPIC = b'{"input_tokens":3,"output_tokens":4%b}'
OF_ANTHROPIC = ANTHROPIC % b',"service_tier":"priority"'
CHUNKS = b'data: {"choices":[],"service_tier":"priority","usage":%b}\n\ndata: [DONE]\n\n' % OPENAI
EVENTS = (
    b'data: {"type":"message_start","message":{"usage":%b}}\n\n'
    b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":4}}'
    b"\n\n"
)
TIER = "x-amzn-bedrock-service-tier: priority"
CHAT, MESSAGES = "/openai/v1/chat/completions", "/anthropic/v1/messages"
ASKS = {"service_tier": "priority"}


@pytest.mark.parametrize(
    ("path", "body", "answered", "lines"),
    [
        (CHAT, {}, NAMED % OPENAI, ()),
        (CHAT, {}, b'{"usage":%b}' % OPENAI, (TIER,)),
        (CHAT, ASKS, b'{"usage":%b}' % OPENAI, ()),
        (CHAT, {"stream": True}, CHUNKS, ()),
        (MESSAGES, {}, b'{"usage":%b}' % OF_ANTHROPIC, ()),
        (MESSAGES, ASKS, b'{"usage":%b}' % (ANTHROPIC % b""), ()),
        (MESSAGES, {"stream": True}, EVENTS % OF_ANTHROPIC, ()),
        (MESSAGES, {"stream": True}, EVENTS % (ANTHROPIC % b""), (TIER,)),
        (MESSAGES, {"stream": True, **ASKS}, EVENTS % (ANTHROPIC % b""), ()),
        ("/model/gpt/invoke", {}, NAMED % OPENAI, ()),
        ("/model/gpt/invoke", ASKS, b'{"usage":%b}' % OPENAI, ()),
    ],
)
def test_the_tier_that_served_is_what_is_counted(
    scripted: ScriptedWorld,
    path: str,
    body: dict[str, Any],
    answered: bytes,
    lines: tuple[str, ...],
) -> None:
    """From any place in the reply; without it, a dearer requested tier counts."""
    with scripted(sending(whole(answered, *lines))) as (world, _upstream, app):
        model = "premium" if path == MESSAGES else "gpt"
        assert world.post(path, claude_body(model=model, **body), app).status == 200
        until(lambda: len(app.usage()) == 1)
    (record,) = app.usage()
    assert (record["service_tier"], record["price_estimated"]) == ("priority", True)


@pytest.mark.parametrize("said", [True, False])
@pytest.mark.parametrize("operation", ["converse", "invoke"])
def test_a_latency_with_prices_of_its_own_is_marked(
    scripted: ScriptedWorld, operation: str, said: bool
) -> None:
    """As a tier that has none in the deployment file: what it costs is not known for sure."""
    usage: dict[str, Any] = {"inputTokens": 3, "outputTokens": 4}
    replied: dict[str, Any] = {"usage": usage}
    body, lines = converse_body(), []
    if operation == "converse":
        body["performanceConfig"] = {"latency": "optimized"}
        replied |= {"performanceConfig": {"latency": "optimized"}} if said else {}
    else:
        body = claude_body()
        lines = ["x-amzn-bedrock-performanceconfig-latency: optimized"] if said else []

    asked = {} if operation == "converse" else {LATENCY_HEADER: "optimized"}
    with scripted(sending(whole(json.dumps(replied).encode(), *lines))) as (world, _upstream, app):
        assert world.post(f"/model/premium/{operation}", body, app, **asked).status == 200
        until(lambda: len(app.usage()) == 1)
    (record,) = app.usage()
    assert (record["service_tier"], record["price_estimated"]) == ("optimized", True)
