"""A run that another process writes, seen through its run folder."""

from collections.abc import Iterator
from pathlib import Path

from fedpart.config import Config
from fedpart.folder_lock import is_kept
from fedpart.records import EvaluationRecord, RoundBrief, RoundRecord, RunInfo
from fedpart.stored import read_records, write_ended

Observed = tuple[RoundRecord, list[EvaluationRecord]]


class Watch:
    """Follows the records of a run as they come.

    Attributes:
        path: the run folder.
        behind: rounds that were on record when the run was taken up.
    """

    def __init__(self, config: Config, path: Path, behind: list[RoundBrief]) -> None:
        """Watch from now on; what is in the folder already is of an earlier process."""
        self.path, self.behind, self._config = path, behind, config
        self._shown = len(behind)
        self._before = self._content()

    @property
    def begun(self) -> bool:
        """Whether the server's process has made the folder, or taken it up."""
        return self._content() not in (b"", self._before)

    @property
    def busy(self) -> bool:
        """Whether a process works on the run, or has yet to write how it ended."""
        return is_kept(self.path) and (self.path / "config.toml").exists()

    def info(self) -> RunInfo:
        """What ``run.json`` says; replaced as a whole, so never half-written."""
        return RunInfo.model_validate_json(self._content())

    def close(self, reason: str, exit_code: int, sure: bool) -> None:
        """Say in ``run.json`` how the run ended, once no process works on it any more.

        Args:
            reason: as ``RunInfo.exit``.
            exit_code: of this process.
            sure: also where the server's process says something else, such as ``terminated``
                because it was stopped with all others; a run that is complete stays so.
        Raises:
            OutputError: see ``write_ended``.
        """
        info = self.info()
        if info.exit != "ok" and (sure or info.exit is None):
            write_ended(self.path, info, reason, exit_code)

    def rounds(self) -> Iterator[Observed]:
        """Rounds that have come since the last call, each with its evaluation, if it has one."""
        # The last file that a new run makes.
        if not self.begun or not (self.path / "checkpoint.pt").exists():
            return
        found = read_records(self.path / "evaluations.jsonl", EvaluationRecord)
        evaluations = {record.round: record for record in found}
        every, last = self._config.eval_every, self._config.rounds
        for record in read_records(self.path / "rounds.jsonl", RoundRecord)[self._shown :]:
            evaluated = record.round % every == 0 or record.round == last
            if evaluated and record.round not in evaluations:
                # On its way: the server evaluates beside the rounds that follow.
                return
            self._shown += 1
            yield record, [evaluations[record.round]] if evaluated else []

    def _content(self) -> bytes:
        try:
            return (self.path / "run.json").read_bytes()
        except OSError:
            return b""


def records_behind(path: Path) -> list[RoundBrief]:
    """Rounds that a resume goes on from: those up to the last checkpoint.

    Raises:
        OutputError: a damaged checkpoint or record.
    """
    if not (path / "checkpoint.pt").exists():
        return []
    from fedpart.checkpoint import load

    done = load(path / "checkpoint.pt")[0].server_round
    return [record.brief() for record in read_records(path / "rounds.jsonl", RoundRecord, done)]
