"""`fault=...` breaks a run on purpose: it ends unhealthy, with the finding that names the fault, and says so."""

import json
from pathlib import Path

import pytest

CONF = Path(__file__).parents[1] / "conf"
LONG_ENOUGH = "trainer.max_epochs=6"  # 30 steps: a schedule is called stuck after 20
# The finding that must name each fault, and a parameter that it must name; none where the loss itself is at fault.
EXPECTED = {
    "delta_as_number": ("graph-cut", "model.ssm_0.delta"),
    "detach_input": ("graph-cut", "model.input_proj.weight"),
    "detached_loss": ("loss-detached", "model.ssm_0.A"),
    "frozen_A": ("frozen-by-mistake", "model.ssm_0.A"),
    "gradients_dropped": ("gradients-not-applied", "model.ssm_0.A"),
    "layers_in_a_list": ("hidden-module", "model.hidden_layers[0].A"),
    "plain_A": ("plain-tensor", "model.ssm_0.A"),
    "rounded_loss": ("dtype-round-trip", None),
    "stuck_schedule": ("zero-learning-rate", "model.ssm_0.A"),
    "swallowed_updates": ("update-lost-to-rounding", "model.ssm_0.B"),
    "wrong_key": ("not-in-optimizer", "model.ssm_0.A"),
    "written_back_A": ("written-back", "model.ssm_0.A"),
}


def test_every_option_of_the_group_is_expected_to_be_named():
    assert {path.stem for path in (CONF / "fault").glob("*.yaml")} == set(EXPECTED)


@pytest.mark.parametrize("fault", EXPECTED)
def test_a_fault_ends_the_run_unhealthy_with_the_finding_that_names_it(fault, train):
    outcome = train(f"fault={fault}", LONG_ENOUGH)
    wanted, parameter = EXPECTED[fault]
    summary = outcome.summary
    assert (outcome.code, summary["status"]) == (1, "unhealthy"), outcome.err
    findings = [finding for finding in summary["health"]["findings"] if finding["severity"] != "info"]
    assert {finding["id"] for finding in findings} == {wanted}
    named = {name for finding in findings for name in finding["parameters"]}
    assert named == set() if parameter is None else parameter in named
    assert wanted in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


def test_the_run_folder_says_plainly_that_a_fault_was_injected(train):
    outcome = train("fault=frozen_A", "report=true")
    said = "R5: one parameter of a layer that trains has requires_grad switched off."
    assert outcome.summary["fault"] == {"name": "frozen_A", "what": said}
    assert f"fault=frozen_A: this run was broken on purpose. {said}" in (outcome.folder / "train.log").read_text()
    assert "fault" in json.loads((outcome.folder / "summary.json").read_text())


def test_a_run_without_a_fault_does_not_speak_of_one(train):
    outcome = train("trainer.max_epochs=1")
    assert outcome.code == 0
    assert "fault" not in outcome.summary
    assert "broken on purpose" not in (outcome.folder / "train.log").read_text()


def test_a_fault_may_concern_another_parameter(train):
    outcome = train("fault=frozen_A", "fault.parameter=glu_0.weight")
    findings = outcome.summary["health"]["findings"]
    assert [finding["parameters"] for finding in findings] == [["model.glu_0.weight"]]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("fault=plain_A", "fault.parameter=ssm_0.a_bar"), "fault.parameter must be one of"),
        (("fault=delta_as_number", "model=mamba2", "model.headdim=4"), "needs model=dense_ssm"),
        (("fault=layers_in_a_list", "model=nlinear"), "needs a model of layers"),
        (("fault=rounded_loss", "hardware.precision=32-true"), "needs hardware.precision=64-true"),
        (("fault=detach_inpt",), "did you mean detach_input?"),
    ],
)
def test_a_fault_that_has_no_place_here_is_refused_in_one_line(overrides, said, train):
    shape = [] if "model=nlinear" not in overrides else ["data=lti", "data.steps=400", "data.window=16"]
    outcome = train(*shape, *overrides, tiny=not shape)
    assert outcome.code == 2
    assert said in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1
