"""Networks that share no weight, in the place of the subnetworks of one: the upper bound."""

import numpy as np
import torch
from torch import Tensor, nn

from fedpart.layout import Layout


def separate(network: nn.Module, count: int) -> tuple[Layout, Tensor]:
    """As many networks as there are chunks, each a partition, all begun with the same values.

    Every parameter has a copy for each, and ``merge`` sums them: with all but one copy at zero,
    that is the one's value.

    Args:
        network: what each of them is.
        count: how many.
    Returns:
        the layout, and initial values [P], P = ``count`` times the network's.
    Source: Section 5, "we train C different networks where network k is fit on data D_1:k".
    """
    roles = {name: "sum" for name, _ in network.named_parameters()}
    layout = Layout.assign(network, count, roles, lambda *_: np.empty(0))
    parts = [p.detach().to(torch.float32).reshape(-1).repeat(count) for p in network.parameters()]
    return layout, torch.cat(parts)


def only(theta: Tensor, ids: Tensor, k: int) -> Tensor:
    """Network ``k - 1`` alone, [P]: the others' values are zero; no network for ``k`` = 0.

    Args:
        theta: all networks, [P].
        ids: whose each value is, [P].
        k: 0..C; as subnetwork ``k`` it is the one trained on the chunks ``< k``.
    """
    return torch.where(ids == k - 1, theta, 0.0)
