"""The multi-layer perceptron of the input-selection experiment."""

import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Module):
    """Two hidden layers of 256 with GELU: 74,242 parameters for 30 inputs and two classes.

    Input [n, ...] with ``in_features`` numbers each, output [n, num_classes].

    Source: Appendix I, "Architecture choices", PyTorch's (Kaiming-uniform) initialisation.
    """

    def __init__(self, num_classes: int, in_features: int) -> None:
        """Build the layers."""
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(in_features, 256), nn.Linear(256, 256)
        self.fc3 = nn.Linear(256, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, [n, num_classes]."""
        x = F.gelu(self.fc1(x.flatten(1)))
        logits: Tensor = self.fc3(F.gelu(self.fc2(x)))
        return logits
