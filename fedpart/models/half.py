"""bfloat16 for matrix products and convolutions inside ``torch.func.vmap``."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_PRODUCTS = frozenset(
    {F.linear, F.bilinear, F.conv1d, F.conv2d, F.conv3d}
    | {F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d}
    | {torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm, torch.einsum}
    | {Tensor.matmul, Tensor.__matmul__, Tensor.mm, Tensor.bmm}
)


class BatchedHalf(TorchFunctionMode):
    """What ``torch.autocast`` does for products, which vmap takes apart before it gets there."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Products in bfloat16; everything else as it is called."""
        kwargs = kwargs or {}
        if func in _PRODUCTS:
            args = tuple(_half(a) for a in args)
            kwargs = {name: _half(a) for name, a in kwargs.items()}
        return func(*args, **kwargs)


def _half(value: Any) -> Any:
    whole = isinstance(value, Tensor) and value.is_floating_point()
    return value.to(torch.bfloat16) if whole else value
