"""Networks: the paper's CNN for digits, concrete dropout, and the user's own modules."""

import importlib
import math
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpart.errors import ConfigError, cause

CONCRETE_TEMPERATURE = 0.1


class MnistCNN(nn.Module):
    """The CNN for digits: two 5x5 convolutions and three linear layers, 1,276,630 parameters.

    Input [n, in_channels, 28, 28], output [n, num_classes]. Dropout stands between layers.

    Source: Appendix "Architecture choices", after Schwobel et al. 2022.
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


class ConcreteDropout(nn.Module):
    """Dropout with a relaxed Bernoulli mask, differentiable in the drop rate.

    With l the logit of the drop rate p and u ~ U(0, 1) for each activation:
    z = sigmoid((l + log u - log(1 - u)) / temperature), output = x (1 - z) / (1 - p).
    The logit is a buffer, so that it is no parameter of the network: it belongs to psi.

    Attributes:
        logit: [] float32.
        generator: where noise comes from while training; ``noise`` sets it.
    Source: Maddison et al. 2017; Gal et al. 2017 (scaling); Appendix H.
    """

    hyperparameters: ClassVar = {"logit": torch.sigmoid}
    logit: Tensor

    def __init__(self, rate: float, channelwise: bool = False) -> None:
        """Start at drop probability ``rate`` in (0, 1); ``channelwise`` drops whole channels."""
        super().__init__()
        self.register_buffer("logit", torch.tensor(math.log(rate / (1 - rate))), persistent=False)
        self.channelwise = channelwise
        self.generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as ``x``; ``x`` itself in evaluation mode."""
        if not self.training:
            return x
        # Noise in float32 whatever the activations: bfloat16 would round some of it up to 1.
        precise = torch.promote_types(x.dtype, torch.float32)
        if self.channelwise:
            noise = x.new_empty((*x.shape[:2], *(1,) * (x.dim() - 2)), dtype=precise)
        else:
            noise = torch.empty_like(x, dtype=precise, requires_grad=False)
        noise.uniform_(generator=self.generator).logit_().div_(-CONCRETE_TEMPERATURE)
        keep = torch.sigmoid(noise - self.logit / CONCRETE_TEMPERATURE)
        # 1 / (1 - p) = 1 + exp(l)
        return x * (keep * (1 + self.logit.exp())).to(x.dtype)


@contextmanager
def noise(module: nn.Module, generator: torch.Generator) -> Iterator[None]:
    """Lend ``generator`` to all layers of ``module`` that declare hyperparameters."""
    layers = [m for m in module.modules() if hasattr(m, "hyperparameters")]
    for layer in layers:
        layer.generator = generator  # type: ignore[assignment]
    try:
        yield
    finally:
        for layer in layers:
            layer.generator = None  # type: ignore[assignment]


def swap_dropout(module: nn.Module, rate: float | None) -> list[str]:
    """Replace ``nn.Dropout`` (1d, 2d, 3d too) by ``ConcreteDropout``, in place.

    Args:
        module: any network.
        rate: initial drop probability for all of them; None keeps each layer's own.
    Returns:
        names of the logits, in the module's order. A layer with rate 0 is taken out; one with
        rate 1, and alpha dropout, are left as they are.
    """
    names = []
    swapped: dict[nn.Module, nn.Module] = {}
    for prefix, parent in list(module.named_modules()):
        # Not named_children(), which passes over a layer's second name in the same parent.
        for name, child in list(parent._modules.items()):
            if not isinstance(child, nn.modules.dropout._DropoutNd):
                continue
            initial = child.p if rate is None else rate
            if isinstance(child, nn.AlphaDropout | nn.FeatureAlphaDropout) or initial == 1:
                continue
            if child not in swapped:
                channelwise = not isinstance(child, nn.Dropout)
                swapped[child] = ConcreteDropout(initial, channelwise) if initial else nn.Identity()
                if initial:
                    names.append(f"{prefix}.{name}.logit" if prefix else f"{name}.logit")
            parent._modules[name] = swapped[child]
    return names


def refuse_running_statistics(module: nn.Module) -> None:
    """Refuse layers whose running statistics no partition could own.

    Raises:
        ConfigError: names the first such layer.
    Source: Appendix "Partitioned affine transformations"; statistics would leak data across chunks.
    """
    for name, part in module.named_modules():
        if getattr(part, "running_mean", None) is not None:
            raise ConfigError(
                f"layer {name} ({type(part).__name__}) keeps running statistics, which belong to "
                "no partition and would leak data between chunks: use GroupNorm or LayerNorm"
            )


def build_model(spec: str, num_classes: int, in_channels: int) -> nn.Module:
    """The network called ``spec``.

    Args:
        spec: ``mnist-cnn``, or ``module:function`` that is called with ``num_classes`` and
            ``in_channels`` and returns an ``nn.Module``; the working directory is searched too.
        num_classes: number of outputs.
        in_channels: channels of the images.
    Raises:
        ConfigError: no such model, it cannot be imported or built, or it keeps running statistics.
    """
    if spec == "mnist-cnn":
        return MnistCNN(num_classes, in_channels)
    module_name, colon, function = spec.partition(":")
    if not colon:
        raise ConfigError(
            f"model {spec!r} is unknown: use mnist-cnn, or module:function for your own"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        model = getattr(importlib.import_module(module_name), function)(
            num_classes=num_classes, in_channels=in_channels
        )
    except Exception as error:  # whatever the user's code raises is the user's to read
        raise ConfigError(f"model {spec!r}: {cause(traceback.format_exc())}") from error
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model {spec!r} returned {type(model).__name__}, not a torch.nn.Module")
    refuse_running_statistics(model)
    lazy = [n for n, p in model.named_parameters() if isinstance(p, nn.UninitializedParameter)]
    if lazy:
        raise ConfigError(
            f"parameter {lazy[0]} of model {spec!r} has no shape yet: call the model once on a "
            "blank image before returning it, or give the layer its sizes"
        )
    return model
