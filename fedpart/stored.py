"""Records that a run has stored, read and checked: what is damaged is named, with its line.

And the last of them, how it ended.
"""

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from fedpart.errors import DamagedError, OutputError
from fedpart.files import write_atomic
from fedpart.records import RunInfo
from fedpart.run_files import damaged, now, read_lines

M = TypeVar("M", bound=BaseModel)


def read_records(path: Path, kind: type[M], count: int | None = None) -> list[M]:
    """Lines of a JSON-lines file as records; see ``read_lines``.

    Raises:
        DamagedError: a line that is damaged or no such record, or no such file.
    """
    records: list[M] = []
    try:
        for line in read_lines(path, count):
            records.append(kind.model_validate(line))  # noqa: PERF401 - its length is the place
    except ValidationError as error:
        raise damaged(path, len(records) + 1, _place(error)) from None
    return records


def read_record(path: Path, kind: type[M]) -> M:
    """A file that is one JSON object.

    Raises:
        DamagedError: no such file, or it holds something else.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DamagedError(f"cannot read {path}: {error.strerror or error}") from None
    except ValidationError as error:
        raise damaged(path, None, _place(error)) from None


def write_ended(path: Path, info: RunInfo, reason: str, exit_code: int) -> None:
    """Say in the ``run.json`` of a run folder how the run ended, and when.

    Args:
        path: the folder.
        info: what ``run.json`` says so far.
        reason: as ``RunInfo.exit``.
        exit_code: of the process.
    Raises:
        OutputError: it cannot be written, of a run that ended well; what has ended another is told,
            and not this.
    """
    ended = info.model_copy(update={"ended": now(), "exit": reason, "exit_code": exit_code})
    try:
        write_atomic(path / "run.json", (ended.model_dump_json(indent=2) + "\n").encode())
    except OutputError:
        if exit_code == 0:
            raise


def _place(error: ValidationError) -> str:
    first = error.errors()[0]
    return ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))
