"""What is said when a configuration is refused: one line with the key, the value and the nearest valid names.

Hydra's and OmegaConf's own messages spread over several lines and never suggest what may have been meant.
"""

import re
from collections.abc import Iterable, Sequence
from importlib import resources

from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, MissingMandatoryValue, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from statewise.choices import did_you_mean, nearest

FULL_ERROR = "HYDRA_FULL_ERROR"  # Hydra's own switch: tracebacks instead of lines
CONFIG_ERRORS = (HydraException, OmegaConfBaseException)


def unknown_keys(config: DictConfig, known: Iterable[str]) -> list[str]:
    """Top-level keys that nothing reads; ``+key=value`` can add them."""
    return [str(key) for key in config if str(key) not in set(known)]


def suggest(key: str, valid: Iterable[str]) -> str:
    """`"; did you mean model.d_state?"`: the nearest keys, also for a key given without its path."""
    names = list(valid)
    if close := did_you_mean(key, names, count=3):
        return close
    tails = {name.rpartition(".")[2]: name for name in sorted(names, reverse=True)}
    close_tails = nearest(key.rpartition(".")[2], tails)[:1]
    return f"; did you mean {tails[close_tails[0]]}?" if close_tails else ""


def explain(error: Exception, overrides: Sequence[str]) -> str:
    """One line for an exception of Hydra or OmegaConf.

    Args:
        error: one of `CONFIG_ERRORS`.
        overrides: the command line, to find the valid names for its choice of groups.
    """
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    text = str(error)
    if isinstance(error, OverrideParseException):
        wrong = getattr(error, "override", None) or next((item for item in overrides if item in text), " ".join(overrides))
        return f"cannot read the override '{wrong}': write KEY=VALUE, and quote values that hold spaces or brackets"
    if isinstance(error, MissingMandatoryValue) or "Missing mandatory value" in text:
        key = getattr(cause, "full_key", None) or text.rpartition(":")[2].strip()
        return f"{key} has no value: give one with {key}=VALUE"
    if isinstance(error, MissingConfigException):
        return _explain_choice(text)
    if in_file := re.match(r"In '([^']+)': \w+ raised while composing config:\s*(.*?)\s*full_key: (\S*)", text, re.DOTALL):
        file, reason, key = in_file.groups()
        return f"{file}.yaml: {_explain_key(key, reason, overrides)}"
    if unmatched := re.search(r"Could not override '([^']+)'\.\s*No match in the defaults list", text):
        group = unmatched.group(1)
        return f"there is no configuration group '{group}'{did_you_mean(group, _groups())}"
    if isinstance(error, ConfigCompositionException):
        if removed := re.match(r"Could not delete from config\. '([^']+)' does not exist", text):
            key = removed.group(1)
            return f"cannot remove '{key}': there is no such key{suggest(key, _keys(overrides))}"
        override = re.match(r"(?:Could not override|Error merging override) '?([^'\s=]+)", text)
        key = override.group(1) if override else str(getattr(cause, "full_key", ""))
        return _explain_key(key, str(cause), overrides)
    return f"{getattr(cause, 'full_key', None) or 'configuration'}: {str(cause).splitlines()[0]}"


def _explain_key(key: str, reason: str, overrides: Sequence[str]) -> str:
    first = reason.strip().splitlines()[0] if reason.strip() else "not valid"
    if re.match(r"Key '.*' (is not in struct|not in )", first):
        groups = _groups()
        suggestion = suggest(key, groups if "." not in key and nearest(key, groups) else _keys(overrides))
        return f"there is no configuration key '{key}'{suggestion}"
    if wrong := re.match(r"Value '(.*)' of type '\w+' could not be converted to (\w+)", first):
        kinds = {"Integer": "a whole number", "Float": "a number", "Boolean": "true or false"}
        return f"{key} must be {kinds.get(wrong.group(2), wrong.group(2))}, got '{wrong.group(1)}'"
    return f"{key}: {first}"


def _explain_choice(text: str) -> str:
    place = re.match(r"In '([^']+)': ", text)
    where = f"{place.group(1)}.yaml: " if place and place.group(1) not in {"train", "hydra/config"} else ""
    if found := re.search(r"Could not find '([^']+)/([^'/]+)'", text):
        group, option = found.groups()
        options = _options(group)
        suggestion = did_you_mean(option, options) or ";"
        listed = f"{suggestion} {group} can be {', '.join(options)}" if options else ""
        return f"{where}there is no {group} '{option}'{listed}"
    return where + text.splitlines()[0]


def config_groups() -> str:
    """Every group and its options, a line each, for ``--help``."""
    return "\n".join(f"{group + ':':<12}{', '.join(_options(group))}" for group in sorted(_groups()))


def _groups() -> list[str]:
    return [item.name for item in resources.files("statewise.conf").iterdir() if item.is_dir() and item.name[0] != "_"]


def _options(group: str) -> list[str]:
    folder = resources.files("statewise.conf").joinpath(group)
    return sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".yaml")) if folder.is_dir() else []


def _keys(overrides: Sequence[str]) -> list[str]:
    """Every key of the configuration that the command's valid choices of groups compose."""
    from hydra import compose, initialize_config_module

    choices = []
    for override in overrides:
        group, _, option = override.partition("=")
        if group in _groups() and option in _options(group):
            choices.append(override)
    GlobalHydra.instance().clear()
    with initialize_config_module("statewise.conf", version_base="1.3"):
        config = compose("train", overrides=choices, return_hydra_config=True)
    return [key for key in _flatten(config) if not key.startswith("sweep.params.")]  # those are keys of other groups


def _flatten(config: DictConfig, prefix: str = "") -> Iterable[str]:
    for key in map(str, config):
        if key.startswith("_"):
            continue
        name = f"{prefix}{key}"
        yield name
        if not OmegaConf.is_missing(config, key) and not OmegaConf.is_interpolation(config, key):
            value = config._get_node(key)
            if isinstance(value, DictConfig) and not value._is_none():
                yield from _flatten(value, f"{name}.")
