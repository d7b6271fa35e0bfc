"""Embeddings, rerankers and image models; without streams and Converse.

The first two report prompt tokens in a header, image models nothing. Unknown members are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pricekeeper.standin.families.family import ModelFamily
from pricekeeper.standin.read_request import Body, ReadRequest, bytes_of, texts_of
from pricekeeper.standin.refusals import AwsFault
from pricekeeper.standin.turn import Turn

_VECTOR: Final = [0.25, -0.5]


def _reader(required: str, *others: str) -> Callable[[Body], ReadRequest]:
    def read(body: Body) -> ReadRequest:
        if required not in body:
            raise AwsFault("ValidationException", f"required key [{required}] not found")
        for name in body:
            if name not in (required, *others):
                raise AwsFault("ValidationException", f"extraneous key [{name}] is not permitted")
        texts = texts_of([body[required], body.get("documents")])
        return ReadRequest(bytes_of(texts), "\n".join(texts), 0)

    return read


def _titan_vector(turn: Turn) -> dict[str, Any]:
    counted = {"inputTextTokenCount": turn.tokens.input_tokens} if turn.reports_usage else {}
    return {"embedding": _VECTOR, **counted}


def _cohere_vectors(turn: Turn) -> dict[str, Any]:
    return {"id": turn.id, "embeddings": [_VECTOR], "response_type": "embeddings_floats"}


def _order(_: Turn) -> dict[str, Any]:
    return {"results": [{"index": 0, "relevance_score": 0.75}]}


def _picture(_: Turn) -> dict[str, Any]:
    return {"images": ["aGVsbG8="], "error": None}


def _family(
    read: Callable[[Body], ReadRequest],
    reply: Callable[[Turn], dict[str, Any]],
    *,
    counts_tokens: bool = True,
) -> ModelFamily:
    return ModelFamily(read, reply, writes_text=False, counts_tokens=counts_tokens)


_PICTURES: Final = _family(
    _reader("taskType", "textToImageParams", "imageGenerationConfig"), _picture, counts_tokens=False
)
WITHOUT_TEXT: Final[dict[str, ModelFamily]] = {
    "amazon.titan-embed": _family(
        _reader("inputText", "dimensions", "normalize", "embeddingTypes"), _titan_vector
    ),
    "cohere.embed": _family(
        _reader("texts", "input_type", "embedding_types", "truncate"), _cohere_vectors
    ),
    "cohere.rerank": _family(
        _reader("query", "documents", "api_version", "top_n", "max_tokens_per_doc"), _order
    ),
    "amazon.rerank": _family(_reader("query", "documents", "top_n"), _order),
    "amazon.titan-image": _PICTURES,
    "amazon.nova-canvas": _PICTURES,
    "stability.": _family(_reader("prompt", "aspect_ratio", "seed"), _picture, counts_tokens=False),
}
"""By a part of the id, looked up first."""
