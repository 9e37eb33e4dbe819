"""Optimisers that know the values of one partition, or psi, at a time."""

import torch
from torch import Tensor

BETA1, BETA2 = 0.9, 0.999


def adam(
    value: Tensor, gradient: Tensor, m: Tensor, v: Tensor, step: int, lr: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """One bias-corrected step of Adam, as ``torch.optim.Adam`` takes it.

    Args:
        value: [n].
        gradient: [n].
        m: first moments, [n].
        v: second moments, [n].
        step: number of this step, from 1.
        lr: learning rate.
        eps: added to the root of the second moment.
    Returns:
        new value, m, v; nothing is changed in place.
    Source: Kingma and Ba 2015; Appendix J ("standard PyTorch values").
    """
    m = torch.lerp(m, gradient, 1 - BETA1)
    v = (v * BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
    denominator = (v.sqrt() / (1 - BETA2**step) ** 0.5).add_(eps)
    return value.addcdiv(m, denominator, value=-lr / (1 - BETA1**step)), m, v
