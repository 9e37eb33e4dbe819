import io
import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array
from tiny import bare_program
from torch import nn

from fedpart.client import ClientReply
from fedpart.config import make_config
from fedpart.program import Program, build_program
from fedpart.wire import (
    RefusedReply,
    array_lengths,
    decode,
    encode,
    model_bytes,
    reply_arrays,
    reply_fields,
    validate,
    wire_bytes,
)

CLIENT, ROUND = 3, 7


def tiny(num_classes: int, in_channels: int) -> nn.Module:
    return nn.Sequential(
        nn.MaxPool2d(7), nn.Flatten(), nn.Dropout(0.1), nn.Linear(16 * in_channels, num_classes)
    )


@pytest.fixture(scope="module")
def program() -> Program:
    return build_program(make_config({"model": f"{__name__}:tiny"}), 10, 1)


def reply_of(program: Program, chunk: int) -> ClientReply:
    sizes = program.layout.sizes
    return ClientReply(
        server_round=ROUND,
        client_id=CLIENT,
        chunk=chunk,
        num_examples=12,
        deltas={j: torch.linspace(-1, 1, sizes[j]) for j in range(chunk, len(sizes))},
        hyper_gradient=torch.linspace(-1, 1, program.hyper.size) if chunk else None,
        hyper_examples=12 if chunk else 0,
        train_loss=1.5,
        log_likelihood=-2.5 if chunk else None,
        seconds=0.25,
    )


def parts(program: Program, reply: ClientReply) -> tuple[dict[str, bytes], dict[str, object]]:
    return {n: encode(t) for n, t in reply_arrays(reply).items()}, dict(
        reply_fields(program, reply)
    )


def refusal(program: Program, chunk: int, arrays: dict, fields: dict) -> RefusedReply:
    with pytest.raises(RefusedReply) as caught:
        validate(program, ROUND, CLIENT, chunk, arrays, fields)
    assert caught.value.client_id == CLIENT
    assert str(CLIENT) in str(caught.value)
    assert caught.value.tensor in str(caught.value)
    assert caught.value.reason in str(caught.value)
    return caught.value


@pytest.mark.parametrize("chunk", [0, 1, 2])
def test_a_right_reply_passes_bit_for_bit(program, chunk):
    reply = reply_of(program, chunk)
    passed = validate(program, ROUND, CLIENT, chunk, *parts(program, reply))
    assert replace(passed, deltas={}, hyper_gradient=None) == replace(
        reply, deltas={}, hyper_gradient=None
    )
    assert passed.deltas.keys() == reply.deltas.keys()
    for j, delta in reply.deltas.items():
        assert torch.equal(passed.deltas[j], delta)
    if chunk:
        assert torch.equal(passed.hyper_gradient, reply.hyper_gradient)
    else:
        assert passed.hyper_gradient is None


def test_expected_arrays_are_a_suffix_and_the_gradient_of_chunks_that_measure_it(program):
    sizes = program.layout.sizes
    assert array_lengths(program, 0) == {f"partition-{j}": sizes[j] for j in range(3)}
    assert array_lengths(program, 2) == {"partition-2": sizes[2], "hyper": program.hyper.size}


def test_fedavg_sends_one_partition_and_no_gradient():
    config = make_config({"model": f"{__name__}:tiny", "method": "fedavg"})
    program = build_program(config, 10, 1)
    assert array_lengths(program, 0) == {"partition-0": program.layout.num_parameters}
    assert (
        validate(program, ROUND, CLIENT, 0, *parts(program, reply_of(program, 0))).hyper_examples
        == 0
    )


def test_model_bytes_are_four_a_weight_psi_apart(program):
    sizes = program.layout.sizes
    assert model_bytes(program, 1) == (4 * (sizes[1] + sizes[2]), 4 * sum(sizes))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("server-round", ROUND - 1),
        ("client-id", CLIENT + 1),
        ("chunk", 2),
        ("format", 99),
        ("run", 0),
        ("num-examples", 0),
        ("num-examples", 1251),
        ("num-examples", -1),
        ("num-examples", 12.0),
        ("num-examples", math.nan),
        ("num-examples", True),
        ("num-examples", [12]),
        ("num-examples", "12"),
        ("hyper-examples", 0),
        ("hyper-examples", 13),
        ("hyper-examples", 10**400),
        ("train-loss", math.nan),
        ("train-loss", math.inf),
        ("train-loss", 1),
        ("train-loss", 1e300),
        ("seconds", -1.0),
        ("seconds", math.inf),
    ],
)
def test_wrong_numbers_are_refused_by_name(program, name, value):
    arrays, fields = parts(program, reply_of(program, 1))
    assert refusal(program, 1, arrays, fields | {name: value}).tensor == name


def test_missing_and_extra_numbers_are_refused(program):
    arrays, fields = parts(program, reply_of(program, 1))
    assert "surprise" in refusal(program, 1, arrays, fields | {"surprise": 1}).reason
    del fields["seconds"]
    assert "seconds" in refusal(program, 1, arrays, fields).reason


def test_partitions_of_other_chunks_are_refused(program):
    arrays, fields = parts(program, reply_of(program, 1))
    foreign = encode(torch.zeros(program.layout.sizes[0]))
    assert refusal(program, 1, arrays | {"partition-0": foreign}, fields).tensor == "partition-0"
    assert refusal(program, 1, arrays | {"theta": foreign}, fields).tensor == "theta"


def test_missing_partition_and_missing_gradient_are_refused(program):
    arrays, fields = parts(program, reply_of(program, 1))
    for name in arrays:
        fewer = {n: a for n, a in arrays.items() if n != name}
        found = refusal(program, 1, fewer, fields)
        assert (found.tensor, found.reason) == (name, "is missing")


def test_chunk_zero_may_not_send_a_gradient(program):
    arrays, fields = parts(program, reply_of(program, 0))
    gradient = encode(torch.zeros(program.hyper.size))
    assert refusal(program, 0, arrays | {"hyper": gradient}, fields).tensor == "hyper"
    assert refusal(program, 0, arrays, fields | {"hyper-examples": 5}).tensor == "hyper-examples"


@pytest.mark.parametrize("off", [-1, 1])
def test_wrong_lengths_are_refused(program, off):
    arrays, fields = parts(program, reply_of(program, 2))
    wrong = encode(torch.zeros(program.layout.sizes[2] + off))
    found = refusal(program, 2, arrays | {"partition-2": wrong}, fields)
    assert f"({program.layout.sizes[2] + off},)" in found.reason


def test_length_one_does_not_broadcast(program):
    arrays, fields = parts(program, reply_of(program, 2))
    for name in arrays:
        found = refusal(program, 2, arrays | {name: encode(torch.zeros(1))}, fields)
        assert found.tensor == name
        assert "(1,)" in found.reason


@pytest.mark.parametrize("name", ["partition-1", "hyper"])
def test_a_tensor_of_length_one_has_just_that_shape(name):
    """Neither a scalar, nor nothing, nor two values; the value itself passes."""
    program = bare_program([0, 0, 0, 1], 2, num_hyper=1, chunks=(0.5, 0.5))
    assert array_lengths(program, 1) == {"partition-1": 1, "hyper": 1}
    arrays, fields = parts(program, reply_of(program, 1))
    passed = validate(program, ROUND, CLIENT, 1, arrays, fields)
    assert torch.equal(passed.deltas[1], torch.tensor([-1.0]))
    for values in (np.zeros(()), np.zeros(0), np.zeros(2), np.zeros((1, 1))):
        wrong = Array(values.astype("<f4")).data
        found = refusal(program, 1, arrays | {name: wrong}, fields)
        assert (found.tensor, found.reason) == (name, f"has shape {values.shape}, not (1,)")


@pytest.mark.parametrize("dtype", ["<f8", ">f4", "<f2", "<i4"])
def test_other_types_are_refused(program, dtype):
    arrays, fields = parts(program, reply_of(program, 2))
    wrong = Array(np.zeros(program.layout.sizes[2], dtype)).data
    assert dtype in refusal(program, 2, arrays | {"partition-2": wrong}, fields).reason


def test_other_shapes_and_spellings_are_refused(program):
    arrays, fields = parts(program, reply_of(program, 2))
    size = program.layout.sizes[2]
    good = arrays["partition-2"]
    for wrong in (
        Array(np.zeros((size, 1), "<f4")).data,
        Array(np.zeros((), "<f4")).data,
        good[:-1],
        good + b"\0",
        good[:-4],
        good + bytes(4),
        good[:20],
        b"",
        b"\x93NUMPY\x02\x00" + good[8:],
        b"\x93NUMPY\x01\x00\xff\xff" + b"-" * 5000,
    ):
        assert refusal(program, 2, arrays | {"partition-2": wrong}, fields)


BAD = pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e19, -1e19])


@BAD
@pytest.mark.parametrize("name", ["partition-1", "partition-2"])
def test_weights_that_are_not_finite_are_refused(program, name, value):
    """Nor are those whose squares are not, which Adam would keep for ever."""
    arrays, fields = parts(program, reply_of(program, 1))
    bad = decode(arrays[name], array_lengths(program, 1)[name])
    bad[-1] = value
    found = refusal(program, 1, arrays | {name: encode(bad)}, fields)
    assert found.tensor == name
    assert "finite" in found.reason


@BAD
@pytest.mark.parametrize("name", ["hyper", "log-likelihood"])
def test_a_gradient_of_psi_is_judged_apart_from_the_weights(program, name, value):
    """Where it, or the likelihood beside it, is not finite, it is left out; the weights count."""
    reply = reply_of(program, 1)
    arrays, fields = parts(program, reply)
    if name == "hyper":
        bad = reply.hyper_gradient.clone()
        bad[0] = value
        arrays["hyper"] = encode(bad)
    else:
        fields[name] = float(value)
    passed = validate(program, ROUND, CLIENT, 1, arrays, fields)
    assert passed.hyper_fault.startswith(f"{name} holds values ")
    assert "finite" in passed.hyper_fault
    assert (passed.hyper_gradient, passed.hyper_examples, passed.log_likelihood) == (None, 0, None)
    assert all(torch.equal(passed.deltas[j], reply.deltas[j]) for j in (1, 2))


def test_a_gradient_of_psi_does_not_save_bad_weights(program):
    arrays, fields = parts(program, reply_of(program, 1))
    nan = {
        n: encode(torch.full_like(decode(a, k), math.nan))
        for (n, a), k in zip(arrays.items(), array_lengths(program, 1).values(), strict=True)
    }
    assert refusal(program, 1, nan, fields).tensor == "partition-1"
    assert refusal(program, 1, arrays | {"partition-1": nan["partition-1"]}, fields)


def test_objects_and_huge_shapes_are_refused_before_anything_is_allocated(program):
    """The header alone decides: pickles are never opened, 4 TB never asked for."""
    arrays, fields = parts(program, reply_of(program, 2))
    objects = io.BytesIO()
    np.save(objects, np.array([Bomb()], dtype=object), allow_pickle=True)
    assert "|O" in refusal(program, 2, arrays | {"partition-2": objects.getvalue()}, fields).reason
    for shape in ((10**12,), (10**6, 10**6), (2**62,)):
        huge = io.BytesIO()
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(huge, header)
        tracemalloc.start()
        found = refusal(program, 2, arrays | {"partition-2": huge.getvalue()}, fields)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert str(shape) in found.reason
        assert peak < 10**6


class Bomb:
    """Fails the test where it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("unpickled",)


def test_the_run_is_told_by_its_settings(program):
    """Any that results depend on, the seed among them; not by where it is written or runs."""
    tokens = {
        build_program(make_config({"model": f"{__name__}:tiny"} | changes), 10, 1).run_token
        for changes in ({}, {"seed": 1}, {"data_seed": 1}, {"client_lr": 0.1})
    }
    assert len(tokens) == 4
    assert all(0 <= token < 2**63 for token in tokens)
    same = {"out": "elsewhere", "workers": 3, "availability": "seen/by/the/server/only"}
    config = make_config({"model": f"{__name__}:tiny"} | same)
    assert build_program(config, 10, 1).run_token == program.run_token
    other = build_program(make_config({"model": f"{__name__}:tiny", "seed": 1}), 10, 1)
    replayed = parts(other, reply_of(program, 1))
    assert refusal(program, 1, *replayed).tensor == "run"


def test_encoding_is_numpys_own():
    values = torch.tensor([1.5, -2.0, 0.0])
    assert encode(values) == Array(values.numpy()).data
    assert encode(torch.zeros(0)) == Array(np.zeros(0, "<f4")).data


def test_decoded_tensors_share_nothing_with_the_message():
    data = encode(torch.tensor([1.0, -1.0]))
    decode(data, 2).fill_(5)
    assert torch.equal(decode(data, 2), torch.tensor([1.0, -1.0]))
    assert torch.equal(decode(data, 2, copy=False), torch.tensor([1.0, -1.0]))


def test_wire_bytes_count_headers_and_names(program):
    up, down = wire_bytes(program, 1)
    arrays, fields = parts(program, reply_of(program, 1))
    assert up == sum(len(n) + len(a) for n, a in arrays.items()) + sum(8 + len(n) for n in fields)
    assert down > 4 * program.layout.num_parameters
