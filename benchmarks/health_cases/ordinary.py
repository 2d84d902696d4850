"""Six ordinary ways to train: any tool that finds fault with one of these is of no use."""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR

from health_cases.families import Family, Task, overriding
from health_cases.set_up import Run, SetUp, changed, plain, trained

STEPS = 200
# Attention learns nothing with a smaller rate, the SSM is thrown off by a larger one.
SGD_RATES = {"attention": 0.1, "ssm": 0.02}


def with_optimizer(make: Callable[[Task], Any]) -> Callable[[Task], None]:
    """Let the task return this from configure_optimizers."""
    return lambda task: overriding(task, configure_optimizers=make)


def stepwise(optimizer: torch.optim.Optimizer, schedule: torch.optim.lr_scheduler.LRScheduler) -> dict[str, Any]:
    """A schedule that advances with every optimizer step."""
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def sgd_with_cosine(task: Task) -> Any:
    optimizer = torch.optim.SGD(task.parameters(), lr=task.lr, momentum=0.9)
    return stepwise(optimizer, CosineAnnealingLR(optimizer, 2 * STEPS))


def sgd(family: Family, seed: int) -> Run:
    run = changed(with_optimizer(sgd_with_cosine))(family, seed)
    run.task.lr = SGD_RATES.get(family.name, 0.05)
    return run


def adamw_with_warm_up(task: Task) -> Any:
    optimizer = torch.optim.AdamW(task.parameters(), lr=task.lr)
    return stepwise(optimizer, LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20)))


def one_cycle(task: Task) -> Any:
    decayed = [p for p in task.parameters() if p.ndim > 1]
    kept = [p for p in task.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": kept, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=task.lr)
    return stepwise(optimizer, OneCycleLR(optimizer, max_lr=2e-2, total_steps=STEPS + 1))


def with_dropout(task: Task) -> None:
    overriding(task, configure_optimizers=one_cycle)
    task.head.register_forward_pre_hook(lambda module, args: torch.nn.functional.dropout(args[0], 0.2, module.training))


def clipped(family: Family, seed: int) -> Run:
    run = changed(with_optimizer(adamw_with_warm_up))(family, seed)
    run.trainer = {"gradient_clip_val": 1.0}
    return run


SET_UPS = (
    SetUp("S1", "Adam", plain),
    SetUp("S2", "SGD with momentum and a cosine schedule", sgd),
    SetUp("S3", "AdamW with warm-up and clipping", clipped),
    SetUp("S4", "accumulation over four batches, clipping", trained(accumulate_grad_batches=4, gradient_clip_val=1.0)),
    SetUp("S5", "bf16-mixed", trained(precision="bf16-mixed")),
    SetUp("S6", "dropout, weight decay by group, OneCycle", changed(with_dropout)),
)
