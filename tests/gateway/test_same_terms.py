"""The gateway and a wrapped client ask for the same authorization, and all refuse the same tags."""

import copy
import json
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import boto3
import msgspec
import pytest
from botocore.config import Config

from bedrock.judged import NAMES, VALUES, a_body, objects_in
from gateway.models import BY_LABEL, write_deployment
from gateway.world import App, World, claude_body, converse_body
from metering.conftest import a_policy
from pricekeeper import PriceKeeper, wrap
from pricekeeper.authorizations.request import AuthorizationRequest, checked
from pricekeeper.bedrock import Family, Operation, Terms
from pricekeeper.bedrock.judging import METADATA_HEADER
from pricekeeper.bedrock.reading import read_and_judge
from pricekeeper.client.errors import RejectedError
from pricekeeper.client.wrapping.metered_call import MeteredCall, Options
from pricekeeper.errors import InvalidValueError, RequestRefusedError
from pricekeeper.gateway.errors import Refusal
from pricekeeper.gateway.planning import plan_call, question_of, request_of
from pricekeeper.gateway.routes import Route, find_route
from pricekeeper.pricing import Catalogue, load_catalogue
from pricekeeper.shapes import convert
from pricekeeper.tags import TAG_BYTES_MAX, TAGS_MAX
from pricekeeper.tenants import Policy
from pricekeeper.wire.authorizations import AuthorizeBody

BODIES = 2_000
MODELS = {
    None: "premium",
    Family.ANTHROPIC: "premium",
    Family.NOVA: "nova",
    Family.LLAMA: "llama",
    Family.MISTRAL: "mistral",
    Family.OPENAI: "gpt",
}
STRICT = ("; it may have ", "must have exactly one member", "where Bedrock reads ")
"""Parts of the messages for what the gateway refuses in AWS's own shapes."""
HEADERS: list[dict[str, str]] = [
    {},
    {"x-amzn-bedrock-service-tier": "priority"},
    {"x-amzn-bedrock-performanceconfig-latency": "optimized"},
    {"x-amzn-bedrock-guardrailidentifier": "g"},
    {METADATA_HEADER: '{"team": "red"}'},
    {METADATA_HEADER: '{"team": 1}'},
    {"x-pricekeeper-tag-team": "blue"},
    {"x-pricekeeper-tag-team": "b" * (TAG_BYTES_MAX + 1)},
]
OF_ANTHROPIC: list[dict[str, Any]] = [
    {},
    {"anthropic_beta": ["context-1m-2025-08-07"]},
    {"max_tokens": 9_000, "thinking": {"type": "enabled", "budget_tokens": 5_000}},
    {"max_tokens": None},
]
METADATA: list[Any] = [
    {"team": "search"},
    {"n" * 100: "v"},
    {"n" * TAG_BYTES_MAX: "v" * TAG_BYTES_MAX},
    {"n" * (TAG_BYTES_MAX + 1): "v"},
    {"wide": "ü" * 200},
    {f"k{number}": "v" for number in range(TAGS_MAX)},
    {f"k{number}": "v" for number in range(TAGS_MAX + 1)},
    {"": "v"},
    {"team": None},
    [],
    "team",
]


def a_call(rng: random.Random) -> tuple[str, Operation, dict[str, Any], dict[str, str]]:
    """A model id, an operation, a body with some members added, and headers."""
    body, family = a_body(rng)
    while family not in MODELS:
        body, family = a_body(rng)
    for _ in range(rng.randint(0, 2)):
        rng.choice([*objects_in(body)])[rng.choice(NAMES)] = copy.deepcopy(rng.choice(VALUES))
    if family is Family.ANTHROPIC:
        body |= copy.deepcopy(rng.choice(OF_ANTHROPIC))
    if rng.random() < 0.5:
        body["requestMetadata"] = copy.deepcopy(rng.choice(METADATA))
    operation = rng.choice([one for one in Operation if one.is_converse == (family is None)])
    model = BY_LABEL[MODELS[family]].model_id
    return model, operation, body, dict(rng.choice(HEADERS))


def by_gateway(
    route: Route, body: bytes, headers: dict[str, str], policy: Policy, catalogue: Catalogue
) -> Any:
    """What the gateway authorizes, or its refusal."""
    judged = read_and_judge(question_of(route, headers, policy, catalogue), body)
    try:
        request = checked(request_of(plan_call(route, judged, policy, catalogue), policy))
    except (Refusal, InvalidValueError) as refused:
        return refused
    return {name: getattr(request, name) for name in Terms.__annotations__}


def by_client(operation: Operation, path: str, body: bytes, headers: dict[str, str]) -> Any:
    """What REST reads of a wrapped client's request for an authorization, or its refusal."""
    engine: Any = SimpleNamespace(configuration=SimpleNamespace(max_output_tokens=4_096))
    request = {"url_path": path, "headers": headers, "body": body}
    try:
        asked = MeteredCall(engine, Options(), operation, request).ask()
        sent = convert(msgspec.json.decode(msgspec.json.encode(asked)), AuthorizeBody)
        parsed = checked(msgspec.convert(sent, AuthorizationRequest, from_attributes=True))
    except (RejectedError, RequestRefusedError, InvalidValueError) as refused:
        return refused
    return {name: getattr(parsed, name) for name in Terms.__annotations__}


def test_both_doors_make_the_same_authorization(tmp_path: Path) -> None:
    """From the same bytes and headers, in all fields of `Terms`, or both refuse the call.

    The exceptions:

    - The gateway refuses members that AWS's shapes do not have. For a wrapped client they hold the
      window, since its SDK may be newer.
    - Only the gateway knows the family of a label, restricts ``auto`` to that family, and lowers a
      stated answer to the app's cap.
    - A client may have another default answer, and options of its own.
    """
    catalogue = load_catalogue(write_deployment(tmp_path))
    labels = tuple(catalogue.labels)
    policy = a_policy(model_ordering=labels, quotas=dict.fromkeys(labels, 1))
    rng = random.Random(30)
    counts: Counter[str] = Counter()
    seen: dict[str, set[str]] = {name: set() for name in Terms.__annotations__}
    for _ in range(BODIES):
        model, operation, body, headers = a_call(rng)
        data = msgspec.json.encode(body)
        path = f"/model/{quote(model, safe='')}/{operation.path_end}"
        route = find_route(f"/bedrock{path}".encode())
        assert route is not None
        ours = by_gateway(route, data, headers, policy, catalogue)
        theirs = by_client(operation, path, data, headers)
        if isinstance(theirs, dict) and isinstance(ours, Exception):
            assert any(one in str(ours) for one in STRICT), (ours, body, headers)
            counts["strict"] += 1
        elif isinstance(theirs, Exception):
            assert isinstance(ours, Exception), (theirs, body, headers)
            counts["refused"] += 1
        else:
            assert theirs == ours, (body, headers)
            counts["tagged" if ours["tags"] else "compared"] += 1
            for name, value in ours.items():
                seen[name].add(str(value))
    assert min(counts[one] for one in ("refused", "tagged", "compared")) > BODIES // 20, counts
    assert all(len(values) > 1 for values in seen.values()), seen


BAD_TAGS = {
    "a name of 257 bytes": {"n" * 257: "v"},
    "a value of 257 bytes": {"team": "v" * 257},
    "a value of 258 bytes in 129 characters": {"team": "ü" * 129},
    "17 pairs": {f"k{number:02}": "v" for number in range(17)},
    "an empty name": {"": "v"},
}
GOOD_TAGS = {
    "a name of 100 bytes": {"n" * 100: "v"},
    "the longest pair": {"n" * 256: "v" * 256},
    "16 pairs": {f"k{number:02}": "v" for number in range(16)},
    "characters of two bytes": {"team": "ü" * 128},
}


@pytest.mark.parametrize("tags", [*BAD_TAGS.values(), *GOOD_TAGS.values()],
                         ids=[*BAD_TAGS, *GOOD_TAGS])  # fmt: skip
def test_a_tag_is_kept_at_every_door_or_refused_at_every_door(
    world: World, app: App, tags: dict[str, str], tmp_path: Path
) -> None:
    """The gateway, a wrapped client and REST have one rule; a 400 names the tags."""
    is_good = tags in GOOD_TAGS.values()
    metadata = {METADATA_HEADER: json.dumps(tags)}
    replies = [
        world.post("/model/premium/converse", converse_body(requestMetadata=tags), app),
        world.post("/model/premium/invoke", claude_body(), app, **metadata),
        world.api.call(
            "POST",
            f"{app.path}/authorizations",
            {"input_tokens": 1, "max_output_tokens": 1, "model": "premium", "tags": tags},
            token=app.token,
        ),
    ]
    for reply in replies:
        assert (reply.status < 300) is is_good, reply.data
        assert is_good or (reply.status == 400 and b"tags" in reply.data), reply.data
    client = boto3.client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=world.upstream_url,
        aws_access_key_id="a",
        aws_secret_access_key="b",
        config=Config(parameter_validation=False),
    )
    with PriceKeeper(world.url, app.client_id, app.secret, spool_dir=tmp_path) as keeper:
        wrap(client, keeper)
        asked: dict[str, Any] = converse_body(modelId="premium", requestMetadata=tags)
        if is_good:
            client.converse(**asked)
        else:
            with pytest.raises(client.exceptions.ValidationException, match="tags"):
                client.converse(**asked)
