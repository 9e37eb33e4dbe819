"""The paper's CNN for digits."""

import torch.nn.functional as F
from torch import Tensor, nn


class MnistCNN(nn.Module):
    """The CNN for digits: two 5x5 convolutions and three linear layers, 1,276,630 parameters.

    Input [n, in_channels, 28, 28], output [n, num_classes]. Dropout stands between layers.

    Source: Appendix I, "Architecture choices", after Schwobel et al. 2022.
    """

    def __init__(self, num_classes: int = 10, in_channels: int = 1) -> None:
        """Build the layers with PyTorch's own initialisation."""
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 20, 5, padding=2)
        self.conv2 = nn.Conv2d(20, 50, 5, padding=2)
        self.fc1 = nn.Linear(7 * 7 * 50, 500)
        self.fc2 = nn.Linear(500, 50)
        self.fc3 = nn.Linear(50, num_classes)
        self.dropouts = nn.ModuleList(nn.Dropout(0.1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Logits [n, num_classes] of images [n, in_channels, 28, 28]."""
        # Pooling before the ReLU gives the same values and gradients with a quarter of the work.
        x = self.dropouts[0](F.relu(F.max_pool2d(self.conv1(x), 2)))
        x = self.dropouts[1](F.relu(F.max_pool2d(self.conv2(x), 2)))
        x = self.dropouts[2](F.relu(self.fc1(x.flatten(1))))
        x = self.dropouts[3](F.relu(self.fc2(x)))
        logits: Tensor = self.fc3(x)
        return logits
