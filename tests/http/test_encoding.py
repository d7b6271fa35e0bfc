"""Encoded answers are remembered, within a bound that one organisation can't exhaust."""

import uuid
from pathlib import Path

from attribution import BY
from http_fixtures import ORG
from pricekeeper.bootstrap import open_services
from pricekeeper.clock import ManualClock
from pricekeeper.http.encoding import Encoded, EncodedAnswers
from pricekeeper.selection import Decision
from pricekeeper.settings import MEMORY, Settings, SqliteLocation
from pricekeeper.tenants import Client
from pricekeeper.usecases.runtime import selection_answer
from pricekeeper.values import parse_org_id


async def test_when_it_is_full_the_oldest_goes_and_the_others_stay(tmp_path: Path) -> None:
    answers = EncodedAnswers(entries_max=3)

    def encode(decision: Decision) -> Encoded:
        return answers.encode(decision.policy.client, decision, selection_answer)

    settings = Settings(store=SqliteLocation(MEMORY), data_dir=tmp_path)
    async with open_services(settings, clock=ManualClock()) as services:
        decisions = []
        for _ in range(4):
            org_id = parse_org_id(str(uuid.uuid4()))
            policy = (await services.credentials.provision(Client(org_id), ORG, BY)).policy
            decisions.append(await services.selection.select(policy))
        made = [encode(decision) for decision in decisions]
        again = [encode(decision) for decision in decisions[:0:-1]]
    assert all(one is other for one, other in zip(made[:0:-1], again, strict=True))
    assert decisions[0].policy.client not in answers
