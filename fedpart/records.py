"""What the files of a run folder hold, one model for each line or file; also their JSON schemas."""

import json
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMAS = Path(__file__).with_name("schemas")


class Record(BaseModel):
    """Base of all: unknown fields are refused, values are fixed once made."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ClientRecord(Record):
    """One client's part in one round."""

    client_id: int = Field(ge=0)
    chunk: int = Field(ge=0, description="0-based")
    num_examples: int | None = Field(ge=0, description="images; null where no reply counted")
    upload_model_bytes: int = Field(
        ge=0, description="4 for each weight value sent, copies of affine parameters included"
    )
    upload_wire_bytes: int = Field(ge=0, description="encoded reply")
    download_model_bytes: int = Field(ge=0, description="4 for each weight value received")
    download_wire_bytes: int = Field(ge=0, description="encoded instruction")
    train_loss: float | None = Field(description="nats an example, mean over what was trained")
    seconds: float = Field(ge=0)
    status: Literal["ok", "weights", "unused", "failed"] = Field(
        description="its reply counted; only its weights did; it was right, but not needed, or "
        "there were too few; there was none, or it was refused"
    )


class FailureRecord(Record):
    """A client whose reply, or whose gradient of psi, did not count."""

    client_id: int = Field(ge=0)
    chunk: int = Field(ge=0)
    reason: str


class RoundRecord(Record):
    """One line of ``rounds.jsonl``; totals are over the round's clients."""

    round: int = Field(ge=1)
    clients: list[ClientRecord]
    upload_model_bytes: int = Field(ge=0)
    upload_wire_bytes: int = Field(ge=0)
    download_model_bytes: int = Field(ge=0)
    download_wire_bytes: int = Field(ge=0)
    cumulative_upload_model_bytes: int = Field(ge=0)
    cumulative_upload_wire_bytes: int = Field(ge=0)
    cumulative_download_model_bytes: int = Field(ge=0)
    cumulative_download_wire_bytes: int = Field(ge=0)
    upload_fraction: float | None = Field(
        ge=0, description="model bytes up over what FedAvg would have uploaded; null if no reply"
    )
    hyper: dict[str, list[float]] = Field(description="psi as optimised")
    hyper_readable: dict[str, float] = Field(description="psi in plain units")
    seconds: float = Field(ge=0)
    failures: list[FailureRecord]

    @property
    def empty(self) -> bool:
        """Whether no reply counted, so that weights and psi stayed as they were."""
        return self.counted == 0

    @property
    def counted(self) -> int:
        """How many replies counted."""
        return sum(c.status in ("ok", "weights") for c in self.clients)

    def brief(self) -> "RoundBrief":
        """What is left to remember once it is on the disk."""
        shared = {
            f.name: getattr(self, f.name) for f in fields(RoundBrief) if hasattr(self, f.name)
        }
        uploads = sum(c.upload_model_bytes > 0 for c in self.clients)
        return RoundBrief(**shared | {"uploads": uploads, "failures": len(self.failures)})


@dataclass(frozen=True, slots=True)
class RoundBrief:
    """A round without its clients: a run of thousands holds one of each.

    Attributes, as in ``RoundRecord`` but for:
        uploads: replies that were sent, needed or not.
        failures: how many.
    """

    round: int
    upload_model_bytes: int
    cumulative_upload_model_bytes: int
    cumulative_upload_wire_bytes: int
    cumulative_download_model_bytes: int
    cumulative_download_wire_bytes: int
    upload_fraction: float | None
    uploads: int
    failures: int
    empty: bool
    seconds: float


class SubnetworkRecord(Record):
    """Accuracy of one subnetwork, on at most 1,000 validation images."""

    k: int = Field(ge=1, description="number of learned partitions")
    accuracy: float = Field(ge=0, le=1)
    num_images: int = Field(ge=1)


class EvaluationRecord(Record):
    """One line of ``evaluations.jsonl``; accuracies are fractions."""

    round: int = Field(ge=1)
    num_images: int = Field(ge=1)
    val_accuracy: float = Field(ge=0, le=1)
    val_loss: float | None = Field(description="nats an image; null where it is not finite")
    subnetworks: list[SubnetworkRecord]
    l_ml: float | None = Field(
        description="mean out-of-sample log-likelihood of this round's clients, nats an example"
    )


class Summary(Record):
    """``summary.json``, written when a run has reached its last round."""

    kind: Literal["federated", "central"]
    method: str
    dataset: str
    train_size: int = Field(ge=1)
    skew: str
    alpha: float = Field(gt=0)
    seed: int = Field(ge=0)
    config_hash: str = Field(pattern="^[0-9a-f]{64}$")
    data_hash: str = Field(pattern="^[0-9a-f]{64}$")
    rounds: int = Field(ge=1)
    final_accuracy: float = Field(ge=0, le=1, description="mean of the last evaluations")
    final_accuracy_n: int = Field(ge=1, le=10, description="how many evaluations that is")
    test_accuracy: float | None = Field(ge=0, le=1, description="null without test images")
    upload_model_bytes: int = Field(ge=0)
    upload_wire_bytes: int = Field(ge=0)
    download_model_bytes: int = Field(ge=0)
    download_wire_bytes: int = Field(ge=0)
    upload_fraction: float = Field(ge=0, description="of what FedAvg would have uploaded")
    failures: int = Field(
        ge=0, description="replies that did not count or not all, over all rounds"
    )
    empty_rounds: int = Field(0, ge=0, description="rounds in which no reply counted")
    hyper_readable: dict[str, float]
    seconds: float = Field(ge=0, description="rounds and evaluations, over all resumes")
    seconds_per_round: float = Field(ge=0, description="median, evaluations and empty rounds apart")
    peak_rss_bytes: int = Field(ge=0, description="peak memory over the process tree")


class RunInfo(Record):
    """``run.json``: where a run came from and how it ended."""

    name: str
    command: list[str]
    versions: dict[str, str]
    commit: str | None = Field(description="git commit of the code, '+' appended if changed")
    hardware: dict[str, str | int]
    code: dict[str, str] = Field(
        {}, description="sha256 of the file of each module of the user's own, by setting"
    )
    backend: str | None = Field(None, description="where clients run, auto resolved")
    workers: int | None = Field(
        None, ge=1, description="worker processes; null where clients run in the main process"
    )
    seed: int = Field(ge=0)
    data_source: str
    data_hash: str = Field(pattern="^[0-9a-f]{64}$")
    started: str = Field(description="ISO 8601, UTC")
    ended: str | None
    resumed_from: list[int] = Field(description="rounds after which the run was taken up again")
    exit: str | None = Field(
        description="'ok', 'interrupted', 'terminated', or the error; null while running"
    )
    exit_code: int | None


FILES: dict[str, type[Record]] = {
    "rounds": RoundRecord,
    "evaluations": EvaluationRecord,
    "summary": Summary,
    "run": RunInfo,
}


def schema(name: str) -> str:
    """JSON schema of one file of the run folder, as text; ``name`` is a key of ``FILES``."""
    return json.dumps(FILES[name].model_json_schema(), indent=2, sort_keys=True) + "\n"


def main() -> None:
    """Write all schemas: ``python -m fedpart.records``."""
    SCHEMAS.mkdir(exist_ok=True)
    for name in FILES:
        (SCHEMAS / f"{name}.schema.json").write_text(schema(name), encoding="utf-8")
        sys.stdout.write(f"{SCHEMAS / name}.schema.json\n")


if __name__ == "__main__":
    main()
