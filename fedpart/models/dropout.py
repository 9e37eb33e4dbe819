"""Concrete dropout, and how a network's own dropout layers become it."""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedpart.models.draw import Source, uniform

CONCRETE_TEMPERATURE = 0.1
_ALPHA = nn.AlphaDropout | nn.FeatureAlphaDropout


class ConcreteDropout(nn.Module):
    """Dropout with a relaxed Bernoulli mask, differentiable in the drop rate.

    With l the logit of the drop rate p and u ~ U(0, 1) for each activation:
    z = sigmoid((l + log u - log(1 - u)) / temperature), output = x (1 - z) / (1 - p).
    The logit is a buffer, so that it is no parameter of the network: it belongs to psi.

    Attributes:
        logit: [] float32.
        generator: where noise comes from while training; ``noise`` sets it.
    Source: Maddison et al. 2017; Gal et al. 2017 (scaling); Appendix J.
    """

    hyperparameters: ClassVar = {"logit": torch.sigmoid}
    logit: Tensor

    def __init__(self, rate: float, channelwise: bool = False) -> None:
        """Start at drop probability ``rate`` in (0, 1); ``channelwise`` drops whole channels."""
        super().__init__()
        self.register_buffer("logit", torch.tensor(math.log(rate / (1 - rate))), persistent=False)
        self.channelwise = channelwise
        self.generator: Source | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as ``x``; ``x`` itself in evaluation mode."""
        if not self.training:
            return x
        # Noise in float32 whatever the activations: bfloat16 would round some of it up to 1.
        precise = torch.promote_types(x.dtype, torch.float32)
        shape, order = x.shape, torch.contiguous_format
        if self.channelwise:
            shape = torch.Size((*x.shape[:2], *(1,) * (x.dim() - 2)))
        elif x.dim() == 4:
            order = torch.channels_last
        noise = uniform(self.generator, shape, dtype=precise, device=x.device, order=order)
        noise = noise.logit_().div_(-CONCRETE_TEMPERATURE)
        keep = torch.sigmoid(noise - self.logit / CONCRETE_TEMPERATURE)
        # 1 / (1 - p) = 1 + exp(l)
        return x * (keep * (1 + self.logit.exp())).to(x.dtype)


def dropout_rates(module: nn.Module) -> list[float]:
    """Rates of the layers that ``swap_dropout`` gives another, each once, ascending."""
    layers = [m for m in module.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
    return sorted({float(layer.p) for layer in layers if not isinstance(layer, _ALPHA)})


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
            if isinstance(child, _ALPHA) or initial == 1:
                continue
            if child not in swapped:
                channelwise = not isinstance(child, nn.Dropout)
                swapped[child] = ConcreteDropout(initial, channelwise) if initial else nn.Identity()
                if initial:
                    names.append(f"{prefix}.{name}.logit" if prefix else f"{name}.logit")
            parent._modules[name] = swapped[child]
    return names
