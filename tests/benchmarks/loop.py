"""What the two loops beside the product have in common: dropout, warp, and a round."""

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpart.cohort import draw_cohort
from fedpart.data import FederatedData
from fedpart.program import Program

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


def warp(x: Tensor, widths: Tensor) -> Tensor:
    """Rotation, shift, scale and shear of each image, which is square, drawn anew."""
    e = widths * (2 * torch.rand(len(x), 6) - 1)
    c, s = (math.pi * e[:, 0]).cos(), (math.pi * e[:, 0]).sin()
    sx, sy, h = e[:, 3].exp(), e[:, 4].exp(), e[:, 5]
    a = torch.stack([sx * c, h * sy * c - sy * s, sx * s, h * sy * s + sy * c], 1).view(-1, 2, 2)
    matrix = torch.cat([a, -a @ e[:, 1:3, None]], 2)
    grid = F.affine_grid(matrix, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, align_corners=False)


class Loop(ABC):
    """One call is one round: clients train, the server takes an Adam step on their mean delta.

    Attributes:
        config: cohort, batch size, learning rates.
        data: each client's images.
        weights: of the network, which all clients share in turn.
        server: the optimiser.
    """

    def __init__(self, program: Program, data: FederatedData, weights: list[nn.Parameter]) -> None:
        self.program, self.config, self.data = program, program.config, data
        self.weights = weights
        self.server = torch.optim.Adam(weights, lr=self.config.server_lr)

    @abstractmethod
    def gradient(self, x: Tensor, y: Tensor) -> None:
        """Accumulate the gradient of one batch."""

    def partitions(self, client: int, x: Tensor, y: Tensor) -> int:
        """How many a client trains, one after the other."""
        return 1

    def __call__(self, server_round: int) -> None:
        start = [w.detach().clone() for w in self.weights]
        mean = [torch.zeros_like(w) for w in self.weights]
        for client in draw_cohort(self.config, server_round).clients:
            images, labels = self.data.client(client)
            x, y = self.program.to_float(images), torch.from_numpy(labels)
            for _ in range(self.partitions(client, x, y)):
                optimizer = torch.optim.SGD(self.weights, lr=self.config.client_lr)
                for batch in torch.randperm(len(y)).split(self.config.batch_size):
                    optimizer.zero_grad()
                    self.gradient(x[batch], y[batch])
                    optimizer.step()
                with torch.no_grad():
                    for m, w, s in zip(mean, self.weights, start, strict=True):
                        m.add_(s - w, alpha=1 / self.config.clients_per_round)
                        w.copy_(s)
        for w, m in zip(self.weights, mean, strict=True):
            w.grad = m
        self.server.step()
