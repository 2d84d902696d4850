"""A model goes to the Rust side and comes back: the same names, types and predictions, to the bit."""

import json
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from statewise.checkpoints import read_checkpoint
from statewise.checkpoints.exchange import export_origin, import_origin
from statewise.checkpoints.origin import names_of
from statewise.data.form import Form
from statewise.data.preparation.scaling import StandardScaler
from statewise.restore import load_trained
from statewise.runs import load_run

FORM = {"features": ["a", "b", "c"], "targets": ["c"], "horizon": 2}
SCALER = {"names": ["a", "b", "c"], "mean": [0.1, 0.2, 0.3], "scale": [1.0, 2.0, 4.0]}


@pytest.fixture
def exported(origin_run, tmp_path):
    """The run's model as a file of the exchange."""
    trained = load_trained(origin_run)
    config = OmegaConf.to_container(trained.config, resolve=True)
    path = tmp_path / "model.safetensors"
    overrides = trained.run.overrides
    export_origin(
        trained.model.state_dict(), config=config, overrides=overrides, scaler=trained.scaler, form=trained.form, to=path
    )
    return path


def by_hand(path, *, d_model=2, expand=3, d_state=4, n_layers=2, dtype=torch.float64, metadata=None, change=None):
    """A file as the Rust side writes it: names and shapes of the original, and the metadata of docs/checkpoints.md."""
    generator = torch.Generator().manual_seed(0)
    d_inner = d_model * expand
    shapes = {"input_proj.weight": (d_inner, 3), "input_proj.bias": (d_inner,)}
    for layer in range(n_layers):
        shapes |= {f"norm_{layer}.weight": (d_inner,), f"norm_{layer}.bias": (d_inner,)}
        shapes |= {f"ssm_{layer}.A": (d_state, d_state), f"ssm_{layer}.B": (d_state, d_inner)}
        shapes |= {f"ssm_{layer}.C": (d_inner, d_state), f"ssm_{layer}.delta": (d_model,)}
    shapes |= {"output_proj.weight": (2, d_inner), "output_proj.bias": (2,)}
    tensors = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64).mul(0.1).to(dtype) for name, shape in shapes.items()
    }
    if change is not None:
        change(tensors)
    known = {"format": "statewise.origin", "format_version": "1", "scaler": json.dumps(SCALER), "form": json.dumps(FORM)}
    known |= {"config": json.dumps({"data": {"window": 8}}), **(metadata or {})}
    save_file(tensors, path, {key: value for key, value in known.items() if value is not None})
    return tensors


def test_the_file_holds_the_originals_names_and_the_runs_values(exported, origin_run):
    weights = load_file(exported)
    assert set(weights) == set(names_of(2))
    best = torch.load(origin_run / "checkpoints" / "best.ckpt")["state_dict"]
    assert all(torch.equal(weights[name], best[f"model.{name}"]) for name in weights)
    assert {tensor.dtype for tensor in weights.values()} == {torch.float64}
    assert weights["ssm_0.B"].shape == (4, 8)
    assert weights["ssm_1.delta"].shape == (4,)


def test_the_metadata_hold_what_a_prediction_needs(exported, origin_run):
    with safe_open(exported, framework="pt") as file:
        metadata = file.metadata()
    trained = load_trained(origin_run)
    assert json.loads(metadata["form"])["features"] == list(trained.form.features)
    assert np.array_equal(np.array(json.loads(metadata["scaler"])["mean"]), trained.scaler.mean)
    assert json.loads(metadata["config"])["data"]["window"] == 16
    assert (metadata["format"], metadata["format_version"]) == ("statewise.origin", "1")


def test_what_comes_back_predicts_and_is_evaluated_the_same_to_the_bit(exported, origin_run, tmp_path, predictions, statewise):
    import_origin(exported, tmp_path / "back")
    assert predictions(tmp_path / "back").equals(predictions(origin_run))
    figures = [json.loads(statewise("evaluate", place, "--json").output)["test"] for place in (tmp_path / "back", origin_run)]
    assert figures[0] == figures[1]
    assert load_run(tmp_path / "back").overrides == load_run(origin_run).overrides


def test_a_second_round_changes_no_bit_of_the_weights(exported, tmp_path):
    import_origin(exported, tmp_path / "back")
    trained = load_trained(tmp_path / "back")
    config = OmegaConf.to_container(trained.config, resolve=True)
    again = tmp_path / "again.safetensors"
    export_origin(
        trained.model.state_dict(),
        config=config,
        overrides=trained.run.overrides,
        scaler=trained.scaler,
        form=trained.form,
        to=again,
    )
    first, second = load_file(exported), load_file(again)
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_file_made_by_hand_predicts_what_the_formulas_say(tmp_path):
    path = tmp_path / "rust.safetensors"
    weights = by_hand(path)
    import_origin(path, tmp_path / "run")
    trained = load_trained(tmp_path / "run")
    assert (trained.form.features, trained.form.horizon, trained.config.data.window) == (("a", "b", "c"), 2, 8)
    x = torch.randn(1, 8, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    stream = x[0] @ weights["input_proj.weight"].T + weights["input_proj.bias"]
    for layer in range(2):
        centred = stream - stream.mean(1, keepdim=True)
        normed = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
        normed = normed * weights[f"norm_{layer}.weight"] + weights[f"norm_{layer}.bias"]
        B_bar = weights[f"ssm_{layer}.delta"].mean() * weights[f"ssm_{layer}.B"]
        h, outputs = torch.zeros(4, dtype=torch.float64), []
        for row in normed:
            h = weights[f"ssm_{layer}.A"] @ h + B_bar @ row
            outputs.append(weights[f"ssm_{layer}.C"] @ h)
        stream = torch.stack(outputs)
    wanted = stream @ weights["output_proj.weight"].T + weights["output_proj.bias"]
    with torch.no_grad():
        y, _ = trained.model(x)
    assert torch.allclose(y[0], wanted, rtol=0, atol=1e-14)
    assert np.array_equal(trained.scaler.mean, [[0.1, 0.2, 0.3]])


@settings(max_examples=8, deadline=None)
@given(
    d_model=st.integers(1, 3),
    expand=st.integers(2, 3),
    d_state=st.integers(1, 5),
    n_layers=st.integers(1, 3),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_every_size_and_type_of_the_original_is_read_off_the_shapes(
    d_model, expand, d_state, n_layers, dtype, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("sizes")
    weights = by_hand(folder / "m.safetensors", d_model=d_model, expand=expand, d_state=d_state, n_layers=n_layers, dtype=dtype)
    written = import_origin(folder / "m.safetensors", folder / "run")
    model = load_trained(folder / "run").model
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert read_checkpoint(written)["state_dict"]["model.ssm_0.A"].dtype == dtype


def test_the_columns_of_a_scaler_may_stand_in_any_order(tmp_path):
    scaler = {"names": ["c", "a", "b"], "mean": [[0.3, 0.1, 0.2]], "scale": [[4.0, 1.0, 2.0]]}
    by_hand(tmp_path / "m.safetensors", metadata={"scaler": json.dumps(scaler)})
    import_origin(tmp_path / "m.safetensors", tmp_path / "run")
    found = load_trained(tmp_path / "run").scaler
    assert found.names == ("a", "b", "c")
    assert np.array_equal(found.mean, [[0.1, 0.2, 0.3]])
    assert np.array_equal(found.scale, [[1.0, 2.0, 4.0]])


def test_weights_without_metadata_take_those_of_a_run(exported, origin_run, tmp_path, predictions):
    save_file(load_file(exported), tmp_path / "bare.safetensors")
    trained = load_trained(origin_run)
    like = (OmegaConf.to_container(trained.config, resolve=True), trained.scaler, trained.form)
    import_origin(tmp_path / "bare.safetensors", tmp_path / "run", like)
    assert predictions(tmp_path / "run").equals(predictions(origin_run))


def without(name):
    return lambda tensors: tensors.pop(name)


def with_other(name, *shape):
    return lambda tensors: tensors.update({name: torch.zeros(*shape, dtype=torch.float64)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("ssm_0.delta"), r"not those of a dense SSM with 2 layers; missing: ssm_0\.delta"),
        (without("norm_1.weight"), r"missing: norm_1\.weight"),
        (with_other("glu_0.weight", 12, 6), r"not of the original: glu_0\.weight"),
        (with_other("ssm_2.A", 4, 4), r"with 3 layers; missing: norm_2\.weight, norm_2\.bias, ssm_2\.B, ssm_2\.C and 1 more"),
        (with_other("ssm_0.B", 4, 2), r"ssm_0\.B is \[4, 2\] in the checkpoint and \[4, 6\] in the model; likely cause: B is"),
        (with_other("ssm_1.A", 5, 5), r"ssm_1\.A is \[5, 5\] in the checkpoint and \[4, 4\] in the model"),
        (with_other("ssm_0.A", 4), r"ssm_0\.A is \[4\], but has 2 axes in the original"),
        (with_other("ssm_0.delta", 4), r"ssm_0\.delta is \[4\] = \[d_model\] and input_proj\.bias \[6\] = \[d_inner\]"),
        (with_other("output_proj.weight", 3, 6), r"it predicts 3 values \(data\.horizon \* targets\) and the data ask for 2"),
        (with_other("input_proj.weight", 6, 4), r"it was trained on 4 features and the data have 3"),
        (
            lambda tensors: tensors.update({"ssm_0.A": tensors["ssm_0.A"].float()}),
            r"all parameters must have one type, but input_proj\.bias is float64, ssm_0\.A is float32",
        ),
        (
            lambda tensors: tensors.update({name: tensor.bfloat16() for name, tensor in tensors.items()}),
            r"the parameters are bfloat16; models are float64 or float32",
        ),
    ],
)
def test_missing_extra_and_misshaped_names_are_refused(change, message, tmp_path):
    path = tmp_path / "rust.safetensors"
    by_hand(path, change=change)
    with pytest.raises(ValueError, match=message) as error:
        import_origin(path, tmp_path / "run")
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (
            {"format": None},
            r"have format=None, not 'statewise\.origin': .* give those of a run of the same data with --run RUN",
        ),
        ({"format_version": "2"}, r"format_version='2'; this release \(.*\) reads 1"),
        ({"form": None}, "have no 'form'; they have "),
        ({"form": "{"}, "'form' in its metadata is no JSON"),
        ({"form": "[]"}, "'form' in its metadata must be a JSON object, got list"),
        ({"form": '{"targets": ["c"], "horizon": 1}'}, "form in its metadata must have features, a list of names, got None"),
        ({"form": json.dumps({**FORM, "horizon": 0})}, "must have horizon, the rows predicted after each row, got 0"),
        ({"form": json.dumps({**FORM, "freq": "1h"})}, "the form in its metadata has unknown entries: freq"),
        ({"form": json.dumps({**FORM, "step": 60})}, r"must be null or \{length, usual\}, got 60"),
        ({"scaler": json.dumps({**SCALER, "names": ["a", "b"]})}, r"must have the names a, b, c, got \['a', 'b'\]"),
        ({"scaler": json.dumps({**SCALER, "mean": [1.0]})}, r"mean of the scaler in its metadata must be 1 x 3 finite numbers"),
        ({"scaler": json.dumps({**SCALER, "scale": [1.0, 0.0, 1.0]})}, "scale of the scaler in its metadata must be above 0"),
        ({"config": "{}"}, r"the config in its metadata must say data\.window"),
        ({"config": '{"data": {"window": 8, "windwo": 1}}'}, r"config: data\.windwo: "),
        (
            {"config": '{"data": {"window": 8}, "model": {"d_state": 7}}'},
            r"model\.d_state is 7 in the configuration and 4 by the",
        ),
        (
            {"config": '{"data": {"window": 8}, "model": {"glu": true}}'},
            r"the original cannot express model\.glu=true \(false\)",
        ),
        ({"config": '{"data": {"window": 8}, "model": {"anchor": "auto"}}'}, r"cannot express model\.anchor=auto \(none\)"),
        ({"config": '{"data": {"window": 8}, "hardware": {"precision": "32-true"}}'}, "parameters are of 64-true"),
        (
            {"config": '{"data": {"window": 8, "gap": {"_target_": "os.system"}}}'},
            r"config\.data\.gap\._target_ is 'os\.system'",
        ),
        ({"config": '{"data": {"window": "x"}}'}, r"config: data\.window: "),
    ],
)
def test_metadata_that_say_too_little_or_something_else_are_refused(metadata, message, tmp_path):
    path = tmp_path / "rust.safetensors"
    by_hand(path, metadata=metadata)
    with pytest.raises(ValueError, match=message) as error:
        import_origin(path, tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_folder_with_a_run_is_not_written_over(exported, origin_run, tmp_path):
    folder = shutil.copytree(origin_run, tmp_path / "run")
    with pytest.raises(ValueError, match="already holds a run; choose another folder"):
        import_origin(exported, folder)


def test_another_kind_of_file_is_sent_to_the_command_that_reads_it(origin_run, tmp_path):
    with pytest.raises(ValueError, match="is a checkpoint of statewise, not safetensors; statewise checkpoint migrate reads"):
        import_origin(origin_run / "checkpoints" / "best.ckpt", tmp_path / "run")


def test_scalers_of_several_series_come_back_whole(tmp_path, origin_run):
    trained = load_trained(origin_run)
    config = OmegaConf.to_container(trained.config, resolve=True)
    scaler = StandardScaler()
    rows = torch.randn(3, 6, dtype=torch.float64) / 3
    state = {"names": list(trained.scaler.names), "series": ["x", "y"], "mean": rows, "scale": rows.abs() + 0.1}
    scaler.load_state_dict(state)
    form = Form.from_state({**trained.form.state_dict(), "step": {"length": 60_000_000_000, "usual": True}, "naive": True})
    path = tmp_path / "m.safetensors"
    export_origin(trained.model.state_dict(), config=config, overrides=[], scaler=scaler, form=form, to=path)
    import_origin(path, tmp_path / "run")
    back = load_trained(tmp_path / "run")
    assert back.scaler.equals(scaler)
    assert back.form == form
