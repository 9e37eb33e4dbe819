"""Post-hoc diagonal Laplace, the objective that L_ML is compared with; an optional extra."""

import copy
import warnings

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from fedpart.central.training import Training

_BATCH = 500


def log_marginal_likelihood(training: Training, inputs: Tensor, labels: Tensor) -> float:
    """Laplace's log marginal likelihood of all weights, with the best precision of the prior.

    Args:
        training: of one partition; its full network is approximated.
        inputs: all training examples, [n, ...].
        labels: [n].
    Returns:
        nats an example.
    Raises:
        DivergedError: it is not finite.
    Source: Immer et al. 2021, "Scalable marginal likelihood estimation", post-hoc with a diagonal
        generalised Gauss-Newton matrix; Section 5, "Input Selection".
    """
    with warnings.catch_warnings():
        # Of laplace-torch and what it builds on; nothing a user could do about them.
        warnings.simplefilter("ignore")
        from laplace import Laplace
        from laplace.curvature import AsdlGGN

        model = copy.deepcopy(training.program.network).eval()
        model.load_state_dict(training.trained()["model"])
        approximation = Laplace(
            model,
            "classification",
            subset_of_weights="all",
            hessian_structure="diag",
            backend=AsdlGGN,
        )
        with torch.enable_grad():
            approximation.fit(DataLoader(TensorDataset(inputs, labels), batch_size=_BATCH))
            approximation.optimize_prior_precision(method="marglik", pred_type="glm")
            value = float(approximation.log_marginal_likelihood().detach()) / len(labels)
    return training.check_value("the marginal likelihood", value)
