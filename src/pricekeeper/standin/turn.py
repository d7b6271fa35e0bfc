"""What the model does with a request. It reads no clock, so the same call gets the same bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pricekeeper.standin.ledger import BilledCall, TokenCounts
from pricekeeper.standin.read_request import ReadRequest
from pricekeeper.standin.script import Script

OUTPUT_TOKENS: Final = 64
"""By default, unless the request allows less."""
BYTES_PER_TOKEN: Final = 4
SENTENCE: Final = "This is a stand-in for Amazon Bedrock, and no model has run. "


@dataclass(frozen=True, slots=True)
class Turn:
    """One run of the model."""

    id: str
    model_id: str
    operation: str
    asked: ReadRequest
    tokens: TokenCounts
    service_tier: str
    latency: str
    stop_reason: str
    events: int
    latency_ms: int
    first_byte_ms: int
    reports_usage: bool

    @property
    def text(self) -> str:
        """Four bytes for each token, as in prompts."""
        length = self.tokens.output_tokens * BYTES_PER_TOKEN
        return (SENTENCE * (length // len(SENTENCE) + 1))[:length]

    @property
    def reported_input_tokens(self) -> int:
        """The stated input; OpenAI's includes the cache."""
        is_included = "openai." in self.model_id
        return self.tokens.prompt_tokens if is_included else self.tokens.input_tokens

    @property
    def pieces(self) -> list[str]:
        """A piece of text for each event; some may be empty."""
        text, count = self.text, self.events
        return [
            text[len(text) * index // count : len(text) * (index + 1) // count]
            for index in range(count)
        ]

    def entry(self) -> BilledCall:
        return BilledCall(
            self.id,
            self.operation,
            self.model_id,
            self.tokens,
            self.service_tier,
            self.latency,
            self.asked.metadata,
        )


def take_turn(
    turn_id: str, model_id: str, operation: str, asked: ReadRequest, script: Script
) -> Turn:
    """Run the model as its script says."""
    wanted = OUTPUT_TOKENS if script.output_tokens is None else script.output_tokens
    allowed = wanted if asked.output_tokens_max is None else asked.output_tokens_max
    read = script.input_tokens
    tokens = TokenCounts(
        max(1, -(-asked.text_bytes // BYTES_PER_TOKEN)) if read is None else read,
        min(wanted, allowed),
        script.cache_read,
        script.cache_write_5m,
        script.cache_write_1h,
    )
    between_ms = script.between_ms * script.events if asked.streams else 0
    return Turn(
        id=turn_id,
        model_id=model_id,
        operation=operation,
        asked=asked,
        tokens=tokens,
        service_tier=script.service_tier or asked.service_tier or "default",
        latency=asked.latency or "standard",
        stop_reason=script.stop_reason or ("max_tokens" if wanted > allowed else "end_turn"),
        events=script.events,
        latency_ms=script.delay_ms + between_ms,
        first_byte_ms=script.delay_ms,
        reports_usage=not script.no_usage,
    )
