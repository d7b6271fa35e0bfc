"""The first call of a coding agent: a long prompt with many tools, and room for a long answer."""

from typing import Any

OUTPUT_TOKENS = 32_000
THINKING_TOKENS = 31_999
"""What Claude Code states for the longest answer, and for thinking if it is on."""
_GUIDE = "Follow the conventions of the code around your change, and run its tests. "
_TOOLS = 18


def agent_body(text: str = "hello", *, prompt_bytes: int = 90_000, **more: Any) -> dict[str, Any]:
    """A call of Anthropic's form, as Claude Code makes it, with so long a prompt."""
    cached = {"cache_control": {"type": "ephemeral"}}
    share = prompt_bytes // (_TOOLS + 6)
    tools = [
        {
            "name": f"Tool{number}",
            "description": _fill(share),
            "input_schema": {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "type": "object",
                "properties": {"path": {"type": "string", "description": "An absolute path."}},
                "required": ["path"],
                "additionalProperties": False,
            },
        }
        for number in range(_TOOLS)
    ]
    system = [
        {"type": "text", "text": "You are a coding agent.", **cached},
        {"type": "text", "text": _fill(6 * share), **cached},
    ]
    return {
        "model": "us.anthropic.claude-opus-5-5",
        "max_tokens": OUTPUT_TOKENS,
        "system": system,
        "tools": tools,
        "messages": [{"role": "user", "content": [{"type": "text", "text": text, **cached}]}],
        "metadata": {"user_id": "user_0123456789abcdef_account__session_0123456789abcdef"},
        "stream": True,
        **more,
    }


def thinking(tokens: int = THINKING_TOKENS) -> dict[str, Any]:
    """Extended thinking that may take so much of the answer."""
    return {"type": "enabled", "budget_tokens": tokens}


def _fill(length: int) -> str:
    return (_GUIDE * (length // len(_GUIDE) + 1))[:length]
