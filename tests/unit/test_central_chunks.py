"""Who is in which chunk, and how often each example is drawn."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from fedpart.central import Training, make_settings, score_tensors
from fedpart.central.chunks import Chunks, draw_hyper_batch, draw_weights_batch
from fedpart.errors import ConfigError, DataError

SHARES = (0.8, 0.1, 0.1)


class Items(Dataset):
    """A data set that gives one example at a time."""

    def __init__(self, inputs, labels):
        self.inputs, self.labels = inputs, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.inputs[i], int(self.labels[i])


def _data(n=50):
    return torch.arange(float(n)).unsqueeze(1), torch.arange(n) % 3


def test_tensors_and_single_items_give_the_same_batches():
    inputs, labels = _data()
    a = Chunks(TensorDataset(inputs, labels), SHARES, seed=4)
    b = Chunks(Items(inputs, labels), SHARES, seed=4)
    at = np.array([0, 49, 7, 7])
    for one, other in zip(a.take(at), b.take(at), strict=True):
        assert torch.equal(one, other)
        assert one.dtype == other.dtype


@pytest.mark.parametrize("kind", [f"{sign}int{bits}" for sign in "u " for bits in (8, 16, 32, 64)])
def test_whole_numbers_are_labels_whatever_their_type(kind):
    """As a tensor of all, and as tensors, NumPy's numbers and arrays of single items."""
    inputs, labels = _data()
    typed = labels.to(getattr(torch, kind.strip()))
    array = labels.numpy().astype(kind.strip())

    class Given(Items):
        def __getitem__(self, i):
            return self.inputs[i], self.labels[i]

    sets = [TensorDataset(inputs, typed), Given(inputs, typed), Given(inputs, array)]
    sets.append(Given(inputs, array.astype(array.dtype.newbyteorder(">"))))
    for dataset in sets:
        found = Chunks(dataset, SHARES, seed=4).take(np.arange(5))[1]
        assert found.dtype == torch.int64
        assert torch.equal(
            found, Chunks(Items(inputs, labels), SHARES, seed=4).take(np.arange(5))[1]
        )


def wide(classes):
    """Weights enough for three partitions."""
    return nn.Sequential(nn.Linear(1, 16), nn.Linear(16, classes))


LABELS = [
    (lambda labels: labels > 0, "labels are of type (torch.)?bool; give whole numbers"),
    (lambda labels: labels.float(), "labels are of type (torch.)?float32; give whole numbers"),
    (lambda labels: labels.double() / 2, "labels are of type (torch.)?float64; give whole numbers"),
    (lambda labels: labels.where(labels > 0, 7), r"a label is 7; it must be 0 to 2, as the model"),
    (lambda labels: labels + 1, r"a label is 3; it must be 0 to 2, as the model has 3 outputs"),
    (lambda labels: labels - 1, r"a label is -1; it must be 0"),
]


@pytest.mark.parametrize(("change", "says"), LABELS)
def test_labels_that_are_no_class_of_the_model_are_refused(change, says):
    """Of tensors when a training is made, of single items at the first batch that has one."""
    inputs, labels = _data()
    settings = make_settings(chunks=SHARES, iterations=30, batch_size=16)
    with pytest.raises(DataError, match=says):
        Training(wide(3), TensorDataset(inputs, change(labels)), settings)

    class Raw(Items):
        def __getitem__(self, i):
            return self.inputs[i], self.labels[i]

    with pytest.raises(DataError, match=says):
        Training(wide(3), Raw(inputs, change(labels)), settings).run()
    # The labels of a test set, too.
    training = Training(wide(3), TensorDataset(inputs, labels), settings)
    with pytest.raises(DataError, match=says):
        score_tensors(training, 3, inputs, change(labels))


@pytest.mark.parametrize(
    ("tensors", "error", "says"),
    [
        (([[1.0], [2.0]], [[0], [1]]), DataError, r"labels have shape \(2, 1\) for 2 inputs"),
        (([[1.0], [float("nan")]], [0, 1]), DataError, "an input holds values that are not finite"),
        (([[1.0], [float("inf")]], [0, 1]), DataError, "an input holds values that are not finite"),
        (([[1.0], [2.0]],), DataError, "has 1 tensors; give inputs and labels"),
        (([[1.0, 2.0]] * 2, [0, 1]), ConfigError, r"inputs of shape \(2,\) with model 'Linear'"),
        (([[3e38], [3e38]], [0, 1]), ConfigError, "'Linear' gives values that are not finite at"),
    ],
)
def test_examples_that_no_model_can_use_are_refused_at_once(tensors, error, says):
    model = nn.Linear(1, 3)
    nn.init.constant_(model.weight, 10.0)
    with pytest.raises(error, match=says):
        Training(
            model, TensorDataset(*map(torch.tensor, tensors)), make_settings(chunks=(0.5, 0.5))
        )


def test_items_that_are_no_numbers_and_no_items_at_all_are_refused():
    inputs, labels = _data()

    class Words(Items):
        def __getitem__(self, i):
            return self.inputs[i], "a cat"

    with pytest.raises(DataError, match="labels are of type <U5; give whole numbers"):
        Training(wide(3), Words(inputs, labels))
    run = Training(wide(3), TensorDataset(inputs, labels))
    with pytest.raises(DataError, match="there is no example"):
        score_tensors(run, 3, inputs[:0], labels[:0])


def test_every_example_is_in_one_chunk_and_the_seed_decides():
    inputs, labels = _data()
    chunks = Chunks(TensorDataset(inputs, labels), SHARES, seed=4)
    assert chunks.bounds == [0, 40, 45, 50]
    taken = torch.cat([chunks.take(np.array(chunks.positions(c)))[0] for c in range(3)])
    assert sorted(taken.flatten().tolist()) == inputs.flatten().tolist()
    other = Chunks(TensorDataset(inputs, labels), SHARES, seed=5)
    assert not torch.equal(taken, other.take(np.arange(50))[0])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 30))
def test_batches_stay_where_they_belong(seed, size):
    """Partition j is shown chunks up to j; psi is scored on one chunk, never the first."""
    chunks = Chunks(TensorDataset(*_data()), SHARES, seed=0)
    rng = np.random.default_rng(seed)
    j, batch = draw_weights_batch(rng, chunks, SHARES, size)
    assert batch.shape == (size,)
    assert 0 <= batch.min() <= batch.max() < chunks.seen_by(j + 1)
    c, batch = draw_hyper_batch(rng, chunks, SHARES, size)
    assert c >= 1
    assert batch.min() in chunks.positions(c)
    assert batch.max() in chunks.positions(c)


def test_examples_are_drawn_as_often_as_the_schedule_says():
    """Rate of an example of chunk k is proportional to sum over j >= k of u_j / U_j.

    For [0.8, 0.1, 0.1] that is 1.211 : 0.211 : 0.1, the last 0.1 / 1, the second 0.1 / 0.9 more.
    """
    chunks = Chunks(TensorDataset(*_data(1000)), SHARES, seed=0)
    rng, count = np.random.default_rng(0), np.zeros(1000)
    for _ in range(4000):
        _, batch = draw_weights_batch(rng, chunks, SHARES, 64)
        count += np.bincount(batch, minlength=1000)
    rate = np.array([count[chunks.positions(c)].mean() for c in range(3)])
    expected = np.array([1 + 0.1 / 0.9 + 0.1, 0.1 / 0.9 + 0.1, 0.1])
    assert rate / rate.sum() == pytest.approx(expected / expected.sum(), abs=0.01)


def test_psi_scores_later_chunks_by_their_size():
    shares = (0.5, 0.4, 0.1)
    chunks = Chunks(TensorDataset(*_data()), shares, seed=0)
    rng = np.random.default_rng(0)
    drawn = [draw_hyper_batch(rng, chunks, shares, 1)[0] for _ in range(4000)]
    assert np.bincount(drawn)[1:] / 4000 == pytest.approx([0.8, 0.2], abs=0.03)


def test_a_chunk_without_examples_is_refused():
    with pytest.raises(DataError, match="chunk 2 of 3 would be empty with 4 examples"):
        Chunks(TensorDataset(*_data(4)), SHARES, seed=0)
