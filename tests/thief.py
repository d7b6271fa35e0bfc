"""Somebody who has a client's secret, and what is left to them of it."""

from dataclasses import dataclass, field
from typing import Any

from http_fixtures import Api, Reply, Tenant

SECRET, REFRESH, ACCESS = "secret", "refresh token", "access token"
EVERYTHING = {SECRET, REFRESH, ACCESS}
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

    def login(self) -> Reply:
        body = {
            "grant_type": "client_credentials",
            "client_id": self.client_id,
            "client_secret": self.secret,
        }
        return self.api.call("POST", "/auth/token", body)

    def enter(self) -> "Thief":
        """Log in, and keep the tokens."""
        granted = self.login()
        assert granted.status == 200, granted.data
        self.granted = granted.json
        return self

    def call(self) -> Reply:
        """Ask for something with the access token that was got first."""
        return self.api.call("GET", f"{self.path}/limits", token=self.granted["access_token"])

    def refresh(self) -> Reply:
        body = {"grant_type": "refresh_token", "refresh_token": self.granted["refresh_token"]}
        refreshed = self.api.call("POST", "/auth/refresh", body)
        if refreshed.status == 200:
            self.granted["refresh_token"] = refreshed.json["refresh_token"]
        return refreshed

    def ways_in(self) -> set[str]:
        """Try everything; what still works."""
        tried = {ACCESS: self.call(), REFRESH: self.refresh(), SECRET: self.login()}
        assert {reply.status for reply in tried.values()} <= {200, 400, 401}
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
