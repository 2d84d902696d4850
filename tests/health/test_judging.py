"""Rules are asked about the news that concerns them, and it is known which never were."""

import pytest
import torch
from torch import nn

from statewise.health import Severity
from statewise.health.identities import Identities
from statewise.health.judging import Judging
from statewise.health.setting import Setting
from statewise.health.signals import Facts, Steps, Wiring

NOTHING = {"frozen": (), "constants": (), "conditional": (), "causal": ()}


@pytest.fixture
def facts() -> Facts:
    """Of a network whose optimizer does not hold its bias."""
    model = nn.Linear(2, 1)
    return Identities(model, [torch.optim.SGD([model.weight], lr=0.1)], NOTHING, Setting()).facts(0)


def test_what_is_found_is_news_once_and_settles_its_parameters(facts: Facts) -> None:
    judging = Judging()
    (found,) = [finding for finding in judging.ask(facts, Wiring()) if finding.severity is not Severity.INFO]
    assert found.id == "not-in-optimizer"
    assert judging.settled == {"bias"}
    assert judging.ask(facts, Wiring()) == []


def test_a_check_says_why_its_rules_were_never_asked(facts: Facts) -> None:
    judging = Judging()
    judging.ask(facts, Wiring())
    checks = {check["name"]: check for check in judging.checks({})}
    assert checks["not-in-optimizer"] == {"name": "not-in-optimizer", "ran": True, "why": ""}
    assert checks["zero-gradient"]["why"] == Steps.waiting
    judging.unable[Steps] = "nobody steps"
    assert {c["name"]: c for c in judging.checks({})}["zero-gradient"]["why"] == "nobody steps"
    assert {c["name"]: c for c in judging.checks({Steps: "it is dark"})}["zero-gradient"]["why"] == "it is dark"
    judging.nothing_to_say(Steps)
    assert {c["name"]: c for c in judging.checks({})}["zero-gradient"]["ran"]
