"""Tokens of clients, and the keys that sign them."""

from pricekeeper.tokens.access_token import APP_USE, ORG_READ, SCOPES, Principal
from pricekeeper.tokens.aws_credentials import AwsCredentials
from pricekeeper.tokens.keyring import (
    ACCESS_SECS,
    Keyring,
    dump_keyring,
    new_keyring,
    parse_keyring,
)
from pricekeeper.tokens.keys import PUBLISH_AHEAD_SECS, KeyFile, Keys, KeyWatcher
from pricekeeper.tokens.meter import KeysMeter
from pricekeeper.tokens.service import Identity, Introspection, TokenGrant
from pricekeeper.tokens.validation import digest_of

__all__ = [
    "ACCESS_SECS",
    "APP_USE",
    "ORG_READ",
    "PUBLISH_AHEAD_SECS",
    "SCOPES",
    "AwsCredentials",
    "Identity",
    "Introspection",
    "KeyFile",
    "KeyWatcher",
    "Keyring",
    "Keys",
    "KeysMeter",
    "Principal",
    "TokenGrant",
    "digest_of",
    "dump_keyring",
    "new_keyring",
    "parse_keyring",
]
