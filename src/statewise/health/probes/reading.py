"""Which parameters does the loss depend on although its graph does not reach them? Their values are changed on a copy."""

import torch
from torch import nn

from statewise.health.probes.take import Take
from statewise.health.probes.trial import Trial, Twin

# Most parameters that are changed one by one, a forward pass each.
_ALONE = 8


def read_as_numbers(trial: Trial, twin: Twin, take: Take) -> frozenset[str]:
    """Parameters that ask for a gradient and get none in `take`, with whose values the loss changes all the same.

    What is left out at random, or not called in this batch, changes nothing. The copy is another afterwards.
    """
    if take.loss is None or take.graph is None or take.graph.hides_leaves or not take.graph.complete:
        return frozenset()
    leaves = take.graph.leaves
    suspects = {
        name: parameter
        for name, parameter in twin.module.named_parameters()
        if parameter.requires_grad and parameter.numel() and id(parameter) not in leaves
    }
    before = take.loss[1].detach()
    if not suspects or not bool(torch.isfinite(before)):
        return frozenset()

    def changes(parameters: list[nn.Parameter]) -> bool:
        values = [parameter.detach().clone() for parameter in parameters]
        with torch.no_grad():
            for parameter in parameters:
                parameter.mul_(1.25).add_(0.125)
        after = trial.play(twin, watch=False).loss
        with torch.no_grad():
            for parameter, value in zip(parameters, values, strict=True):
                parameter.copy_(value)
        return after is not None and not torch.equal(after[1].detach(), before)

    # A step that gives something else every time shows nothing.
    if changes([]) or not changes(list(suspects.values())):
        return frozenset()
    return frozenset(name for name, parameter in list(suspects.items())[:_ALONE] if changes([parameter]))
