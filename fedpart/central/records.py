"""What the files of a central run folder hold; also their JSON schemas."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from fedpart.central.settings import Method
from fedpart.records import SCHEMAS, Record

if TYPE_CHECKING:
    from fedpart.central.config import CentralConfig


class CentralEvaluation(Record):
    """One line of ``evaluations.jsonl``; accuracies are fractions, likelihoods nats an example."""

    iteration: int = Field(ge=1, description="updates done")
    train_loss: float = Field(description="mean over the updates since the last evaluation")
    l_ml: float | None = Field(
        description="mean out-of-sample log-likelihood of all chunks but the first, null with one; "
        "of method laplace, its log marginal likelihood an example"
    )
    l_ml_by_chunk: list[float] = Field(description="chunk 1 and on, each by its subnetwork")
    train_accuracy: float = Field(ge=0, le=1, description="of the full network")
    train_log_likelihood: float
    test_accuracy: float = Field(ge=0, le=1)
    test_log_likelihood: float
    validation_accuracy: float | None = Field(
        None, ge=0, le=1, description="of method random-search: on images that nobody trains on"
    )
    hyper: dict[str, list[float]] = Field(description="psi as optimised")
    hyper_readable: dict[str, float] = Field(description="psi in plain units")
    seconds: float = Field(ge=0, description="since the start, over all resumes")


class CentralSummary(Record):
    """``summary.json``, written when a run has ended; numbers are of the evaluation that counts."""

    kind: Literal["central"]
    method: Method
    experiment: str
    inputs: int | None = Field(description="of input-selection: how many inputs stay")
    dataset: str | None = Field(None, description="of images; so are the next four")
    model: str | None = None
    chunks: list[float] | None = Field(
        None, description="shares of the data; of method retrain, where its psi was found"
    )
    weights: list[float] | None = Field(None, description="shares of the weights")
    trial: int | None = Field(None, description="of method random-search")
    train_size: int = Field(ge=1)
    test_size: int = Field(ge=1)
    seed: int = Field(ge=0)
    data_seed: int = Field(ge=0)
    config_hash: str = Field(pattern="^[0-9a-f]{64}$")
    data_hash: str = Field(pattern="^[0-9a-f]{64}$")
    iterations: int = Field(ge=1, description="updates done")
    iteration: int = Field(ge=1, description="of the evaluation that counts")
    l_ml: float | None
    train_accuracy: float = Field(ge=0, le=1)
    train_log_likelihood: float
    test_accuracy: float = Field(ge=0, le=1)
    test_log_likelihood: float
    validation_accuracy: float | None = Field(None, ge=0, le=1)
    test_accuracy_before_finetune: float | None = Field(None, ge=0, le=1)
    hyper_readable: dict[str, float]
    seconds: float = Field(ge=0, description="updates and evaluations, over all resumes")
    seconds_per_iteration: float = Field(ge=0, description="evaluations included")
    peak_rss_bytes: int = Field(ge=0)


def of_images(config: "CentralConfig", evaluations: Sequence[CentralEvaluation]) -> dict[str, Any]:
    """What a summary says besides of a run on images, by field; nothing of toys.

    Args:
        config: of the run.
        evaluations: every evaluation of it.
    """
    if config.toy:
        return {}
    chunks = config.psi_chunks or config.chunks
    whole = [e for e in evaluations if e.iteration == config.iterations]
    return {
        "dataset": config.dataset,
        "model": config.model,
        "chunks": list(chunks),
        "weights": list(config.weights or chunks),
        "trial": config.trial if config.method == "random-search" else None,
        "test_accuracy_before_finetune": whole[0].test_accuracy if config.finetune else None,
    }


FILES: dict[str, type[Record]] = {
    "central-evaluations": CentralEvaluation,
    "central-summary": CentralSummary,
}


def schema(name: str) -> str:
    """JSON schema of one file of a central run folder, as text; ``name`` is a key of ``FILES``."""
    return json.dumps(FILES[name].model_json_schema(), indent=2, sort_keys=True) + "\n"


def main() -> None:
    """Write all schemas: ``python -m fedpart.central.records``."""
    for name in FILES:
        (SCHEMAS / f"{name}.schema.json").write_text(schema(name), encoding="utf-8")
        sys.stdout.write(f"{SCHEMAS / name}.schema.json\n")


if __name__ == "__main__":
    main()
