import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch import nn

from fedpart.client import ClientReply
from fedpart.config import make_config
from fedpart.program import build_program
from fedpart.wire import (
    REPLY_FIELDS,
    RefusedReply,
    array_lengths,
    decode,
    encode,
    reply_arrays,
    reply_fields,
    validate,
)

# What can be squared.
finite = st.floats(-(2.0**59), 2.0**59, width=32)


def tiny(num_classes: int, in_channels: int) -> nn.Module:
    return nn.Sequential(nn.MaxPool2d(14), nn.Flatten(), nn.Linear(4 * in_channels, num_classes))


PROGRAM = build_program(make_config({"model": f"{__name__}:tiny", "chunks": "0.5,0.3,0.2"}), 10, 1)
# As NumPy lays a message out: what a gate that parses it could trip over.
HEADER = len(encode(torch.zeros(0)))


def message(chunk: int) -> tuple[dict[str, bytes], dict[str, object]]:
    sizes = PROGRAM.layout.sizes
    reply = ClientReply(
        *(1, 2, chunk, 5),
        deltas={j: torch.ones(sizes[j]) for j in range(chunk, len(sizes))},
        hyper_gradient=torch.ones(PROGRAM.hyper.size) if chunk else None,
        hyper_examples=5 if chunk else 0,
        train_loss=1.0,
        log_likelihood=-1.0 if chunk else None,
        seconds=0.0,
    )
    return {n: encode(t) for n, t in reply_arrays(reply).items()}, dict(
        reply_fields(PROGRAM, reply)
    )


@given(npst.arrays(np.dtype("<f4"), st.integers(0, 50), elements=st.floats(width=32)))
def test_decode_inverts_encode_bit_for_bit(values):
    again = decode(encode(torch.from_numpy(values)), len(values))
    assert again.numpy().tobytes() == values.tobytes()


@given(st.integers(0, 2), st.data())
def test_any_finite_values_pass_unchanged(chunk, data):
    arrays, fields = message(chunk)
    sent = {
        name: data.draw(npst.arrays(np.dtype("<f4"), length, elements=finite))
        for name, length in array_lengths(PROGRAM, chunk).items()
    }
    arrays = {name: encode(torch.from_numpy(values)) for name, values in sent.items()}
    reply = validate(PROGRAM, 1, 2, chunk, arrays, fields)
    for name, values in reply_arrays(reply).items():
        assert values.numpy().tobytes() == sent[name].tobytes()


@given(st.integers(0, 2), st.data())
def test_one_wrong_byte_of_a_header_is_refused(chunk, data):
    arrays, fields = message(chunk)
    name = data.draw(st.sampled_from(sorted(arrays)))
    position = data.draw(st.integers(0, HEADER - 1))
    spoilt = bytearray(arrays[name])
    spoilt[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(RefusedReply):
        validate(PROGRAM, 1, 2, chunk, arrays | {name: bytes(spoilt)}, fields)


@settings(max_examples=200)
@given(
    st.integers(0, 2),
    st.dictionaries(
        st.sampled_from(["partition-0", "partition-1", "hyper", "x"]), st.binary(max_size=40)
    ),
    st.dictionaries(
        st.sampled_from([*REPLY_FIELDS, "x"]),
        st.one_of(st.integers(), st.floats(), st.lists(st.integers(), max_size=2), st.just("1")),
    ),
)
def test_nothing_but_a_refusal_comes_out_of_a_broken_message(chunk, broken, wrong):
    arrays, fields = message(chunk)
    try:
        reply = validate(PROGRAM, 1, 2, chunk, arrays | broken, fields | wrong)
    except RefusedReply:
        return
    assert not broken
    assert reply.chunk == chunk
    assert 0 <= reply.hyper_examples <= reply.num_examples
