"""Tokens: issued, refreshed, checked, revoked; and the keys that make them ours."""

from pricekeeper.tokens.aws_credentials import AwsCredentials
from pricekeeper.tokens.keyfile import PUBLISH_AHEAD_SECS, KeyFile
from pricekeeper.tokens.keyring import (
    ACCESS_SECS,
    Keyring,
    dump_keyring,
    new_keyring,
    parse_keyring,
)
from pricekeeper.tokens.keys import Keys
from pricekeeper.tokens.meter import KeysMeter
from pricekeeper.tokens.principal import APP_USE, ORG_READ, SCOPES, Principal
from pricekeeper.tokens.service import Identity, Introspection, TokenGrant
from pricekeeper.tokens.validation import digest_of
from pricekeeper.tokens.watching import KeyWatcher

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
