"""Text files that users write, with whatever editor they have."""

import codecs
from pathlib import Path

from fedpart.errors import ConfigError


def read_text(path: str | Path, what: str) -> str:
    """What a file holds, without the byte order mark that some editors put first.

    Args:
        path: the file; it may be a pipe.
        what: is read from it, for the sentence.
    Raises:
        ConfigError: it cannot be read, or is not UTF-8.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {what} from {path}: {error.strerror}") from None
    # Its mark, or a first letter of two bytes.
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in content[:2]:
        kind = "UTF-16 text"
    else:
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError:
            kind = "not UTF-8 text"
    raise ConfigError(f"{path} is {kind}; save it as UTF-8")
