"""The same arithmetic as a partitioned round without messages or partition vectors.

Stock modules and a stock optimiser do the same numbers of images, copies, warps, dropout masks and
backward passes over the same cohort, with the same micro-batches and memory format: what the
product takes above it is what its generality costs.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpart.data import FederatedData, to_float
from fedpart.program import Program
from fedpart.server import assign_chunks, sample_clients

TEMPERATURE = 0.1


class Dropout(nn.Module):
    """Concrete dropout with a logit of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.tensor(math.log(0.1 / 0.9)))

    def forward(self, x: Tensor) -> Tensor:
        u = torch.logit(torch.empty_like(x).uniform_())
        keep = torch.sigmoid((-self.logit - u) / TEMPERATURE)
        return x * (keep * (1 + self.logit.exp()))


def network() -> nn.Sequential:
    """The CNN for digits."""
    return nn.Sequential(
        *(nn.Conv2d(1, 20, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(), Dropout()),
        *(nn.Conv2d(20, 50, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(), Dropout()),
        *(nn.Flatten(), nn.Linear(2450, 500), nn.ReLU(), Dropout()),
        *(nn.Linear(500, 50), nn.ReLU(), Dropout(), nn.Linear(50, 10)),
    ).to(memory_format=torch.channels_last)


def warp(x: Tensor, widths: Tensor) -> Tensor:
    """Rotation, shift, scale and shear of each image, drawn anew."""
    e = widths * (2 * torch.rand(len(x), 6) - 1)
    c, s = (math.pi * e[:, 0]).cos(), (math.pi * e[:, 0]).sin()
    sx, sy, h = e[:, 3].exp(), e[:, 4].exp(), e[:, 5]
    a = torch.stack([sx * c, h * sy * c - sy * s, sx * s, h * sy * s + sy * c], 1).view(-1, 2, 2)
    matrix = torch.cat([a, -a @ e[:, 1:3, None]], 2)
    grid = F.affine_grid(matrix, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, align_corners=False)


class SameLoop:
    """One call is one round."""

    def __init__(self, program: Program, data: FederatedData) -> None:
        self.program, self.config, self.data = program, program.config, data
        self.chunks = assign_chunks(self.config)
        self.model = network()
        weights = [p for m in self.model for p in m.parameters() if not isinstance(m, Dropout)]
        self.logits = [m.logit for m in self.model if isinstance(m, Dropout)]
        self.weights = weights
        self.widths = nn.Parameter(torch.full((6,), self.config.width_start))
        self.server = torch.optim.Adam(weights, lr=self.config.server_lr)
        self.psi = torch.optim.Adam([self.widths, *self.logits], lr=self.config.hyper_lr)
        self.partitioned = self.config.method == "partitioned"

    def loss(self, x: Tensor, y: Tensor, total: int, learn_psi: bool) -> Tensor:
        """Sum over a micro-batch of the negative log-likelihood, over ``total``."""
        if self.partitioned:
            x = x.repeat_interleave(self.config.samples, 0)
            with torch.set_grad_enabled(learn_psi):
                x = warp(x, self.widths)
        logits = self.model(x).view(len(y), self.config.samples, -1).mean(1)
        return F.cross_entropy(logits, y, reduction="sum") / total

    def backward(self, x: Tensor, y: Tensor, learn_psi: bool) -> None:
        """Accumulate gradients of one batch, micro-batch by micro-batch."""
        for p in self.weights:
            p.requires_grad_(not learn_psi)
        for p in (self.widths, *self.logits):
            p.requires_grad_(learn_psi)
        for a, b in self.program.micro_batches(x, y):
            self.loss(a, b, len(y), learn_psi).backward()

    def __call__(self, server_round: int) -> None:
        """A round: every client trains each of its partitions once, the server takes a step."""
        start = [w.detach().clone() for w in self.weights]
        mean = [torch.zeros_like(w) for w in self.weights]
        self.psi.zero_grad()
        for client in sample_clients(self.config, server_round):
            images, labels = self.data.client(client)
            x, y = to_float(images), torch.from_numpy(labels)
            chunk = int(self.chunks[client])
            if chunk and self.partitioned:
                self.backward(x, y, learn_psi=True)
            for _ in range(chunk, self.config.num_partitions):
                optimizer = torch.optim.SGD(self.weights, lr=self.config.client_lr)
                for batch in torch.randperm(len(y)).split(self.config.batch_size):
                    optimizer.zero_grad()
                    self.backward(x[batch], y[batch], learn_psi=False)
                    optimizer.step()
                with torch.no_grad():
                    for m, w, s in zip(mean, self.weights, start, strict=True):
                        m.add_(s - w, alpha=1 / self.config.clients_per_round)
                        w.copy_(s)
        for w, m in zip(self.weights, mean, strict=True):
            w.grad = m
        self.server.step()
        self.psi.step()
