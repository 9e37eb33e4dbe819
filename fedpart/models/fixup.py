"""Residual networks without normalisation: FixUp, with scalar scales and biases."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTHS = (16, 32, 64)


def _conv(in_channels: int, channels: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False)


class Bias(nn.Module):
    """Adds one learned number; its copies, one a partition, are summed."""

    partitioned_affine = {"value": "sum"}  # noqa: RUF012

    def __init__(self) -> None:
        """Start at 0."""
        super().__init__()
        self.value = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as ``x``."""
        return x + self.value


class Scale(nn.Module):
    """Multiplies by one learned number; its copies, one a partition, are multiplied."""

    partitioned_affine = {"value": "product"}  # noqa: RUF012

    def __init__(self) -> None:
        """Start at 1."""
        super().__init__()
        self.value = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as ``x``."""
        return x * self.value


class FixupBlock(nn.Module):
    """Two convolutions among four biases and a scale; the shortcut pads channels with zeros.

    Source: Zhang et al. 2019; Immer et al. 2022, whose shortcut and final ReLU these are.
    """

    def __init__(self, in_channels: int, channels: int, stride: int, num_blocks: int) -> None:
        """Initialise the branch so that the block starts as (nearly) the identity."""
        super().__init__()
        self.stride, self.padding = stride, channels - in_channels
        self.bias1a, self.bias1b, self.bias2a, self.bias2b = (Bias() for _ in range(4))
        self.scale = Scale()
        self.conv1, self.conv2 = _conv(in_channels, channels, stride), _conv(channels, channels)
        deviation = (2 / (channels * 9)) ** 0.5 * num_blocks**-0.5
        nn.init.normal_(self.conv1.weight, std=deviation)
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[n, in_channels, h, w] -> [n, channels, h / stride, w / stride]."""
        shifted = self.bias1a(x)
        branch = F.relu(self.bias1b(self.conv1(shifted)))
        branch = self.bias2b(self.scale(self.conv2(self.bias2a(branch))))
        if self.padding:
            x = F.pad(shifted[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.padding))
        return F.relu(x + branch)


class FixupResNet(nn.Module):
    """Depth 6 n + 2: 74,827 parameters at depth 8 and 171,610 at depth 14, ten classes.

    Input [n, in_channels, h, w], output [n, num_classes]. Its weights need their initial values as
    defaults (``--defaults init``): without normalisation a network of zeros passes nothing on.

    Source: Zhang et al. 2019; Appendix I, "Architecture choices".
    """

    def __init__(self, depth: int, num_classes: int = 10, in_channels: int = 3) -> None:
        """Build (depth - 2) / 6 blocks in each of three stages."""
        super().__init__()
        each = (depth - 2) // 6
        self.conv1, self.bias1, self.bias2 = _conv(in_channels, WIDTHS[0]), Bias(), Bias()
        blocks, before = [], WIDTHS[0]
        for stage, width in enumerate(WIDTHS):
            for i in range(each):
                stride = 2 if stage and i == 0 else 1
                blocks.append(FixupBlock(before, width, stride, 3 * each))
                before = width
        self.blocks = nn.Sequential(*blocks)
        self.out = nn.Linear(before, num_classes)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, [n, num_classes]."""
        x = self.blocks(F.relu(self.bias1(self.conv1(x))))
        logits: Tensor = self.out(self.bias2(x.mean((2, 3))))
        return logits
