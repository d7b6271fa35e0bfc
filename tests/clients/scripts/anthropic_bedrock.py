"""Anthropic's own client for Bedrock."""

from anthropic import AnthropicBedrock
from anthropic_messages import drive_messages

drive_messages(AnthropicBedrock())
