"""Anthropic's client for its own API, on the path of Bedrock that speaks it."""

from anthropic import Anthropic
from anthropic_messages import drive_messages

drive_messages(Anthropic())
