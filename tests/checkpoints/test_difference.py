"""Which parameters moved and which did not, to the bit, in any two files."""

import pytest
import torch
from torch import nn

from statewise.checkpoints.difference import compare, share

A = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)


def only(found):
    (change,) = found.changes
    return change


def test_a_change_is_measured_against_what_was_there():
    change = only(compare({"w": A}, {"w": A + torch.tensor([[0.5, 0.0], [0.0, 0.0]])}))
    assert (change.relative, change.largest, change.share, change.equal) == (0.1, 0.5, 0.25, False)


def test_equal_to_the_bit_is_more_than_equal():
    assert only(compare({"w": A}, {"w": A.clone()})).equal
    signed = only(compare({"w": torch.zeros(2)}, {"w": -torch.zeros(2)}))
    assert (signed.equal, signed.largest, signed.share) == (False, 0.0, 0.0)
    wider = only(compare({"w": A.float()}, {"w": A}))
    assert (wider.equal, wider.relative, wider.dtypes) == (False, 0.0, ["float32", "float64"])


def test_the_same_nan_twice_is_equal_and_still_not_finite():
    broken = torch.tensor([1.0, float("nan")])
    found = compare({"w": broken}, {"w": broken.clone()})
    assert only(found).equal
    assert only(found).not_finite == 1
    assert not found.all_moved
    assert "not finite in B: w" in found.verdict


def test_what_was_zero_moves_from_zero():
    change = only(compare({"w": torch.zeros(2)}, {"w": torch.ones(2)}))
    assert (change.relative, change.largest) == (None, 1.0)
    assert compare({"w": torch.zeros(2)}, {"w": torch.ones(2)}).verdict == "all 1 parameter moved"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64, torch.float8_e4m3fn])
def test_every_type_is_compared(dtype):
    one, other = (torch.full((3,), value).to(dtype) for value in (1.0, 2.0))
    change = only(compare({"w": one}, {"w": other}))
    assert (change.equal, change.largest, change.share) == (False, 1.0, 1.0)
    assert only(compare({"w": one}, {"w": one.clone()})).equal


def test_scalars_views_and_empty_tensors_are_compared():
    a = {"scalar": torch.tensor(1.0), "view": A.T, "empty": torch.zeros(0)}
    b = {"scalar": torch.tensor(2.0), "view": A.T.clone(), "empty": torch.zeros(0, dtype=torch.float64)}
    assert {change.name: change.equal for change in compare(a, b).changes} == {"scalar": False, "view": True, "empty": True}


def test_counters_are_shown_and_not_judged():
    before = nn.BatchNorm1d(2).state_dict()
    after = {**before, "weight": before["weight"] + 1, "bias": before["bias"] + 1, "running_mean": torch.ones(2)}
    found = compare(before, {**after, "running_var": torch.zeros(2)})
    assert [change.name for change in found.changes if change.counts] == ["num_batches_tracked"]
    assert found.all_moved
    assert not found.all_equal


def test_constants_are_not_meant_to_move():
    a, b = {"w": A, "rope.angles": A}, {"w": A + 1, "rope.angles": A}
    assert not compare(a, b).all_moved
    found = compare(a, b, ["rope.*"])
    assert found.all_moved
    assert found.verdict.startswith("all 1 parameter moved, by ")


def test_names_are_matched_across_wrappers_and_shown_without_them():
    names = ["ssm_0.A", "ssm_0.delta", "output_proj.weight"]
    a = {f"module._orig_mod.{name}": A for name in names}
    found = compare(a, {f"model.{name}": A + 1 for name in names})
    assert [change.name for change in found.changes] == names
    assert found.all_moved


def test_what_is_in_one_file_only_is_told():
    found = compare({"a": A, "b": A, "c": A}, {"a": A + 1, "b": torch.zeros(3), "d": A})
    assert (found.only_a, found.only_b, found.other_shape) == (["c"], ["d"], [("b", [2, 2], [3])])
    assert found.verdict.endswith("; 1 only in A, 1 only in B, 1 of another shape")
    assert not found.all_moved


@pytest.mark.parametrize(
    ("moved", "verdict"),
    [
        ({}, "nothing moved: all 3 parameters are equal to the bit"),
        ({"a": 0.5}, "2 of 3 parameters are equal to the bit: b, c; the others moved, by 10 % of the norm"),
        (
            {"a": 0.5, "b": 1.0},
            "1 of 3 parameters is equal to the bit: c; the others moved, by 10 % (a) to 20 % (b) of their norm",
        ),
        ({"a": 0.5, "b": 1.0, "c": 5e-9}, "hardly moved, by less than 1e-07 of their norm: c"),
    ],
)
def test_the_verdict_answers_the_question(moved, verdict):
    step = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    found = compare(dict.fromkeys("abc", A), {name: A + step * moved[name] if name in moved else A for name in "abc"})
    assert verdict in found.verdict
    assert "\n" not in found.verdict


def test_files_without_a_common_name_say_so():
    found = compare({"encoder.a": A}, {"decoder.b": A})
    assert found.verdict == "no parameter is in both files; 1 only in A, 1 only in B"
    assert not found.all_moved
    assert not found.all_equal


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0 %"), (0.031, "3.1 %"), (2e-6, "2.0e-04 %"), (0.999, "100 %"), (3.2, "320 %"), (1e5, "1.0e+07 %")],
)
def test_a_share_is_read_at_a_glance(value, text):
    assert share(value) == text
