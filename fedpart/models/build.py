"""Models by name, and the user's own."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedpart.errors import ConfigError
from fedpart.models.digits import MnistCNN
from fedpart.models.fixup import FixupResNet
from fedpart.models.hyper import noise
from fedpart.models.mlp import MLP
from fedpart.models.resnet9 import ResNet9, ResNet9Narrow
from fedpart.models.wide import WideResNet
from fedpart.plugins import call_own, check_name, users_code
from fedpart.streams import global_seed


def _digits_cnn(num_classes: int, in_channels: int, image_shape: tuple[int, int]) -> nn.Module:
    if any(side // 4 != 7 for side in image_shape):
        shown = " by ".join(map(str, image_shape))
        raise ConfigError(
            f"model 'mnist-cnn' takes images of 28 by 28 pixels, not {shown}: use model resnet9, "
            "resnet9-narrow or mlp"
        )
    return MnistCNN(num_classes, in_channels)


# Called with the number of classes, the channels of the images, and (height, width).
MODELS: dict[str, Callable[[int, int, tuple[int, int]], nn.Module]] = {
    "mnist-cnn": _digits_cnn,
    "resnet9": lambda classes, channels, _: ResNet9(classes, channels),
    "resnet9-narrow": lambda classes, channels, _: ResNet9Narrow(classes, channels),
    "fixup-resnet8": lambda classes, channels, _: FixupResNet(8, classes, channels),
    "fixup-resnet14": lambda classes, channels, _: FixupResNet(14, classes, channels),
    "wide-resnet20": lambda classes, channels, _: WideResNet(20, 1, classes, channels),
    "resnet50": lambda classes, channels, _: WideResNet(50, 1, classes, channels),
    "mlp": lambda classes, channels, side: MLP(classes, channels * side[0] * side[1]),
}


def check_module(module: nn.Module) -> None:
    """Refuse layers and parameters that no partition could own.

    Raises:
        ConfigError: names the first layer with running statistics, or the first parameter that has
            no shape yet, is frozen, or is not float32.
    Source: Appendix I, "Partitioned affine transformations"; statistics would leak data across
        chunks.
    """
    for name, part in module.named_modules():
        if getattr(part, "running_mean", None) is not None:
            raise ConfigError(
                f"layer {name} ({type(part).__name__}) keeps running statistics, which belong to "
                "no partition and would leak data between chunks: use GroupNorm or LayerNorm"
            )
    for name, parameter in module.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            raise ConfigError(
                f"parameter {name} has no shape yet: call the model once on a blank image before "
                "returning it, or give the layer its sizes"
            )
        if parameter.dtype != torch.float32:
            raise ConfigError(
                f"parameter {name} is {parameter.dtype}; weights are kept in float32: leave "
                "double, half and the like out (--precision bf16 computes in half)"
            )
        if not parameter.requires_grad:
            raise ConfigError(
                f"parameter {name} is frozen (requires_grad is False), but every parameter has a "
                "partition and is trained: make it a buffer, which stays as it is"
            )


def build_model(
    spec: str, num_classes: int, in_channels: int, image_shape: tuple[int, int] = (28, 28)
) -> nn.Module:
    """The network called ``spec``.

    Args:
        spec: a name of ``MODELS``, or ``module:function`` that is called with ``num_classes`` and
            ``in_channels`` and returns an ``nn.Module``; the working directory is searched too.
        num_classes: number of outputs.
        in_channels: channels of the images.
        image_shape: (height, width) in pixels.
    Raises:
        ConfigError: no such model, it cannot be imported or built, or
            ``check_module`` refuses it.
    """
    try:
        check_name(spec, list(MODELS), "function")
    except ValueError as error:
        raise ConfigError(f"model {error}") from None
    if spec in MODELS:
        return MODELS[spec](num_classes, in_channels, image_shape)
    model = call_own("model", spec, num_classes=num_classes, in_channels=in_channels)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model {spec!r} returned {type(model).__name__}, not a torch.nn.Module")
    check_module(model)
    return model


def noise_images(in_channels: int, image_shape: tuple[int, int]) -> Tensor:
    """Two images of noise in [0, 1) on which models are tried, [2, c, h, w], always the same.

    Blank ones would hide a model that mixes up positions, and give 0 / 0 in one that normalises.
    """
    rng = torch.Generator().manual_seed(0)
    return torch.rand(2, in_channels, *image_shape, generator=rng)


def try_out(network: nn.Module, model: str, num_classes: int | None, inputs: Tensor) -> int:
    """Apply a network to inputs once in training and once in evaluation mode.

    Args:
        network: left in evaluation mode.
        model: what the user calls it.
        num_classes: number of outputs it must have, or None for any.
        inputs: such as images, [n, c, h, w].
    Returns:
        number of outputs.
    Raises:
        ConfigError: it raises, or gives another shape, values that are not finite, probabilities,
            or values through which no gradient reaches its parameters; or it changes its own
            buffers, which are in no partition.
    """
    on = "inputs" if len(inputs) > 1 else "a single input"
    trial = f"trial on {on} of shape {tuple(inputs.shape[1:])} with model"
    rng = torch.Generator().manual_seed(0)
    with users_code(trial, model), global_seed(0), noise(network, rng):
        for training in (True, False):
            # Clones, since some models write to their weights or buffers.
            own = {n: p.detach().requires_grad_().clone() for n, p in network.named_parameters()}
            own |= {n: buffer.clone() for n, buffer in network.named_buffers()}
            logits: Tensor = functional_call(network.train(training), own, inputs)
            shape = tuple(logits.shape)
            if len(shape) != 2 or shape != (len(inputs), num_classes or shape[1]):
                wanted = f"({len(inputs)}, {num_classes or 'number of classes'})"
                raise ConfigError(f"model {model!r} gives {shape}, not a tensor of shape {wanted}")
            if not logits.isfinite().all():
                raise ConfigError(
                    f"model {model!r} gives values that are not finite at its start: mend its "
                    "initial weights or its forward"
                )
            if shape[1] > 1 and (logits >= 0).all() and ((logits.sum(1) - 1).abs() < 1e-3).all():
                raise ConfigError(
                    f"model {model!r} gives probabilities, of which a softmax would be taken once "
                    "more: leave the softmax at its end out"
                )
            if not logits.requires_grad:
                raise ConfigError(
                    f"model {model!r} gives values through which no gradient reaches its "
                    "parameters: leave detach and no_grad out of its forward"
                )
            for name, before in network.named_buffers():
                if ((before != own[name]) & ~(before.isnan() & own[name].isnan())).any():
                    raise ConfigError(
                        f"model {model!r} changes its buffer {name} in a forward pass, which "
                        "belongs to no partition and would leak data between chunks: have it "
                        "depend on nothing it has seen before"
                    )
    return shape[1]
