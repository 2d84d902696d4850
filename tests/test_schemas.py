"""Schemas come from the constructors, and every option of every group composes and is accepted by its constructor."""

import dataclasses
import inspect
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_module
from hydra.utils import get_method, instantiate
from omegaconf import OmegaConf

from statewise import schemas, signatures
from statewise.signatures import schema_of

CONF = Path(__file__).parents[1] / "conf"
OPTIONS = sorted(f"{path.parent.name}={path.stem}" for path in CONF.glob("*/*.yaml") if path.parent.name not in {"experiment"})


@pytest.fixture(scope="module", autouse=True)
def registered():
    schemas.register()
    OmegaConf.register_new_resolver("new_folder", str, replace=True)


def composed(*overrides):
    with initialize_config_module("statewise.conf", version_base="1.3"):
        return compose("train", overrides=list(overrides))


@pytest.mark.parametrize("target", schemas.CONSTRUCTORS.values())
def test_the_schema_has_the_types_and_defaults_of_the_constructor(target):
    constructor = get_method(target) if target.rpartition(".")[2][0].islower() else _class(target)
    schema = schema_of(target)
    fields = {field.name: field for field in dataclasses.fields(schema) if not field.name.startswith("_")}
    signature = _parameters(constructor)
    assert set(fields) == set(signature)
    for name, parameter in signature.items():
        if parameter.default is inspect.Parameter.empty or dataclasses.is_dataclass(parameter.default):
            continue
        field = fields[name]
        default = field.default if field.default is not dataclasses.MISSING else field.default_factory()
        wanted = list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
        assert default == wanted, name


def _class(target):
    from hydra.utils import get_class

    return get_class(target)


def _parameters(constructor):
    """What Python itself says, with ** followed into the base class."""
    if not inspect.isclass(constructor):
        return dict(inspect.signature(constructor).parameters)
    found = {}
    for cls in constructor.__mro__:
        if "__init__" not in vars(cls):
            continue
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        found |= {p.name: p for p in parameters if p.kind is not p.VAR_KEYWORD and p.name not in found}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return found


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_of_every_group_composes_and_begins_with_its_schema(option):
    group, _, name = option.partition("=")
    config = composed(option)
    assert group in config
    text = yaml.safe_load((CONF / group / f"{name}.yaml").read_text())
    if text:
        assert any(str(entry).startswith("/schema/") or "/schema/" in str(entry) for entry in text["defaults"]), option


@pytest.mark.parametrize(
    "option", [option for option in OPTIONS if option.startswith(("data=lti", "data=market", "data=air", "data=sample"))]
)
def test_every_data_set_is_built_from_its_configuration(option):
    module = instantiate(composed(option).data, _convert_="object")
    assert type(module).__module__ == "statewise.data.datasets"


@pytest.mark.parametrize("experiment", sorted(path.stem for path in (CONF / "experiment").glob("*.yaml")))
def test_every_experiment_composes_and_says_its_command(experiment):
    composed(f"experiment={experiment}")
    header = (CONF / "experiment" / f"{experiment}.yaml").read_text().split("defaults:")[0]
    assert f"python train.py experiment={experiment}" in header


def test_an_argument_is_named_once_so_that_a_renamed_one_reaches_the_configuration(tmp_path, monkeypatch):
    (tmp_path / "thing.py").write_text(
        "LIMITS = [1, 2]\n"
        "class Base:\n    def __init__(self, *, width: int = 3, limits: list[int] = LIMITS): ...\n"
        "class Thing(Base):\n    def __init__(self, *, name: str | None = None, **rest: object): ...\n"
    )
    monkeypatch.setattr(signatures, "PACKAGE", tmp_path)
    thing = schema_of("statewise.thing.Thing")()
    assert (thing.name, thing.width, thing.limits, thing._target_) == (None, 3, [1, 2], "statewise.thing.Thing")
