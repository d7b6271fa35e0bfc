"""A thief with a client's secret, and what the thief can still do with it."""

import base64
from dataclasses import dataclass, field
from typing import Any

from http_fixtures import Api, Reply, Tenant

SECRET, REFRESH, ACCESS = "secret", "refresh token", "access token"
OUTSIDE = "access token outside the session slots"
EVERYTHING = {SECRET, REFRESH, ACCESS, OUTSIDE}
NOTHING: set[str] = set()


@dataclass
class Thief:
    """Has logged in with a secret that is not theirs; ``api`` is the instance they talk to."""

    api: Api
    client_id: str
    secret: str
    path: str
    """Of an app that the client may act for."""
    granted: Any = field(default=None)
    outside: str = ""
    """An access token that is of no session."""

    def login(self) -> Reply:
        body = {
            "grant_type": "client_credentials",
            "client_id": self.client_id,
            "client_secret": self.secret,
        }
        return self.api.call("POST", "/auth/token", body)

    def fetch(self) -> Reply:
        """Fetch credentials as an AWS SDK does."""
        text = f"{self.client_id}:{self.secret}".encode()
        headers = {"authorization": f"Basic {base64.b64encode(text).decode()}"}
        return self.api.call("GET", "/auth/aws-credentials", headers=headers)

    def enter(self) -> "Thief":
        """Log in, and keep the tokens, one outside the session slots among them."""
        granted, fetched = self.login(), self.fetch()
        assert granted.status == fetched.status == 200, granted.data + fetched.data
        self.granted, self.outside = granted.json, fetched.json["Token"]
        return self

    def call(self, token: str | None = None) -> Reply:
        """Ask for something with that token, or with the access token that was got first."""
        token = token or self.granted["access_token"]
        return self.api.call("GET", f"{self.path}/limits", token=token)

    def refresh(self) -> Reply:
        body = {"grant_type": "refresh_token", "refresh_token": self.granted["refresh_token"]}
        refreshed = self.api.call("POST", "/auth/refresh", body)
        if refreshed.status == 200:
            self.granted["refresh_token"] = refreshed.json["refresh_token"]
        return refreshed

    def ways_in(self) -> set[str]:
        """Try everything; what still works."""
        tried = {
            ACCESS: self.call(),
            OUTSIDE: self.call(self.outside),
            REFRESH: self.refresh(),
            SECRET: self.login(),
        }
        assert {reply.status for reply in tried.values()} <= {200, 400, 401}
        assert self.fetch().status == tried[SECRET].status
        return {name for name, reply in tried.items() if reply.status == 200}


def thief_of(tenant: Tenant, client_id: str) -> Thief:
    """Steal the secret of the tenant's organisation or app, and log in with it."""
    return Thief(tenant.api, client_id, tenant.secrets[client_id], tenant.app).enter()


def claim(tenant: Tenant, rotated: Reply) -> Reply:
    """Claim what a rotation has made ready, and keep the secret."""
    assert rotated.status == 200, rotated.data
    token = {"token": rotated.json["secret_retrieval"]["token"]}
    claimed = tenant.api.call("POST", "/api/v1/credentials/claim", token)
    assert claimed.status == 200, claimed.data
    tenant.secrets[claimed.json["client_id"]] = claimed.json["client_secret"]
    return claimed
