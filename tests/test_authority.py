"""What a key allows, and which credentials it gives: none that is greater than itself."""

import ast
import uuid
from itertools import product
from pathlib import Path

import pytest

import pricekeeper
from pricekeeper.authority import (
    ALL_ORGS,
    DEPLOYMENT,
    Authority,
    Coverage,
    KeyKind,
    Reach,
    Role,
    may_produce,
    of_org,
    only,
)
from pricekeeper.client_ids import Client
from pricekeeper.errors import NotPermittedError
from pricekeeper.values import AppId, OrgId

MINE, OTHER = (OrgId(str(uuid.UUID(int=number))) for number in (1, 2))
COVERAGES = (ALL_ORGS, Coverage(frozenset({MINE, OTHER})), only(MINE), only(OTHER))
ENDS = (None, 2_000, 1_000)
KEYS = [
    Authority(KeyKind.ADMIN_KEY, role, coverage, expires_at_epoch=end)
    for role, coverage, end in product(Role, COVERAGES, ENDS)
]
SOURCES = Path(pricekeeper.__file__).parent


def refusal(by: Authority | Client | None, wanted: Authority | Client) -> str | None:
    """Why a credential is not given; ``None`` if it is."""
    try:
        assert may_produce(by, wanted).credential == wanted
    except NotPermittedError as error:
        return str(error)
    return None


@pytest.mark.parametrize("by", KEYS)
def test_a_key_gives_no_greater_key(by: Authority) -> None:
    """In role, coverage or end; the message names each that is greater first."""
    for wanted in KEYS:
        is_later = by.expires_at_epoch is not None and (
            wanted.expires_at_epoch is None or wanted.expires_at_epoch > by.expires_at_epoch
        )
        covers = by.coverage.org_ids is None or (
            wanted.coverage.org_ids is not None and wanted.coverage.org_ids <= by.coverage.org_ids
        )
        why = refusal(by, wanted)
        if list(Role).index(wanted.role) > list(Role).index(by.role):
            assert why is not None
            assert why.startswith("role:")
        elif not covers:
            assert why is not None
            assert why.startswith("org_ids:")
        elif is_later:
            assert why is not None
            assert why.startswith("expires_at:")
            assert f"1970-01-01T00:{'33:20' if by.expires_at_epoch == 2_000 else '16:40'}Z" in why
        else:
            assert why is None


@pytest.mark.parametrize("app_id", [None, AppId("web")])
def test_a_clients_secret_is_given_by_every_operator_that_covers_it(app_id: AppId | None) -> None:
    """It has no role and no end, so that only these count; a client gives its own secret."""
    client = Client(MINE, app_id)
    for by in KEYS:
        may = by.role is not Role.VIEWER and MINE in by.coverage
        assert (refusal(by, client) is None) == may
    assert refusal(of_org(MINE), client) is None
    assert refusal(of_org(OTHER), client) is not None
    assert refusal(client, client) is None
    for stranger in (Client(MINE, AppId("other")), Client(OTHER, app_id)):
        assert refusal(stranger, client) is not None


def test_an_organisations_own_key_and_a_client_give_no_keys() -> None:
    """Nor does a request without a key. The deployment's own key gives every one."""
    for wanted in (*KEYS, of_org(MINE), DEPLOYMENT):
        assert refusal(DEPLOYMENT, wanted) is None
        for by in (of_org(MINE), Client(MINE), Client(MINE, AppId("web")), None):
            assert refusal(by, wanted) is not None
    assert refusal(None, Client(MINE)) is not None


def test_how_far_above_an_organisation_a_key_is() -> None:
    """Its own key is below a named one for some organisations, and that below those for all."""
    reaches = [of_org(MINE).reach, KEYS[-1].reach, KEYS[0].reach, DEPLOYMENT.reach]
    assert reaches == [Reach.ORG, Reach.LISTED, Reach.ALL, Reach.ALL]
    assert reaches == sorted(reaches)


def called_in(path: Path) -> set[str]:
    """The names of what a module calls."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return {
        node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        for node in calls
    }


def test_a_permit_comes_from_the_one_function_that_gives_it() -> None:
    """`mint` and `sign` take one, as mypy sees to; so no secret is made past the rule."""
    makers = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if "Permit" in called_in(path)
    }
    assert makers == {"authority.py"}
