"""Replies that are wrong in every way there is, for the gate to see."""

import io
import pickle
import random
from collections.abc import Callable

import numpy as np

from fedpart.wire import REPLY_FIELDS

Arrays = dict[str, bytes]
Fields = dict[str, object]
# Changes a reply in place, in one way.
Mutation = Callable[[random.Random, Arrays, Fields], None]

# Bytes of an array before its values.
_HEADER = 128
_IDENTITY = ("format", "run", "server-round", "client-id", "chunk")
_COUNTS = ("num-examples", "hyper-examples")
_MEASURED = ("train-loss", "seconds")


def _npy(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


def _values(data: bytes) -> np.ndarray:
    return np.frombuffer(data, "<f4", offset=_HEADER).copy()


def _one(rng: random.Random, arrays: Arrays) -> str:
    return rng.choice(sorted(arrays))


def _weights(rng: random.Random, arrays: Arrays) -> str:
    return rng.choice(sorted(name for name in arrays if name.startswith("partition-")))


def cut(rng: random.Random, arrays: Arrays, fields: Fields) -> None:
    """An array ends early, or goes on."""
    name = _one(rng, arrays)
    data = arrays[name]
    if rng.random() < 0.2:
        arrays[name] = data + rng.randbytes(rng.randint(1, 9))
    else:
        arrays[name] = data[: rng.randrange(len(data))]


def header(rng: random.Random, arrays: Arrays, fields: Fields) -> None:
    """A wrong byte in a header."""
    name = _one(rng, arrays)
    data = bytearray(arrays[name])
    data[rng.randrange(_HEADER)] ^= rng.randint(1, 255)
    arrays[name] = bytes(data)


def garbage(rng: random.Random, arrays: Arrays, fields: Fields) -> None:
    """Anything but an array, a pickle for one."""
    name = _one(rng, arrays)
    data = rng.randbytes(rng.randint(0, 300))
    arrays[name] = pickle.dumps(data) if rng.random() < 0.5 else data


def dtype(rng: random.Random, arrays: Arrays, fields: Fields) -> None:
    """Right values in another type or byte order."""
    name = _one(rng, arrays)
    kind = rng.choice(("<f8", ">f4", "<f2", "<i4", "|b1", "<c8"))
    arrays[name] = _npy(_values(arrays[name]).astype(kind))


def shape(rng: random.Random, arrays: Arrays, fields: Fields) -> None:
    """Another shape: a single value, which would broadcast; two axes; none; one value more."""
    name = _one(rng, arrays)
    v = _values(arrays[name])
    made = rng.choice((v[:1], v[:, None], v[None], v[0], v[:-1], np.append(v, v[0]), v[:0]))
    if made.shape == v.shape:  # a tensor of one value
        made = v[:, None]
    arrays[name] = _npy(np.asarray(made, "<f4"))


def promise(rng: random.Random, arrays: Arrays, fields: Fields) -> None:
    """A header that promises more than there is memory for, or objects."""
    buffer = io.BytesIO()
    descr, many = rng.choice((("<f4", 10**12), ("<f4", 2**62), ("|O", 3), ("<f4", -1)))
    told = {"descr": descr, "fortran_order": False, "shape": (many,)}
    np.lib.format.write_array_header_1_0(buffer, told)
    arrays[_one(rng, arrays)] = buffer.getvalue() + rng.randbytes(8)


def poison(rng: random.Random, arrays: Arrays, fields: Fields) -> None:
    """A weight that is not a number, infinite, or too large to be squared."""
    name = _weights(rng, arrays)
    v = _values(arrays[name])
    v[rng.randrange(len(v))] = rng.choice((np.nan, np.inf, -np.inf, 3e38, -1e20))
    arrays[name] = _npy(v)


def names(rng: random.Random, arrays: Arrays, fields: Fields) -> None:
    """An array is missing, foreign, or has another name."""
    name = _one(rng, arrays)
    action = rng.choice(("drop", "rename", "add"))
    data = arrays[name] if action == "add" else arrays.pop(name)
    if action != "drop":
        other = rng.choice(("theta", "partition-99", "partition--1", "\x1b[2J", "x" * 10**5, ""))
        arrays[other] = data


def identity(rng: random.Random, arrays: Arrays, fields: Fields) -> None:
    """Another format, run, round, client or chunk: a replay, or a mix-up."""
    name = rng.choice(_IDENTITY)
    value = fields[name]
    assert isinstance(value, int)
    fields[name] = value + rng.choice((-1, 1, 7, 2**40))


def counts(rng: random.Random, arrays: Arrays, fields: Fields) -> None:
    """More images than there are, or fewer than one."""
    fields[rng.choice(_COUNTS)] = rng.choice((-1, -(2**62), 2**62, 10**5000, 10**9))


def kinds(rng: random.Random, arrays: Arrays, fields: Fields) -> None:
    """A number of another kind."""
    name = rng.choice(REPLY_FIELDS)
    odd = (None, "1", "", b"\0", [1], [1.0, 2.0], True, [10**5000])
    swapped = 1 if isinstance(fields[name], float) else 1.5
    fields[name] = rng.choice((*odd, swapped))


def measured(rng: random.Random, arrays: Arrays, fields: Fields) -> None:
    """A loss or a time that is none."""
    value = rng.choice((float("nan"), float("inf"), -float("inf"), 1e300))
    fields[rng.choice(_MEASURED)] = value


def metrics(rng: random.Random, arrays: Arrays, fields: Fields) -> None:
    """A number is missing, or one too many is there."""
    if rng.random() < 0.5:
        del fields[rng.choice(REPLY_FIELDS)]
    else:
        fields[rng.choice(("accuracy", "", "Run", "server_round"))] = 1


# At most one of each group, in this order: a fault must not stumble over another.
GROUPS: tuple[tuple[Mutation, ...], ...] = (
    (cut, header, garbage, dtype, shape, promise, poison),
    (names,),
    (identity, counts, kinds, measured),
    (metrics,),
)


def mutate(rng: random.Random, arrays: Arrays, fields: Fields) -> tuple[Arrays, Fields, str]:
    """A copy of a right reply with one to four faults.

    Each fault makes the whole reply wrong. What no gate can see, a weight that is another and
    still plausible, is not among them.

    Args:
        rng: chooses.
        arrays: encoded arrays by name.
        fields: numbers by name.
    Returns:
        arrays, fields, and which faults they have.
    """
    arrays, fields = dict(arrays), dict(fields)
    first = rng.choices(range(len(GROUPS)), [len(group) for group in GROUPS])[0]
    chosen = [
        rng.choice(group) for i, group in enumerate(GROUPS) if i == first or rng.random() < 0.1
    ]
    for mutation in chosen:
        mutation(rng, arrays, fields)
    return arrays, fields, ", ".join(mutation.__name__ for mutation in chosen)
