"""Names of clients: one spelling each, read in one way only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricekeeper.errors import InvalidValueError
from pricekeeper.tenants import Client, parse_client_id
from pricekeeper.values import AppId, OrgId

ORG = "550e8400-e29b-41d4-a716-446655440000"

app_ids = st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True).map(AppId)
clients = st.builds(Client, st.uuids().map(lambda u: OrgId(str(u))), st.none() | app_ids)


def test_an_org_and_an_app_are_named_as_the_contract_says() -> None:
    assert Client(OrgId(ORG)).client_id == f"org-{ORG}"
    assert Client(OrgId(ORG), AppId("app-1")).client_id == f"org-{ORG}-app-app-1"


@given(clients)
def test_a_name_leads_back_to_its_client(client: Client) -> None:
    """Also if the app is called like a part of the name, such as ``-app-``."""
    assert parse_client_id(client.client_id) == client


@given(clients, clients)
def test_two_clients_never_share_a_name(one: Client, other: Client) -> None:
    """A name that could be read as another tenant's would be that tenant's."""
    assert (one.client_id == other.client_id) == (one == other)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "org-",
        ORG,
        f"ORG-{ORG}",
        f"org-{ORG.upper()}",
        f"org-{ORG[:-1]}",
        f"org-{ORG} ",
        f"org-{ORG}-app-",
        f"org-{ORG}-app",
        f"org-{ORG}-xyz-api",
        f"org-{ORG}-app-a#b",
        f"org-{ORG}-app-{'a' * 65}",
        f"org-{ORG.replace('-', '')}",
        f"org-{{{ORG}}}",
        "org-\ud800",
    ],
)
def test_any_other_spelling_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError):
        parse_client_id(text)
