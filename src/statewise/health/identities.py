"""Who is who in a run by now: parameters and groups, hidden tensors, what is declared; and what became another object."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from statewise.health.attributes import HiddenTensor, scan_attributes
from statewise.health.declared import resolve
from statewise.health.parameters import IdentityWatch, take_inventory
from statewise.health.setting import Setting
from statewise.health.signals import Facts
from statewise.health.steps.signals import Recreated


class Identities:
    """Taken at the start, and again whenever something is another object.

    Attributes:
        inventory, declared: as they were taken last.
        candidates: what is held outside the parameter tree, with the tensors themselves.
        recreated: how often parameters became other objects although an optimizer holds the old ones.
    """

    def __init__(
        self, module: nn.Module, optimizers: Sequence[Optimizer], patterns: Mapping[str, tuple[str, ...]], setting: Setting
    ) -> None:
        self._module, self._optimizers, self._patterns = module, optimizers, patterns
        self.recreated = 0
        self.take(setting)

    def take(self, setting: Setting) -> None:
        """Take it all anew."""
        self.inventory = take_inventory(self._module, self._optimizers, setting.scheduled)
        self.candidates = scan_attributes(self._module, setting.skip, setting.opaque)
        self._hidden = tuple(fact for fact, _ in self.candidates.values())
        self.declared = resolve(self.inventory, [fact.name for fact in self._hidden], **self._patterns)
        self._watch = IdentityWatch(self._module, self._optimizers)

    def changed(self) -> bool:
        """Whether anything is another object than when it was taken."""
        return self._watch.changed()

    def recreation(self, setting: Setting, batch: int) -> Recreated | None:
        """Whether parameters were made anew under their optimizer's hands.

        Before the first forward pass (batch 0) that is how the run was built, later it is news.
        """
        before = {fact.name: fact.key for fact in self.inventory.parameters}
        inventory = take_inventory(self._module, self._optimizers, setting.scheduled)
        shapes = {stranger.shape for stranger in inventory.strangers}
        lost = [fact for fact in inventory.trainable if fact.group is None and fact.shape in shapes]
        names = [fact.name for fact in lost if fact.key != before.get(fact.name, fact.key)]
        self.recreated += bool(names)
        if not names or not batch:
            return None
        self.inventory = inventory
        return Recreated(tuple(names), batch, self.recreated)

    def tensors(self, *, without_gradient: bool) -> dict[int, tuple[HiddenTensor, Tensor]]:
        """Hidden tensors and buffers; or only those that ask for no gradient.

        What asks for gradients already is seen in the real graph; parameters of hidden modules that ask for none are a
        reference on purpose.
        """
        return {
            key: (fact, tensor)
            for key, (fact, tensor) in self.candidates.items()
            if fact.kind in {"tensor", "buffer"} and not (without_gradient and fact.requires_grad)
        }

    def facts(self, step: int) -> Facts:
        """What rules know whatever the news."""
        return Facts(step, self.inventory, self.declared, self._hidden)
