"""The bare PyTorch loop that simulators are measured against: contiguous, one batch at a time.

W1 is FedAvg, 10 of 100 clients a round, 50 images each, one step of SGD; W3 is the same with every
image as ten warped copies whose logits are averaged, which is the paper's step. The server takes
an Adam step. It is what a careful user writes without thinking of caches or memory formats.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpart.data import FederatedData, to_float
from fedpart.program import Program
from fedpart.server import sample_clients
from tests.benchmarks.same import Dropout, warp


class BareCNN(nn.Module):
    """The CNN for digits in the order of its description: convolution, ReLU, pooling, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5, padding=2)
        self.conv2 = nn.Conv2d(20, 50, 5, padding=2)
        self.fc1, self.fc2, self.fc3 = nn.Linear(2450, 500), nn.Linear(500, 50), nn.Linear(50, 10)
        self.dropouts = nn.ModuleList(Dropout() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropouts[0](F.max_pool2d(F.relu(self.conv1(x)), 2))
        x = self.dropouts[1](F.max_pool2d(F.relu(self.conv2(x)), 2))
        x = self.dropouts[2](F.relu(self.fc1(x.flatten(1))))
        x = self.dropouts[3](F.relu(self.fc2(x)))
        logits: Tensor = self.fc3(x)
        return logits


class BareLoop:
    """One call is one round."""

    def __init__(self, program: Program, data: FederatedData) -> None:
        self.config, self.data, self.model = program.config, data, BareCNN()
        logits = {id(d.logit) for d in self.model.dropouts}
        for dropout in self.model.dropouts:
            dropout.logit.requires_grad_(False)
        self.weights = [p for p in self.model.parameters() if id(p) not in logits]
        self.widths = torch.full((6,), self.config.width_start)
        self.server = torch.optim.Adam(self.weights, lr=self.config.server_lr)

    def logits(self, x: Tensor) -> Tensor:
        """Mean logits of the copies of each image."""
        samples = self.config.samples
        copies = x
        if self.config.augmentation != "none":
            copies = warp(x.repeat_interleave(samples, 0), self.widths)
        return self.model(copies).view(len(x), samples, -1).mean(1)

    def evaluate(self) -> float:
        """Accuracy on the validation images, a hundred at a time."""
        x, y = to_float(self.data.val_images), torch.from_numpy(self.data.val_labels)
        self.model.eval()
        with torch.no_grad():
            right = sum(
                int((self.logits(a).argmax(1) == b).sum())
                for a, b in zip(x.split(100), y.split(100), strict=True)
            )
        self.model.train()
        return right / len(y)

    def __call__(self, server_round: int) -> None:
        start = [w.detach().clone() for w in self.weights]
        mean = [torch.zeros_like(w) for w in self.weights]
        for client in sample_clients(self.config, server_round):
            images, labels = self.data.client(client)
            x, y = to_float(images), torch.from_numpy(labels)
            optimizer = torch.optim.SGD(self.weights, lr=self.config.client_lr)
            for batch in torch.randperm(len(y)).split(self.config.batch_size):
                optimizer.zero_grad()
                F.cross_entropy(self.logits(x[batch]), y[batch]).backward()
                optimizer.step()
            with torch.no_grad():
                for m, w, s in zip(mean, self.weights, start, strict=True):
                    m.add_(s - w, alpha=1 / self.config.clients_per_round)
                    w.copy_(s)
        for w, m in zip(self.weights, mean, strict=True):
            w.grad = m
        self.server.step()
