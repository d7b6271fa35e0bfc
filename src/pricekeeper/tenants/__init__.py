"""Organisations and apps: their settings, inheritance, and the policy in force for each.

Other features call `Tenants.find_policy`; its `NotFoundError` tells them of a deletion.
"""

from pricekeeper.client_ids import Client, parse_client_id
from pricekeeper.tenants.budget_rule import BudgetRule
from pricekeeper.tenants.configuration import (
    ANY_LABEL,
    AlertSettings,
    AppSettings,
    Budget,
    Enforcement,
    OrgSettings,
    QuotaEnforcement,
    QuotaScope,
    RateLimit,
    RateLimits,
    Window,
)
from pricekeeper.tenants.ending import REVOCATIONS
from pricekeeper.tenants.items import config_key
from pricekeeper.tenants.policy import Freeze, Generation, Life, Policy
from pricekeeper.tenants.reading import ClientReader, list_org_ids, read_pages
from pricekeeper.tenants.service import Enrolment, Saved, Tenants

__all__ = [
    "ANY_LABEL",
    "REVOCATIONS",
    "AlertSettings",
    "AppSettings",
    "Budget",
    "BudgetRule",
    "Client",
    "ClientReader",
    "Enforcement",
    "Enrolment",
    "Freeze",
    "Generation",
    "Life",
    "OrgSettings",
    "Policy",
    "QuotaEnforcement",
    "QuotaScope",
    "RateLimit",
    "RateLimits",
    "Saved",
    "Tenants",
    "Window",
    "config_key",
    "list_org_ids",
    "parse_client_id",
    "read_pages",
]
