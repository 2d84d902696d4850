"""Further look-alikes in the loss: summed, broadcast, unpaired, contrastive, adversarial, at its least."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from health_cases.families import ROWS
from health_cases.look_alikes.own import Own, classes, network, numbers, own, tokens


class VAE(Own):
    """Kingma and Welling's, as torch's own example has it: both terms summed over the batch, targets unused."""

    lr = 3e-3

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = network(8, 4), network(2, 8)

    def loss_of(self, batch: Any) -> Tensor:
        x, _ = batch
        mean, log_variance = self.encoder(x).chunk(2, -1)
        sample = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        rebuilt = F.mse_loss(self.decoder(sample), x, reduction="sum")
        return rebuilt - 0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()


class WGAN(Own):
    """Gulrajani's: five critic steps for each generator step, with a penalty on the gradient at points between."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.critic = network(4, 8), network(8, 1)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, _ = batch
        first, second = self.optimizers()
        fake = self.generator(torch.randn(len(x), 4))
        if batch_idx % 5 == 4:
            self.toggle_optimizer(first)
            first.zero_grad()
            self.manual_backward(-self.critic(fake).mean())
            first.step()
            self.untoggle_optimizer(first)
            return
        share = torch.rand(len(x), 1)
        between = (share * x + (1 - share) * fake.detach()).requires_grad_()
        slope = torch.autograd.grad(self.critic(between).sum(), between, create_graph=True)[0]
        penalty = (slope.norm(dim=1) - 1).square().mean()
        second.zero_grad()
        self.manual_backward(self.critic(fake.detach()).mean() - self.critic(x).mean() + 10 * penalty)
        second.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(net.parameters(), lr=1e-3, betas=(0.0, 0.9)) for net in (self.generator, self.critic)], []


class Quantiles(Own):
    """Three quantiles for one target: the loss broadcasts [b, 3] - [b, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network(8, 3)
        self.register_buffer("levels", torch.tensor([0.1, 0.5, 0.9]))

    def loss_of(self, batch: Any) -> Tensor:
        x, y = batch
        error = y - self.net(x)
        return torch.maximum(self.levels * error, (self.levels - 1) * error).mean()


class Contrastive(Own):
    """CLIP's: every row against every row of the batch, and a learned scale that is kept below 100."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = network(8, 6), network(8, 6)
        self.logit_scale = nn.Parameter(torch.tensor(2.6))

    def loss_of(self, batch: Any) -> Tensor:
        x, _ = batch
        left, right = F.normalize(self.left(x), dim=-1), F.normalize(self.right(x + 0.1 * torch.randn_like(x)), dim=-1)
        logits = self.logit_scale.exp() * left @ right.T
        label = torch.arange(len(x))
        return (F.cross_entropy(logits, label) + F.cross_entropy(logits.T, label)) / 2

    def on_train_batch_end(self, *args: Any) -> None:
        self.logit_scale.data.clamp_(0, 4.6052)


class Ranking(Own):
    """RankNet: all pairs of the batch, so (b, 1) - (b,) on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network(8, 1)

    def loss_of(self, batch: Any) -> Tensor:
        x, y = batch
        score, order = self.net(x)[:, 0], y[:, 0]
        return F.softplus(-(score[:, None] - score) * (order[:, None] - order).sign()).mean()


class Mixup(Own):
    """Mixed rows and labels, class weights, label smoothing."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network(8, 5)
        self.register_buffer("class_weights", torch.tensor([1.0, 2.0, 1.0, 0.5, 3.0]))

    def loss_of(self, batch: Any) -> Tensor:
        x, y = batch
        entropy = nn.CrossEntropyLoss(weight=self.class_weights, label_smoothing=0.1)
        if not self.training:
            return entropy(self.net(x), y)
        share, other = torch.distributions.Beta(0.4, 0.4).sample(), torch.randperm(len(x))
        prediction = self.net(share * x + (1 - share) * x[other])
        return share * entropy(prediction, y) + (1 - share) * entropy(prediction, y[other])


class NextToken(Own):
    """A language model whose output layer is its embedding; a batch is one tensor, its own target."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 16)
        self.body = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 12, bias=False)
        self.head.weight = self.embedding.weight

    def loss_of(self, batch: Any) -> Tensor:
        (x,) = batch
        return F.cross_entropy(self.head(self.body(self.embedding(x[:, :-1]))[0]).flatten(0, 1), x[:, 1:].flatten())


class Denoising(Own):
    """A diffusion model: each call draws its own noise level and noise, in validation too."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network(9, 8, 32)

    def loss_of(self, batch: Any) -> Tensor:
        x, _ = batch
        level, noise = torch.rand(len(x), 1), torch.randn_like(x)
        return F.mse_loss(self.net(torch.cat([level.sqrt() * noise + (1 - level).sqrt() * x, level], -1)), noise)


class Unpaired(Own):
    """A generator trained to match a distribution: no sample belongs to a target, so their order says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network(8, 1)

    def loss_of(self, batch: Any) -> Tensor:
        x, y = batch
        return (self.net(x).sort(0).values - y.sort(0).values).square().mean()


class Hinge(Own):
    """A support vector machine on separable classes: the loss reaches zero, and with it every gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(8, 1)

    def loss_of(self, batch: Any) -> Tensor:
        x, y = batch
        return F.relu(1 - (2.0 * y[:, None] - 1) * self.net(x)).mean()


def near_a_plane() -> tuple[Tensor, ...]:
    x = torch.randn(ROWS, 2) @ torch.randn(2, 8) + 0.1 * torch.randn(ROWS, 8)
    return x, x[:, :1]


def separable() -> tuple[Tensor, ...]:
    y = torch.randint(2, (ROWS,))
    return torch.randn(ROWS, 8) + 3.0 * (2.0 * y[:, None] - 1), y


class RarePositives(Own):
    """Two rows in a hundred are positive: most batches hold one class only."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network(8, 1)

    def loss_of(self, batch: Any) -> Tensor:
        x, y = batch
        return F.binary_cross_entropy_with_logits(self.net(x), y, pos_weight=torch.tensor(20.0))


def rare() -> tuple[Tensor, ...]:
    x, y = numbers()
    return x, (y > y.quantile(0.98)).float()


class Physics(Own):
    """A network for u with u' = -u: the loss is made of the derivative by its input, which needs a gradient itself."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

    def loss_of(self, batch: Any) -> Tensor:
        with torch.enable_grad():
            t = batch[0][:, :1].detach().clone().requires_grad_()
            u = self.net(t)
            slope = torch.autograd.grad(u.sum(), t, create_graph=True)[0]
            return (slope + u).square().mean() + (self.net(torch.zeros(1, 1)) - 1).square().mean()


class Adversarial(Own):
    """Madry's: inputs are moved uphill before each step."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network(8, 5)

    def loss_of(self, batch: Any) -> Tensor:
        x, y = batch
        with torch.enable_grad():
            shift = torch.zeros_like(x, requires_grad=True)
            slope = torch.autograd.grad(F.cross_entropy(self.net(x + shift), y), shift)[0]
        return F.cross_entropy(self.net(x + 0.1 * slope.sign()), y)


SET_UPS = (
    own("X1", "a variational autoencoder with a summed loss", VAE, near_a_plane),
    own("X2", "a GAN with a gradient penalty", WGAN, validated=False),
    own("X3", "quantiles of one target", Quantiles),
    own("X4", "a contrastive loss within the batch", Contrastive),
    own("X5", "a ranking loss over all pairs", Ranking),
    own("X6", "mixup, class weights, label smoothing", Mixup, classes),
    own("X7", "a language model with tied embedding", NextToken, tokens),
    own("X8", "a diffusion model, random in validation too", Denoising),
    own("X9", "an unpaired loss that ignores the order of targets", Unpaired),
    own("X10", "a hinge loss that reaches zero", Hinge, separable),
    own("X11", "targets of one class in most batches", RarePositives, rare),
    own("X12", "a loss made of derivatives by the input", Physics),
    own("X13", "adversarial training", Adversarial, classes),
)
