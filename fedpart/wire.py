"""What travels: the encoding of arrays, the sizes of messages, and the gate for replies.

An array is one ``.npy`` of little-endian float32, [n]. The server sends ``theta`` and ``hyper``; a
client of chunk k sends ``partition-k`` to ``partition-<C-1>`` and, where it measured one, the
gradient ``hyper``.
"""

import io
import math
import warnings
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedpart.client import ClientReply, ClientTask, without_hyper
from fedpart.errors import FedpartError
from fedpart.program import Program

FORMAT = 2
INSTRUCTION_FIELDS = ("format", "server-round", "client-id", "chunk")
REPLY_FIELDS = (
    *("format", "run", "server-round", "client-id", "chunk", "num-examples", "hyper-examples"),
    *("train-loss", "log-likelihood", "seconds"),
)
_REAL = frozenset({"train-loss", "log-likelihood", "seconds"})
_DESCR = "<f4"
# Adam squares what it gets, in float32: beyond this, a moment would be infinite for ever after.
_LARGEST = 1e18


class RefusedReply(FedpartError):
    """A reply that the gate does not let through; names client, tensor and reason.

    Attributes:
        client_id: who was asked.
        tensor: the array or number that is wrong.
        reason: what is wrong with it.
        verdict: the last two in a few words, for the record of the round.
    """

    def __init__(self, client_id: int, tensor: str, reason: str) -> None:
        """Keep the parts; the message joins them."""
        # Names may come from elsewhere: nothing in them may move a terminal's cursor.
        tensor, reason = (
            "".join(c if c.isprintable() else " " for c in text[:200]) for text in (tensor, reason)
        )
        super().__init__(f"reply of client {client_id} refused: {tensor} {reason}")
        self.client_id, self.tensor, self.reason = client_id, tensor, reason
        self.verdict = f"refused: {tensor} {reason}"


def _header(length: int) -> bytes:
    buffer = io.BytesIO()
    shape = {"descr": _DESCR, "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(buffer, shape)
    return buffer.getvalue()


def encode(values: Tensor) -> bytes:
    """One float32 tensor [n] as ``.npy`` bytes, in a single copy."""
    array = np.ascontiguousarray(values.detach().cpu().numpy().astype(_DESCR, copy=False))
    return b"".join((_header(len(array)), array.data))


def decode(data: bytes, length: int, copy: bool = True) -> Tensor:
    """Inverse of ``encode``.

    Args:
        data: what arrived.
        length: how many values it must hold.
        copy: a tensor of its own; else one on the memory of ``data``, never to be written to.

    Returns:
        [length] float32.

    Raises:
        ValueError: not exactly the header that ``encode`` writes, or another size.
    """
    header = _header(length)
    if not data.startswith(header):
        raise ValueError(_describe(data, length))
    if len(data) != len(header) + 4 * length:
        raise ValueError(f"has {len(data) - len(header)} bytes of values, not {4 * length}")
    values = np.frombuffer(data, _DESCR, offset=len(header))
    if copy:
        # torch.tensor, unlike from_numpy, copies into memory that torch aligned.
        return torch.tensor(values)
    with warnings.catch_warnings():
        # Tensors know no read-only memory, which torch says once.
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(values)


def _describe(data: bytes, length: int) -> str:
    """What is wrong with a header, for people."""
    stream = io.BytesIO(data[: len(_header(length))])
    try:
        np.lib.format.read_magic(stream)
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    except Exception:  # bytes from elsewhere can make NumPy's parser raise nearly anything
        return "is no array that can be read"
    if dtype.str != _DESCR:
        return f"has type {dtype.str:.40}, not {_DESCR}"
    return f"has shape {shape}, not ({length},)"


def array_lengths(program: Program, chunk: int) -> dict[str, int]:
    """Names and lengths of the arrays that a client of ``chunk`` sends."""
    sizes = program.layout.sizes
    lengths = {f"partition-{j}": sizes[j] for j in range(chunk, len(sizes))}
    measures = program.scoring(chunk) is not None
    return lengths | ({"hyper": program.hyper.size} if measures else {})


def model_bytes(program: Program, chunk: int) -> tuple[int, int]:
    """Model bytes (upload, download) of a client of ``chunk``: 4 for each weight value.

    Source: the paper's "upload" column; psi is not counted, copies of affine parameters are.
    """
    return 4 * sum(program.layout.sizes[chunk:]), 4 * program.layout.num_parameters


def wire_bytes(program: Program, chunk: int) -> tuple[int, int]:
    """Encoded bytes (upload, download) of a client of ``chunk``: arrays, numbers and names."""
    down = {"theta": program.layout.num_parameters, "hyper": program.hyper.size}
    return (
        _message_bytes(array_lengths(program, chunk), REPLY_FIELDS),
        _message_bytes(down, INSTRUCTION_FIELDS),
    )


def _message_bytes(lengths: Mapping[str, int], fields: tuple[str, ...]) -> int:
    arrays = sum(len(name) + len(_header(n)) + 4 * n for name, n in lengths.items())
    return arrays + sum(8 + len(name) for name in fields)


def reply_fields(program: Program, reply: ClientReply) -> dict[str, int | float]:
    """The numbers of a reply, by name; NaN for a log-likelihood that was not measured."""
    measured = reply.log_likelihood
    values = (
        *(FORMAT, program.run_token, reply.server_round, reply.client_id, reply.chunk),
        *(reply.num_examples, reply.hyper_examples, reply.train_loss),
        *(math.nan if measured is None else measured, reply.seconds),
    )
    return dict(zip(REPLY_FIELDS, values, strict=True))


def reply_arrays(reply: ClientReply) -> dict[str, Tensor]:
    """The arrays of a reply, by name."""
    arrays = {f"partition-{j}": delta for j, delta in reply.deltas.items()}
    return arrays | ({} if reply.hyper_gradient is None else {"hyper": reply.hyper_gradient})


def _numbers(
    client_id: int, fields: Mapping[str, object]
) -> tuple[dict[str, int], dict[str, float]]:
    """Whole and real numbers of a reply: exactly ``REPLY_FIELDS``, each of its own type."""
    if set(fields) != set(REPLY_FIELDS):
        odd = sorted(set(fields) ^ set(REPLY_FIELDS))
        raise RefusedReply(client_id, "metrics", f"lack or add {', '.join(odd):.80}")
    whole: dict[str, int] = {}
    real: dict[str, float] = {}
    for name, value in fields.items():
        if name in _REAL and type(value) is float:
            real[name] = value
        elif name not in _REAL and type(value) is int and value.bit_length() < 64:
            whole[name] = value
        else:
            kind = "a float" if name in _REAL else "a whole number of 64 bits"
            raise RefusedReply(client_id, name, f"is of type {type(value).__name__}, not {kind}")
    return whole, real


def validate(
    program: Program,
    server_round: int,
    client_id: int,
    chunk: int,
    arrays: Mapping[str, bytes],
    fields: Mapping[str, object],
) -> ClientReply:
    """The one gate for replies: all of it is right, or none of it counts.

    With one exception: the gradient of psi comes from the server's weights and does not depend on
    the client's training. Where its values, or the log-likelihood beside them, are not finite, it
    is left out and the weights count. The reverse does not hold, since a client whose training
    diverges may have data that are damaged.

    Args:
        program: tells run, lengths and partitions.
        server_round: the round that was asked for.
        client_id: who was asked.
        chunk: that client's chunk.
        arrays: encoded arrays by name.
        fields: numbers by name.

    Returns:
        the reply, whose tensors lie on the memory of ``arrays`` and are only read;
        ``hyper_fault`` says why the gradient of psi is left out.

    Raises:
        RefusedReply: wrong run, round, client, chunk or format; a missing, extra or foreign array;
            a wrong length or type; a value that is not finite, or too large to be squared.
    """
    whole, real = _numbers(client_id, fields)
    expected = {
        "format": FORMAT,
        "run": program.run_token,
        "server-round": server_round,
        "client-id": client_id,
        "chunk": chunk,
    }
    for name, wanted in expected.items():
        if whole[name] != wanted:
            raise RefusedReply(client_id, name, f"is {whole[name]}, not {wanted}")
    lengths = array_lengths(program, chunk)
    for name in sorted(set(lengths) ^ set(arrays)):
        verdict = "is missing" if name in lengths else "does not belong to its chunk"
        raise RefusedReply(client_id, name, verdict)
    decoded, faults = {}, {}
    for name, length in lengths.items():
        try:
            decoded[name] = decode(arrays[name], length, copy=False)
        except ValueError as error:
            raise RefusedReply(client_id, name, str(error)) from None
        if length:
            # NaN and infinity both show in the extremes: one pass, where isfinite needs a mask.
            faults[name] = _fault(*map(float, decoded[name].aminmax()))
    examples, scored = whole["num-examples"], whole["hyper-examples"]
    # The weight of a client's gradient in the mean: no client may count for more than there is.
    limits = {"num-examples": (1, program.config.train_size)}
    limits["hyper-examples"] = (1, examples) if "hyper" in lengths else (0, 0)
    for name, (low, high) in limits.items():
        if not low <= whole[name] <= high:
            raise RefusedReply(client_id, name, f"is {whole[name]}, not in {low}..{high}")
    faults |= {name: _fault(real[name]) for name in ("train-loss", "seconds")}
    apart = {"hyper": faults.pop("hyper", None)}
    if "hyper" in lengths:
        apart["log-likelihood"] = _fault(real["log-likelihood"])
    for name, fault in faults.items():
        if fault:
            raise RefusedReply(client_id, name, fault)
    if real["seconds"] < 0:
        raise RefusedReply(client_id, "seconds", f"is {real['seconds']}, not at least 0")
    reply = ClientReply(
        server_round=server_round,
        client_id=client_id,
        chunk=chunk,
        num_examples=examples,
        deltas={j: decoded[f"partition-{j}"] for j in range(chunk, program.layout.num_partitions)},
        hyper_gradient=decoded.get("hyper"),
        hyper_examples=scored,
        train_loss=real["train-loss"],
        log_likelihood=real["log-likelihood"] if "hyper" in lengths else None,
        seconds=real["seconds"],
    )
    found = [f"{name} {fault}" for name, fault in apart.items() if fault]
    return without_hyper(reply, found[0]) if found else reply


def _fault(*values: float) -> str | None:
    """What is wrong with the extremes of some values, or None."""
    if not all(map(math.isfinite, values)):
        return "holds values that are not finite"
    if max(map(abs, values)) > _LARGEST:
        return f"holds values beyond {_LARGEST:g}, whose squares are not finite"
    return None


def through_gate(program: Program, task: ClientTask, reply: ClientReply) -> ClientReply:
    """A reply as it arrives where there are no messages: encoded, judged, decoded.

    Raises:
        RefusedReply: see ``validate``.
    """
    arrays = {name: encode(values) for name, values in reply_arrays(reply).items()}
    return validate(
        *(program, task.server_round, task.client_id, task.chunk),
        arrays=arrays,
        fields=reply_fields(program, reply),
    )
