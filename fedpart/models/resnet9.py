"""ResNet-9 for CIFAR images, with GroupNorm, and a narrower variant."""

import torch.nn.functional as F
from torch import Tensor, nn

# Statistics of BatchNorm would belong to no partition; two groups as in the paper's ResNet-50.
GROUPS = 2


class ConvNorm(nn.Module):
    """3x3 convolution without bias, GroupNorm of two groups, ReLU; [n, c, h, w].

    ``pool`` halves height and width. Pooling before the ReLU gives the same values and gradients
    with a quarter of the work.
    """

    def __init__(self, in_channels: int, channels: int, pool: bool = False) -> None:
        """Build the layers with PyTorch's own initialisation."""
        super().__init__()
        self.conv = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(GROUPS, channels)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        """Activations, none negative."""
        x = self.norm(self.conv(x))
        return F.relu(F.max_pool2d(x, 2) if self.pool else x)


class Residual(nn.Module):
    """``x`` plus two ``ConvNorm`` with dropout between them; the shape stays.

    Source: Page 2018, addition after the second ReLU; Appendix J for the dropout ("on the middle
        layer of each block").
    """

    def __init__(self, channels: int) -> None:
        """Build both layers."""
        super().__init__()
        self.first, self.second = ConvNorm(channels, channels), ConvNorm(channels, channels)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, h, w] in and out."""
        branch: Tensor = self.second(self.dropout(self.first(x)))
        return x + branch


class ResNet9(nn.Module):
    """Eight convolutions and a linear layer, 6,573,120 parameters for colour and ten classes.

    Input [n, in_channels, h, w] with h and w multiples of 8, 32 in the paper; output
    [n, num_classes].

    Source: Page 2018 ("How to train your ResNet"), GroupNorm for its BatchNorm.
    """

    def __init__(self, num_classes: int = 10, in_channels: int = 3) -> None:
        """Build the layers with PyTorch's own initialisation."""
        super().__init__()
        self.features = nn.Sequential(
            ConvNorm(in_channels, 64),
            ConvNorm(64, 128, pool=True),
            Residual(128),
            ConvNorm(128, 256, pool=True),
            ConvNorm(256, 512, pool=True),
            Residual(512),
        )
        self.out = nn.Linear(512, num_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, [n, num_classes]."""
        logits: Tensor = self.out(self.features(x).amax((2, 3)))
        return logits * 0.125


class ResNet9Narrow(nn.Module):
    """At most 256 channels, 2,447,946 parameters; images must be 32x32.

    Source: a common smaller ResNet-9 for CIFAR10 (M. Wright, "cifar10-resnet"), with GroupNorm.
    """

    def __init__(self, num_classes: int = 10, in_channels: int = 3) -> None:
        """Build the layers with PyTorch's own initialisation."""
        super().__init__()
        self.features = nn.Sequential(
            ConvNorm(in_channels, 64),
            ConvNorm(64, 128, pool=True),
            Residual(128),
            ConvNorm(128, 256, pool=True),
            ConvNorm(256, 256, pool=True),
            Residual(256),
            nn.MaxPool2d(2),
        )
        self.out = nn.Linear(256 * 2 * 2, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, [n, num_classes]."""
        logits: Tensor = self.out(self.features(x).flatten(1))
        return logits
