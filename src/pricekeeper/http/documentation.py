"""The documentation page: the OpenAPI document made readable, without asking anybody else.

One HTML file with its own style and script inside, so that it works offline and under a strict
content security policy; a hash in the policy admits exactly that script and that style.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Final

_PAGE: Final = files("pricekeeper.http").joinpath("documentation.html").read_text("utf-8")


def _hash_of(tag: str) -> str:
    inside = _PAGE.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    digest = hashlib.sha256(inside.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


PAGE: Final = _PAGE.encode()
POLICY: Final = (
    f"default-src 'none'; connect-src 'self'; script-src {_hash_of('script')}; "
    f"style-src {_hash_of('style')}; base-uri 'none'; frame-ancestors 'none'"
).encode()
