"""What changes in a training."""

from dataclasses import dataclass

from torch import Tensor

from fedpart.central.optimisers import Moments


@dataclass(frozen=True)
class TrainingState:
    """All that changes from iteration to iteration, replaced as a whole by each.

    Attributes:
        iteration: updates that are done.
        theta: every parameter, [P] float32.
        moments: of each partition's optimiser, in wire order.
        steps: steps that each partition has taken, [C].
        hyper: psi, [H] float32.
        hyper_moments: of its Adam.
        hyper_steps: its steps.
        loss: sum of the training losses since ``Training.take_loss``, nats an example.
        loss_steps: how many they are.
    """

    iteration: int
    theta: Tensor
    moments: tuple[Moments, ...]
    steps: tuple[int, ...]
    hyper: Tensor
    hyper_moments: Moments
    hyper_steps: int
    loss: float = 0.0
    loss_steps: int = 0
