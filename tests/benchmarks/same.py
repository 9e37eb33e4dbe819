"""The same arithmetic as a partitioned round without messages or partition vectors.

Stock modules and a stock optimiser do the same numbers of images, copies, warps, dropout masks and
backward passes over the same cohort, with the same micro-batches and memory format: what the
product takes above it is what its generality costs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpart.data import FederatedData
from fedpart.program import Program
from fedpart.server import assign_chunks
from tests.benchmarks.loop import Dropout, Loop, warp


def network() -> nn.Sequential:
    """The CNN for digits."""
    return nn.Sequential(
        *(nn.Conv2d(1, 20, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(), Dropout()),
        *(nn.Conv2d(20, 50, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(), Dropout()),
        *(nn.Flatten(), nn.Linear(2450, 500), nn.ReLU(), Dropout()),
        *(nn.Linear(500, 50), nn.ReLU(), Dropout(), nn.Linear(50, 10)),
    ).to(memory_format=torch.channels_last)


class SameLoop(Loop):
    """The paper's method on a stock module and stock optimisers."""

    def __init__(self, program: Program, data: FederatedData) -> None:
        self.model = network()
        weights = [p for m in self.model for p in m.parameters() if not isinstance(m, Dropout)]
        super().__init__(program, data, weights)
        self.chunks = assign_chunks(self.config)
        self.logits = [m.logit for m in self.model if isinstance(m, Dropout)]
        self.widths = nn.Parameter(torch.full((6,), self.config.width_start))
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

    def gradient(self, x: Tensor, y: Tensor) -> None:
        self.backward(x, y, learn_psi=False)

    def partitions(self, client: int, x: Tensor, y: Tensor) -> int:
        chunk = int(self.chunks[client])
        if chunk and self.partitioned:
            self.backward(x, y, learn_psi=True)
        return self.config.num_partitions - chunk

    def __call__(self, server_round: int) -> None:
        self.psi.zero_grad()
        super().__call__(server_round)
        self.psi.step()
