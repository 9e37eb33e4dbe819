"""What a run began with: a resume goes on with the same settings and data, or is refused."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpart import machine
from fedpart.cohort import availability
from fedpart.config import Config
from fedpart.data import FederatedData
from fedpart.errors import OutputError
from fedpart.plugins import code_hashes
from fedpart.server import assign_chunks
from fedpart.spelling import kebab

Facts = dict[str, Any]
_SHA256 = 64
_OTHERWISE = "numbers may differ from those of a run without a break"


@dataclass(frozen=True)
class Origin:
    """All that a run's numbers follow from, as plain values by name.

    Attributes:
        settings: by TOML key, those that results depend on.
        config_hash: of these, as in summary.json.
        data: sizes and hashes.
        source: one sentence on where the data came from; equal data may come from elsewhere.
        versions: of Python and packages.
        chunks: of every client, [clients]; empty where an earlier version kept none. A client that
            changed its chunk would be scored by weights that have seen its data.
    """

    settings: Facts
    config_hash: str
    data: Facts
    source: str
    versions: Facts
    chunks: list[int] = field(default_factory=list)

    def refuse_other(self, path: Path, now: "Origin") -> None:
        """Compare settings, then data, then chunks.

        Args:
            path: the run folder, for the sentence.
            now: what the run would go on with.
        Raises:
            OutputError: names what differs, with both values.
        """
        # A setting that came with a later version was, until then, what its default is.
        if changes := _changes(_defaults() | self.settings, _defaults() | now.settings):
            raise OutputError(
                f"{path} began with other settings: {changes}: put the old values back into its "
                "config.toml, or start a new run"
            )
        if changes := _changes(self.data, now.data):
            if self.source != now.source:
                changes += f"; the source was {self.source!r} and is {now.source!r} now"
            raise OutputError(
                f"{path} began with other data: {changes}: give it the same data, or start a new "
                "run"
            )
        moved = [i for i, (a, b) in enumerate(zip(self.chunks, now.chunks, strict=False)) if a != b]
        if moved:
            first = moved[0]
            raise OutputError(
                f"{path} began with client {first} in chunk {self.chunks[first]}, and this version "
                f"of fedpart puts it into chunk {now.chunks[first]}: resume it with the version "
                "that began it, or start a new run"
            )

    def warnings(self, now: "Origin") -> list[str]:
        """What does not stop a resume, one sentence each: other versions may round otherwise."""
        changes = _changes(self.versions, now.versions)
        if not changes:
            return []
        return [f"{changes}: {_OTHERWISE}"]


def code_warnings(began: dict[str, str], settings: Facts) -> list[str]:
    """What does not stop a resume either: code of the user's own that may compute otherwise.

    Args:
        began: ``RunInfo.code``; earlier versions kept none.
        settings: name the modules.
    Returns:
        one sentence each.
    """
    return [
        f"the file of {setting} {settings[setting]!r} has changed since the run began: {_OTHERWISE}"
        for setting, digest in code_hashes(settings).items()
        if began.get(setting, digest) != digest
    ]


def origin_of(config: Config, data: FederatedData) -> Origin:
    """What a run with this configuration on this data begins with."""
    return Origin(
        settings=_settings(config),
        config_hash=config.config_hash,
        data={
            "the number of training images": len(data.labels),
            "the number of clients": len(data.client_indices),
            "the number of validation images": len(data.val_labels),
            "the number of test images": 0 if data.test_labels is None else len(data.test_labels),
            "the hash of images and split": data.data_hash,
            "the hash of test images": data.test_hash,
            "the hash of the availability file": _availability_hash(config),
        },
        source=data.source,
        versions=machine.versions(),
        chunks=[int(chunk) for chunk in assign_chunks(config)],
    )


def _availability_hash(config: Config) -> str | None:
    # The setting is a path, whose content may change.
    if config.availability is None:
        return None
    return hashlib.sha256(availability(config.availability, config.clients).tobytes()).hexdigest()


def _settings(config: Config) -> Facts:
    return {kebab(name): value for name, value in config.result_values().items()}


def _defaults() -> Facts:
    return _settings(Config())


def _changes(before: Facts, now: Facts) -> str:
    """``x was 1 and is 2 now``, for every name that differs; empty where none does."""
    names = [*before, *(name for name in now if name not in before)]
    return ", ".join(
        f"{name} was {_word(before.get(name))} and is {_word(now.get(name))} now"
        for name in names
        if before.get(name) != now.get(name)
    )


def _word(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, str) and len(value) == _SHA256:
        # People compare the beginning; programs have all of it in run.json.
        return value[:12]
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
