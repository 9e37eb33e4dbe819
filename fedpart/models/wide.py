"""Pre-activation residual networks with GroupNorm: Wide ResNet-20, and the paper's 50 layers."""

import torch.nn.functional as F
from torch import Tensor, nn

GROUPS = 2
WIDTHS = (16, 32, 64)


class PreActivationBlock(nn.Module):
    """Twice GroupNorm, ReLU, 3x3 convolution; a 1x1 projection where the shape changes.

    Source: He et al. 2016, "Identity mappings"; Zagoruyko and Komodakis 2016.
    """

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        """Build the layers with PyTorch's own initialisation."""
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(GROUPS, in_channels), nn.GroupNorm(GROUPS, channels)
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.project = None
        if in_channels != channels:
            self.project = nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[n, in_channels, h, w] -> [n, channels, h / stride, w / stride]."""
        active = F.relu(self.norm1(x))
        shortcut: Tensor = x if self.project is None else self.project(active)
        branch: Tensor = self.conv2(F.relu(self.norm2(self.conv1(active))))
        return shortcut + branch


class WideResNet(nn.Module):
    """Depth 6 n + 2, three stages of n blocks and 16, 32, 64 channels times ``width``.

    272,282 parameters at depth 20 for ten classes; 770,712 at depth 50 for 200 classes, which is
    the paper's "ResNet-50". Input [n, in_channels, h, w], output [n, num_classes].

    Source: Zagoruyko and Komodakis 2016; Appendix I, "Architecture choices" (three stages of 8
        layers, GroupNorm of two groups).
    """

    def __init__(
        self, depth: int, width: int = 1, num_classes: int = 10, in_channels: int = 3
    ) -> None:
        """Build (depth - 2) / 6 blocks in each stage."""
        super().__init__()
        each, before = (depth - 2) // 6, WIDTHS[0]
        self.conv1 = nn.Conv2d(in_channels, before, 3, padding=1, bias=False)
        stages = []
        for number, channels in enumerate(WIDTHS):
            blocks = []
            for i in range(each):
                stride = 2 if number and i == 0 else 1
                blocks.append(PreActivationBlock(before, width * channels, stride))
                before = width * channels
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.norm = nn.GroupNorm(GROUPS, before)
        self.out = nn.Linear(before, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, [n, num_classes]."""
        x = F.relu(self.norm(self.stages(self.conv1(x))))
        logits: Tensor = self.out(x.mean((2, 3)))
        return logits
