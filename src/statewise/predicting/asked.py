"""What a run reads of a file, and how: asked of its configuration, so that a new file is read as the run's own was."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.utils import instantiate

from statewise.choices import did_you_mean, one_of
from statewise.data.datamodule import WindowsDataModule
from statewise.data.features.formula import base_columns
from statewise.data.files.reading import AS_IT_IS, Reading
from statewise.data.segments.gaps import Gap
from statewise.data.segments.missing import Missing
from statewise.restore import Trained

_OPTIONS = [field.name for field in dataclasses.fields(Reading)]


@dataclass(frozen=True)
class Asked:
    """What is read of a file.

    Attributes:
        features, targets: names of columns, or expressions.
        gap: with the step of the training data, where these were regular: that of a short file is a guess.
    """

    features: tuple[str, ...]
    targets: tuple[str, ...]
    reading: Reading
    gap: Gap
    max_gap: str | None
    missing: Missing
    window: int
    batch_size: int
    supervision: str

    @classmethod
    def by(cls, trained: Trained, options: Sequence[str] = ()) -> "Asked":
        """What a run asks of a file.

        Args:
            options: `data.KEY=VALUE`, for a new file that is written in another way than that of the run.

        Raises:
            ValueError: an option that is none.
        """
        module: WindowsDataModule = instantiate(trained.config.data, _convert_="object")
        form, gap = trained.form, module.gap
        if gap.step is None and form.step is not None and form.step.usual:
            gap = dataclasses.replace(gap, step=f"{form.step.length}ns")
        # What a file was asked for in the configuration: expressions may be called otherwise in the data.
        features, targets = getattr(module, "features", None), getattr(module, "targets", None)
        return cls(
            tuple(features or form.features),
            tuple(targets or features or form.targets),
            dataclasses.replace(getattr(module, "reading", AS_IT_IS), **_given(options)),
            gap,
            module.max_gap,
            module.missing,
            module.window,
            module.batch_size,
            trained.config.task.supervision,
        )

    def columns(self, names: Sequence[str], file: str) -> list[str]:
        """The columns of a file with these names that must be read; a target that it lacks is left out.

        Raises:
            ValueError: it lacks what a feature is made of.
        """
        needed = base_columns(self.features, names)
        for name in needed:
            if name not in names:
                listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
                raise ValueError(
                    f'{file} lacks the column "{name}" that the model reads{did_you_mean(name, names)}; it has {listed}'
                )
        return list(dict.fromkeys([*needed, *base_columns(self.targets_in(names), names)]))

    def targets_in(self, names: Iterable[str]) -> tuple[str, ...]:
        """The targets that can be made of these columns."""
        names = list(names)
        return tuple(text for text in self.targets if set(base_columns([text], names)) <= set(names))


def _given(options: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for option in options:
        key, equals, text = option.partition("=")
        if not equals:
            raise ValueError(f"{option!r} is no option: write data.KEY=VALUE, as data.timezone=UTC")
        name = one_of("an option for reading the file", key.removeprefix("data."), _OPTIONS)
        try:
            value = OverridesParser.create().parse_override(f"{name}={text}").value()
        except HydraException:
            value = text  # a comma without quotes, such as that of data.decimal
        found[name] = tuple(value) if isinstance(value, list) else value
    return found
