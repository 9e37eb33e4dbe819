import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpart.data.split import split_clients


@st.composite
def splits(draw):
    clients = draw(st.integers(1, 60))
    least = draw(st.integers(1, 5))
    n = draw(st.integers(clients * least, clients * least + 400))
    groups = draw(st.integers(1, 12))
    # Zipf-like counts too: a group may be absent or nearly everything.
    power = draw(st.floats(0, 4))
    weights = np.arange(1, groups + 1) ** -power
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return {
        "groups": rng.choice(groups, n, p=weights / weights.sum()),
        "clients": clients,
        "alpha": 10 ** draw(st.floats(-6, 3)),
        "rng": rng,
        "concentration": draw(st.sampled_from(["prior", "class"])),
        "sizes": draw(st.sampled_from(["multinomial", "equal"])),
        "min_examples": least,
    }


@settings(max_examples=150, deadline=None)
@given(splits())
def test_every_image_has_one_owner_and_every_client_its_minimum(options):
    n = len(options["groups"])
    indices = split_clients(**options)
    assert len(indices) == options["clients"]
    assert np.array_equal(np.sort(np.concatenate(indices)), np.arange(n))
    sizes = [len(index) for index in indices]
    assert min(sizes) >= options["min_examples"]
    for index in indices:
        assert index.dtype == np.int64
        assert (np.diff(index) > 0).all()
    if options["sizes"] == "equal":
        assert max(sizes) - min(sizes) <= 1


@settings(max_examples=20, deadline=None)
@given(splits(), st.integers(0, 2**32))
def test_the_stream_alone_decides(options, seed):
    one, two = (split_clients(**{**options, "rng": np.random.default_rng(seed)}) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
