"""The bare PyTorch loop that simulators are measured against: contiguous, one batch at a time.

W1 is FedAvg, 10 of 100 clients a round, 50 images each, one step of SGD; W3 is the same with every
image as ten warped copies whose logits are averaged, which is the paper's step. The server takes
an Adam step. It is what a careful user writes without thinking of caches or memory formats.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpart.data import FederatedData, to_float
from fedpart.models import ResNet9Narrow
from fedpart.models.resnet9 import Residual
from fedpart.program import Program
from tests.benchmarks.loop import Dropout, Loop, warp


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


def bare_resnet() -> nn.Module:
    """The narrow ResNet-9 as a user would take it, in the format that convolutions like best."""
    model = ResNet9Narrow()
    for block in (m for m in model.modules() if isinstance(m, Residual)):
        block.dropout = Dropout()
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class BareLoop(Loop):
    """FedAvg without a thought of caches, or for digits of memory formats."""

    def __init__(self, program: Program, data: FederatedData) -> None:
        colour = program.config.model == "resnet9-narrow"
        self.model = bare_resnet() if colour else BareCNN()
        for dropout in (m for m in self.model.modules() if isinstance(m, Dropout)):
            dropout.logit.requires_grad_(False)
        super().__init__(program, data, [p for p in self.model.parameters() if p.requires_grad])
        self.widths = torch.full((6,), self.config.width_start)

    def gradient(self, x: Tensor, y: Tensor) -> None:
        F.cross_entropy(self.logits(x), y).backward()

    def logits(self, x: Tensor) -> Tensor:
        """Mean logits of the copies of each image."""
        samples = self.config.samples
        # Of one channel there is nothing to gain.
        copies = x if x.shape[1] == 1 else x.contiguous(memory_format=torch.channels_last)
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
