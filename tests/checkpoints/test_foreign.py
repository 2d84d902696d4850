"""Names belong together whatever wrappers and holders put in front of them, and strangers do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statewise.checkpoints.foreign import WRAPPERS, bare, belong_together

NAMES = ["input_proj.weight", "norm_0.weight", "ssm_0.A", "ssm_0.delta", "ssm_1.A", "ssm_1.delta", "output_proj.weight"]


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "model.",
        "_orig_mod.",
        "module.",
        "module._orig_mod.model.",
        "_forward_module.module.net.",
        "_fsdp_wrapped_module._checkpoint_wrapped_module.student.model.",
    ],
)
@pytest.mark.parametrize("ours", ["", "model.", "model._orig_mod."])
def test_any_prefix_finds_its_partner(prefix, ours):
    found = belong_together([prefix + name for name in NAMES], [ours + name for name in NAMES])
    assert found == {prefix + name: ours + name for name in NAMES}


@given(st.lists(st.sampled_from([*sorted(WRAPPERS), "model", "net"]), max_size=4), st.sets(st.sampled_from(NAMES), min_size=4))
def test_no_nesting_of_wrappers_and_holders_hides_a_name(prefix, names):
    saved = {".".join([*prefix, name]): name for name in sorted(names)}
    assert belong_together(saved, NAMES) == saved


def test_wrappers_inside_a_name_do_not_count():
    assert bare("model.ssm_0._checkpoint_wrapped_module.A") == "model.ssm_0.A"
    assert belong_together(["ssm_0.module.A", "b"], ["ssm_0.A", "b"]) == {"ssm_0.module.A": "ssm_0.A", "b": "b"}


def test_a_model_with_an_attribute_called_module_keeps_it():
    assert belong_together(["module.weight"], ["module.weight"]) == {"module.weight": "module.weight"}


def test_a_name_without_a_partner_is_left_out():
    saved = ["model.ema", *(f"model.{name}" for name in NAMES[1:])]
    assert belong_together(saved, NAMES) == {f"model.{name}": name for name in NAMES[1:]}


def test_strangers_that_end_alike_are_no_partners():
    strangers = ["encoder.3.weight", "encoder.3.bias"]
    assert belong_together(strangers, NAMES) == belong_together(NAMES, strangers) == {}


def test_the_copy_under_another_prefix_is_not_mixed_in():
    saved = [f"{holder}.{name}" for holder in ("model", "ema") for name in NAMES]
    assert set(belong_together(saved, [f"model.{name}" for name in NAMES])) == {f"model.{name}" for name in NAMES}


def test_two_names_that_differ_in_their_wrappers_only_are_refused():
    with pytest.raises(ValueError, match=r"module\.a and a are the same name but for what wrappers add"):
        belong_together(["module.a", "a"], ["a"])
