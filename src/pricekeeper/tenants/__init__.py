"""Organisations and apps: their settings, inheritance, and the policy in force for each.

Features ask `Tenants.policy` and get one merged value. A client that does not exist, or exists
no more, is a `NotFoundError` there, which is how everybody else learns of a deletion.
"""

from pricekeeper.client_ids import Client, parse_client_id
from pricekeeper.tenants.alerting import AlertSettings
from pricekeeper.tenants.budget import Budget, Enforcement, QuotaEnforcement, Window
from pricekeeper.tenants.configuration import (
    ANY_LABEL,
    AppSettings,
    OrgSettings,
    QuotaScope,
    RateLimit,
    RateLimits,
)
from pricekeeper.tenants.freeze import Freeze
from pricekeeper.tenants.items import config_key
from pricekeeper.tenants.meter import REVOCATIONS
from pricekeeper.tenants.policy import Generation, Life, Policy
from pricekeeper.tenants.raising import BudgetRule
from pricekeeper.tenants.saving import Enrolment
from pricekeeper.tenants.service import Saved, Tenants

__all__ = [
    "ANY_LABEL",
    "REVOCATIONS",
    "AlertSettings",
    "AppSettings",
    "Budget",
    "BudgetRule",
    "Client",
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
    "parse_client_id",
]
