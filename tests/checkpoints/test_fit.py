"""A checkpoint is of a model or it is not: names and shapes, and why they may differ."""

import logging

import pytest
import torch

from statewise.checkpoints import refuse_other_shapes
from statewise.checkpoints.fit import fitted, load_strictly
from statewise.models.dense_ssm import dense_ssm


def model(**options):
    torch.manual_seed(0)
    data = {"n_features": 3, "n_outputs": 2, "horizon": 1, "target_inputs": None, "targets_are_levels": False}
    sizes = {"d_model": 4, "d_state": 5, "n_layers": 2, "expand": 2}
    return dense_ssm(**{**data, **sizes, **options}).double()


def weights(**options):
    return dict(model(**options).state_dict())


def refusal(saved, wanted=None):
    with pytest.raises(ValueError, match="does not fit this model") as error:
        fitted(saved, weights() if wanted is None else wanted, source="old.ckpt", advice="train anew")
    message = str(error.value)
    assert "\n" not in message
    assert message.endswith("; train anew")
    return message


def test_other_shapes_missing_and_superfluous_parameters_are_named(tmp_path):
    saved = {"model.ssm_0.B": torch.zeros(4, 8), "model.old": torch.zeros(1)}
    wanted = {"model.ssm_0.B": torch.zeros(4, 16), "model.ssm_0.delta": torch.zeros(8)}
    with pytest.raises(ValueError, match="does not fit this model") as error:
        refuse_other_shapes(tmp_path / "a.ckpt", saved, wanted)
    message = str(error.value)
    assert "ssm_0.B is [4, 8] in the checkpoint and [4, 16] in the model" in message
    assert "ssm_0.delta is missing in the checkpoint" in message
    assert "old is in the checkpoint but not in the model" in message
    assert "\n" not in message


def test_a_matrix_of_the_old_width_is_explained():
    saved = weights()
    saved["ssm_0.B"], saved["ssm_1.C"] = torch.zeros(5, 4), torch.zeros(4, 5)
    message = refusal(saved)
    assert "ssm_0.B is [5, 4] in the checkpoint and [5, 8] in the model" in message
    assert (
        "likely cause: B is [5, 4] = [d_state, d_model]: written before B was made d_inner = expand * d_model wide" in message
    )
    assert "C is [4, 5] = [d_model, d_state]" in message


def test_a_missing_delta_is_explained_and_no_value_is_made_up():
    saved = {name: tensor for name, tensor in weights().items() if not name.endswith("delta")}
    message = refusal(saved)
    assert "ssm_0.delta is missing in the checkpoint; ssm_1.delta is missing in the checkpoint" in message
    assert "written before delta was a registered parameter" in message
    assert "no value is made up for it" in message


def test_missing_matrices_are_explained():
    message = refusal({name: tensor for name, tensor in weights().items() if "ssm" not in name})
    assert "ssm_0.A is missing in the checkpoint; ssm_0.B is missing" in message
    assert " and 5 more" in message
    assert "A, B, C and delta were no registered parameters" in message


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"d_state": 6}, "model.d_state is 6 in the checkpoint and 5 in the model"),
        ({"d_model": 6}, "model.d_model is 6 in the checkpoint and 4 in the model"),
        ({"n_layers": 3}, "model.n_layers is 3 in the checkpoint and 2 in the model"),
        ({"glu": False}, "model.glu is on in the model only"),
        ({"skip": True}, "model.skip is on in the checkpoint only"),
        ({"norm": "none"}, "model.norm is on in the model only"),
        ({"linear_skip": 2}, "model.linear_skip is on in the checkpoint only"),
        ({"n_features": 7}, "it was trained on 7 features and the data have 3"),
        ({"n_outputs": 3}, "it predicts 3 values (data.horizon * targets) and the data ask for 2"),
    ],
)
def test_a_model_with_another_option_is_told_which(options, cause):
    assert f"likely cause: {cause}" in refusal(weights(**options))


def test_a_transposed_matrix_is_told():
    saved = weights()
    saved["glu_0.weight"] = saved["glu_0.weight"].T
    assert "likely cause: glu_0.weight was written transposed" in refusal(saved)


def test_a_checkpoint_of_another_model_is_told():
    assert "likely cause: it is of another model, no name is the same" in refusal({"encoder.weight": torch.zeros(2)})


def test_integers_and_complex_numbers_are_no_weights():
    saved = weights()
    saved["ssm_0.A"] = saved["ssm_0.A"].to(torch.complex128)
    saved["ssm_0.delta"] = saved["ssm_0.delta"].long()
    message = refusal(saved)
    assert "ssm_0.A is complex in the checkpoint and real in the model" in message
    assert "ssm_0.delta is integer in the checkpoint and real in the model" in message


def test_a_model_that_refuses_a_checkpoint_keeps_all_it_had():
    loading, saved = model(), weights()
    before = {name: tensor.clone() for name, tensor in loading.state_dict().items()}
    saved = {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
    del saved["output_proj.bias"]
    with pytest.raises(ValueError, match=r"output_proj\.bias is missing in the checkpoint"):
        load_strictly(loading, saved, source="old.ckpt")
    assert all(torch.equal(tensor, before[name]) for name, tensor in loading.state_dict().items())


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "module._orig_mod.model.", "net."])
def test_prefixes_do_not_count(prefix):
    torch.manual_seed(1)
    saved = {f"{prefix}{name}": torch.rand_like(tensor) for name, tensor in weights().items()}
    loading = model()
    load_strictly(loading, saved, source="theirs.ckpt")
    assert all(torch.equal(tensor, saved[f"{prefix}{name}"]) for name, tensor in loading.state_dict().items())


@pytest.mark.parametrize(
    ("saved", "wanted", "what"),
    [(torch.float32, torch.float64, "kept, in a wider type"), (torch.float64, torch.float32, "rounded")],
)
def test_another_precision_is_taken_and_told(saved, wanted, what, caplog):
    loading = model().to(wanted)
    stored = {name: tensor.to(saved) for name, tensor in weights().items()}
    with caplog.at_level(logging.WARNING, "statewise"):
        load_strictly(loading, stored, source="old.ckpt")
    assert f"old.ckpt: 20 of 20 parameters are {str(saved)[6:]} and the model is {str(wanted)[6:]}" in caplog.text
    assert f"their values are {what}" in caplog.text
    assert torch.equal(loading.ssm_0.A, stored["ssm_0.A"].to(wanted))


def test_what_a_layer_refuses_of_the_values_is_one_line():
    saved = weights()
    saved["ssm_0.delta"] = torch.zeros_like(saved["ssm_0.delta"])
    with pytest.raises(ValueError, match=r"mean\(ssm_0\.delta\) must be above 0"):
        load_strictly(model(discretization="zoh"), saved, source="old.ckpt")
