"""Look-alikes in the loop: learning rates of zero, frozen blocks, rare steps, tiny updates that are all as they should be."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR
from torch.utils.data import TensorDataset

from health_cases.families import Family, Task, loader, overriding, seeded
from health_cases.look_alikes.architecture import over_trainable
from health_cases.ordinary import STEPS, stepwise, with_optimizer
from health_cases.set_up import Run, SetUp, changed, plain, trained

# Powers of two that make the scaler skip the first step and one or two more.
SCALES = {"mlp": 18, "conv": 20, "attention": 21, "ssm": 17}


def warm_up_from_zero(task: Task) -> Any:
    optimizer = torch.optim.AdamW(task.parameters(), lr=task.lr)
    return stepwise(optimizer, LambdaLR(optimizer, lambda step: min(1.0, step / 50)))


def cosine_to_zero(task: Task) -> Any:
    optimizer = torch.optim.Adam(task.parameters(), lr=task.lr)
    return stepwise(optimizer, CosineAnnealingLR(optimizer, STEPS))


def frozen_backbone(configure: Callable[[Task], Any]) -> Callable[[Task], None]:
    """All but the last layer is frozen."""

    def change(task: Task) -> None:
        task.net.requires_grad_(False)
        task.head.requires_grad_(True)
        overriding(task, configure_optimizers=configure)

    return change


def all_with_decay(task: Task) -> torch.optim.Optimizer:
    return torch.optim.AdamW(task.parameters(), lr=task.lr, weight_decay=0.1)


def lbfgs(task: Task) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(task.parameters(), lr=0.1, max_iter=2, history_size=2, line_search_fn="strong_wolfe")


def in_two_halves(task: Task) -> None:
    """Manual optimisation with two backward passes for one step."""
    task.automatic_optimization = False

    def training_step(self: Task, batch: Any, batch_idx: int) -> None:
        x, y = batch
        optimizer = self.optimizers()
        optimizer.zero_grad()
        half = len(x) // 2
        for part in (slice(0, half), slice(half, None)):
            loss = self.loss(self.predict(x[part]), y[part])
            self.log("train/loss", loss)
            self.manual_backward(len(x[part]) / len(x) * loss)
        optimizer.step()

    overriding(task, training_step=training_step)


def accumulated_by_hand(task: Task) -> None:
    """Manual optimisation that steps on every third batch."""
    task.automatic_optimization = False

    def training_step(self: Task, batch: Any, batch_idx: int) -> None:
        loss = Task.training_step(self, batch, batch_idx)
        self.manual_backward(loss / 3)
        if batch_idx % 3 == 2:
            optimizer = self.optimizers()
            optimizer.step()
            optimizer.zero_grad()

    overriding(task, training_step=training_step)


def fitted(family: Family, seed: int) -> Run:
    """A fitted model goes on with SGD, its gradients tiny. A regression's targets are its own answers and a little noise."""
    run = plain(family, seed)
    task = run.task.eval()
    x, y = family.data(seed).tensors
    for module in task.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    if y.is_floating_point():
        with torch.no_grad(), seeded(seed):
            answers = task.predict(x)
            run.batches = loader(TensorDataset(x, answers + 1e-3 * torch.randn_like(answers)), seed)
    else:
        fit_by_hand(task, run)
    overriding(task, configure_optimizers=lambda self: torch.optim.SGD(self.parameters(), lr=1e-3))
    task.train()
    return run


def fit_by_hand(task: Task, run: Run, rounds: int = 25) -> None:
    optimizer = torch.optim.Adam(task.parameters(), lr=task.lr)
    task.train()
    for _ in range(rounds):
        for x, y in run.batches:
            optimizer.zero_grad()
            task.loss(task.predict(x), y).backward()
            optimizer.step()


def noisy_plateau(family: Family, seed: int) -> Run:
    """Nothing is left to learn: targets are noise, and SGD walks about."""
    run = plain(family, seed)
    x, y = family.data(seed).tensors
    with seeded(seed):
        noise = torch.randn_like(y) if y.is_floating_point() else y.flatten()[torch.randperm(y.numel())].view_as(y)
    run.batches = loader(TensorDataset(x, noise), seed)
    overriding(run.task, configure_optimizers=lambda self: torch.optim.SGD(self.parameters(), lr=0.02))
    return run


def masked_out(task: Task) -> None:
    """One batch in eight has no observed target: its loss is zero, and so are all gradients."""

    def training_step(self: Task, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = self.loss(self.predict(x), y) * float(batch_idx % 8 != 3)
        self.log("train/loss", loss)
        return loss

    overriding(task, training_step=training_step)


def scaled(family: Family, seed: int) -> Run:
    """16-bit training whose loss scale is too large for the first steps: the scaler skips them."""
    run = plain(family, seed)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** SCALES[family.name])
    run.trainer = {"plugins": [MixedPrecision("16-mixed", "cpu", scaler)]}
    return run


def adversarial(task: Task) -> None:
    """The task's own loss and that of a critic of its predictions, each with an optimizer, toggled."""
    task.automatic_optimization = False
    task.critic = nn.Sequential(nn.LazyLinear(8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    task.critic(torch.zeros(1, 1 if task.criterion is nn.functional.mse_loss else 5))
    classes = task.criterion is not nn.functional.mse_loss

    def training_step(self: Task, batch: Any, batch_idx: int) -> None:
        x, y = batch
        real = nn.functional.one_hot(y, 5).float() if classes else y
        first, second = self.optimizers()
        score = nn.functional.binary_cross_entropy_with_logits

        self.toggle_optimizer(first)
        prediction = self.predict(x)
        judged, loss = self.critic(prediction), self.loss(prediction, y)
        self.log("train/loss", loss)
        first.zero_grad()
        self.manual_backward(loss + 0.1 * score(judged, torch.ones_like(judged)))
        first.step()
        self.untoggle_optimizer(first)

        self.toggle_optimizer(second)
        fake, genuine = self.critic(self.predict(x).detach()), self.critic(real)
        second.zero_grad()
        self.manual_backward(score(fake, torch.zeros_like(fake)) + score(genuine, torch.ones_like(genuine)))
        second.step()
        self.untoggle_optimizer(second)

    def configure_optimizers(self: Task) -> Any:
        adam = partial(torch.optim.Adam, betas=(0.5, 0.999))
        return [adam(self.net.parameters(), lr=1e-3), adam(self.critic.parameters(), lr=1e-3)], []

    overriding(task, training_step=training_step, configure_optimizers=configure_optimizers)


def actor_and_critic(task: Task) -> None:
    """A second head foretells the loss from detached features; its optimizer steps on every second batch."""
    task.automatic_optimization = False
    task.value = nn.Linear(12, 1)

    def training_step(self: Task, batch: Any, batch_idx: int) -> None:
        x, y = batch
        actor, critic = self.optimizers()
        features: list[Tensor] = []
        handle = self.head.register_forward_pre_hook(lambda module, args: features.append(args[0]))
        loss = self.loss(self.predict(x), y)
        self.log("train/loss", loss)
        handle.remove()
        actor.zero_grad()
        self.manual_backward(loss)
        actor.step()
        if batch_idx % 2:
            critic.zero_grad()
            self.manual_backward((self.value(features[0].detach()) - loss.detach()).square().mean())
            critic.step()

    def configure_optimizers(self: Task) -> Any:
        return [torch.optim.Adam(self.net.parameters(), lr=1e-2), torch.optim.Adam(self.value.parameters(), lr=1e-2)], []

    overriding(task, training_step=training_step, configure_optimizers=configure_optimizers)


SET_UPS = (
    SetUp("T3a", "warm-up from a learning rate of zero", changed(with_optimizer(warm_up_from_zero))),
    SetUp("T3b", "cosine to zero at the end", changed(with_optimizer(cosine_to_zero))),
    SetUp("T4", "a frozen backbone", changed(frozen_backbone(over_trainable))),
    SetUp("T5", "a frozen backbone that the optimizer holds too", changed(frozen_backbone(all_with_decay))),
    SetUp("T10a", "accumulation over three batches, which do not divide the epoch", trained(accumulate_grad_batches=3)),
    SetUp("T10b", "L-BFGS", changed(with_optimizer(lbfgs))),
    SetUp("T10c", "two backward passes for a step", changed(in_two_halves)),
    SetUp("T10d", "accumulation by hand", changed(accumulated_by_hand)),
    SetUp("T14", "bf16 weights and a learning rate to match", trained(precision="bf16-true")),
    SetUp("T17a", "a fitted model goes on", fitted),
    SetUp("T17b", "SGD on a noisy plateau", noisy_plateau),
    SetUp("T18a", "batches without any observed target", changed(masked_out)),
    SetUp("T18b", "the gradient scaler skips the first steps", scaled),
    SetUp("T21a", "a critic with an optimizer of its own, toggled", changed(adversarial)),
    SetUp("T21b", "actor and critic", changed(actor_and_critic)),
)
