"""Which of our models the original can express: the options in the way are named."""

import pytest

from statewise.checkpoints.origin import OPTIONS, names_of, refuse_other_models, refuse_other_names
from statewise.data.form import Form
from statewise.models.dense_ssm import dense_ssm

LEVELS = Form(("a", "b"), ("a",), True, 1)
RETURNS = Form(("a", "b"), ("r",), False, 1)
EXPRESSIBLE = {**OPTIONS, "anchor": "none"}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("residual", True),
        ("glu", True),
        ("linear_skip", 3),
        ("anchor", "last"),
        ("anchor", "auto"),
        ("discretization", "zoh"),
        ("norm", "rms"),
        ("norm", "none"),
        ("activation", "gelu"),
        ("skip", True),
    ],
)
def test_an_option_the_original_does_not_have_is_refused_by_its_name(option, value):
    text = str(value).lower() if isinstance(value, bool) else value
    with pytest.raises(ValueError, match=rf"the original cannot express model\.{option}={text} \("):
        refuse_other_models({**EXPRESSIBLE, option: value}, LEVELS)


def test_all_options_in_the_way_are_named_at_once():
    with pytest.raises(ValueError, match=r"model\.residual=true \(false\), model\.glu=true \(false\), in brackets what it has"):
        refuse_other_models({**EXPRESSIBLE, "residual": True, "glu": True}, LEVELS)


def test_an_automatic_anchor_is_none_where_the_targets_are_changes():
    refuse_other_models({**EXPRESSIBLE, "anchor": "auto"}, RETURNS)


def test_dropout_and_initialisation_change_no_prediction():
    refuse_other_models({**EXPRESSIBLE, "dropout": 0.5, "init": "rotation", "checkpoint_blocks": True}, LEVELS)


def test_other_models_are_refused():
    with pytest.raises(ValueError, match="model=mamba2 has no names of the original: only model=dense_ssm has"):
        refuse_other_models({"_target_": "statewise.models.mamba2.mamba2"}, LEVELS)


@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_the_names_are_those_of_our_model_with_the_options_of_the_original(n_layers):
    sizes = {"d_model": 2, "d_state": 2, "n_layers": n_layers}
    data = {"n_features": 2, "n_outputs": 1, "horizon": 1, "target_inputs": (0,), "targets_are_levels": True}
    model = dense_ssm(**data, **sizes, **EXPRESSIBLE)
    assert list(model.state_dict()) == names_of(n_layers)
    assert refuse_other_names(model.state_dict()) == n_layers
