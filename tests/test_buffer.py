"""The calibration buffer: sizes, order, randomness and state, and how its strategies choose."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import one_hot

from cifnet_pl.buffer import (
    STRATEGIES,
    BufferSamples,
    CalibrationBuffer,
    mix_keys,
    select_centroid,
    select_herding,
    select_kmeans,
)
from cifnet_pl.utilities.errors import UsageError

Samples = tuple[Tensor, Tensor, Tensor]


def samples(counts: dict[int, int], seed: int = 0) -> Samples:
    """Embeddings, labels and distinct keys of ``counts[label]`` samples of each class, shuffled."""
    generator = torch.Generator().manual_seed(seed)
    repeats = torch.tensor(list(counts.values()))
    y = torch.tensor(list(counts)).repeat_interleave(repeats)
    y = y[torch.randperm(len(y), generator=generator)]
    key = torch.randint(-(2**62), 2**62, (len(y),), generator=generator)
    return torch.randn(len(y), 3, generator=generator), y, key


def offer(buffer: CalibrationBuffer, data: Samples, *batches: Tensor) -> None:
    for rows in batches or [slice(None)]:
        buffer.add(*(part[rows] for part in data))


def filled(buffer: CalibrationBuffer, *tasks: Samples) -> CalibrationBuffer:
    """The buffer after these tasks."""
    for task in tasks:
        offer(buffer, task)
        buffer.commit()
    return buffer


def content(buffer: CalibrationBuffer) -> list[list[float]]:
    """Everything stored, in its order."""
    numbers = [buffer.z.double(), buffer.y[:, None], buffer.key[:, None]]
    return torch.cat(numbers, dim=1).tolist()


def sizes(buffer: CalibrationBuffer) -> dict[int, int]:
    return {label: int((buffer.y == label).sum()) for label in buffer.y.tolist()}


TASKS = [
    samples({7: 30, -2: 9}, 0),
    samples({10**12: 25}, 1),
    samples({0: 2, 3: 40, 5: 11}, 2),
]


def test_every_class_has_its_share_of_the_capacity_and_early_ones_shrink() -> None:
    buffer = CalibrationBuffer(capacity=26)
    other = filled(CalibrationBuffer(capacity=26, seed=1), TASKS[0])
    expected = [
        {7: 13, -2: 9},
        {7: 8, -2: 8, 10**12: 8},
        {7: 4, -2: 4, 10**12: 4, 0: 2, 3: 4, 5: 4},
    ]
    for task, after in zip(TASKS, expected, strict=True):
        assert sizes(filled(buffer, task)) == after
        assert len(buffer.y) <= 26
        if len(after) == 2:  # another seed selects other samples
            assert set(buffer.key.tolist()) != set(other.key.tolist())


def test_a_capacity_per_class_never_shrinks() -> None:
    buffer = filled(CalibrationBuffer(capacity=1, per_class=10), *TASKS)
    assert sizes(buffer) == {7: 10, -2: 9, 10**12: 10, 0: 2, 3: 10, 5: 10}


def test_a_capacity_below_the_number_of_classes_is_refused() -> None:
    buffer = filled(CalibrationBuffer(capacity=2), TASKS[0])
    before = content(buffer)
    words = "a buffer of 2 cannot hold 3 classes: use a capacity of 3"
    # Many samples are refused when they are offered, few at the end of the task.
    with pytest.raises(UsageError, match=words):
        offer(buffer, TASKS[1])
    buffer.discard_pending()
    offer(buffer, TASKS[1], torch.arange(4))
    with pytest.raises(UsageError, match=words):
        buffer.commit()
    assert content(buffer) == before


# ---------------------------------------------------------------------- order, duplicates, pruning


@given(seed=st.integers(0, 999), quota=st.integers(1, 30))
def test_the_sample_of_a_union_is_the_sample_of_the_samples(seed, quota):
    here = torch.from_numpy(np.random.default_rng(seed).random(53) < 0.5)
    whole, one, other, union = (CalibrationBuffer(per_class=quota) for _ in range(4))
    offer(one, TASKS[2], here)
    offer(other, TASKS[2], ~here)
    for part in (one, other):
        part.commit()
        union.add(part.z, part.y, part.key)
    union.commit()
    assert content(union) == content(filled(whole, TASKS[2]))


def test_pruning_while_a_task_is_under_way_does_not_change_the_choice(monkeypatch):
    data = samples({4: 700, 9: 30, 6: 300}, 5)
    pruned, whole = (CalibrationBuffer(capacity=20) for _ in range(2))
    for buffer in (pruned, whole):
        filled(buffer, samples({1: 50}, 6))
    offer(pruned, data, *torch.arange(1030).split(7))
    # A task's candidates stay within a few times the capacity; without pruning all of them wait.
    assert len(pruned.pending().y) <= 100
    monkeypatch.setattr("cifnet_pl.buffer.calibration_buffer.STREAMING", set())
    offer(whole, data, *torch.arange(1030).split(7))
    for buffer in (pruned, whole):
        buffer.commit()
    assert content(pruned) == content(whole)


def test_a_key_that_comes_again_is_kept_once() -> None:
    once = filled(CalibrationBuffer(capacity=18), TASKS[0])
    twice = CalibrationBuffer(capacity=18)
    offer(twice, TASKS[0])
    assert content(once) == content(filled(twice, TASKS[0]))
    # The same samples in a later epoch, too.
    assert content(once) == content(filled(twice, TASKS[0]))


# ---------------------------------------------------------------------- whole groups


def grouped(counts: dict[int, int], seed: int = 0) -> tuple[Samples, dict[int, int]]:
    """Samples as :func:`samples` has them, and key → group of one to nine of a class."""
    data = samples(counts, seed)
    draw = np.random.default_rng(seed)
    group_of = {}
    for label in counts:
        keys = data[2][data[1] == label].tolist()
        while keys:
            size = int(draw.integers(1, 10))
            group_of |= dict.fromkeys(keys[:size], len(group_of))
            keys = keys[size:]
    return data, group_of


def at_hand(buffer: CalibrationBuffer, group_of: dict[int, int]) -> BufferSamples:
    found = buffer.at_hand()
    groups = [group_of[key] for key in found.key.tolist()]
    return found._replace(group=torch.tensor(groups))


def shuffled(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("strategy", ["random", "herding"])
def test_groups_are_kept_whole_in_any_order_and_in_two_steps(strategy: str) -> None:
    data, group_of = grouped({4: 60, 9: 25, 6: 40})
    later, groups_later = grouped({1: 50}, seed=1)
    group_of |= {key: 1000 + group for key, group in groups_later.items()}
    contents = []
    for order, steps in ((0, 1), (1, 1), (2, 2)):
        buffer = CalibrationBuffer(capacity=70, strategy=strategy, seed=3)
        offer(buffer, data, *shuffled(125, order).split(13))
        if steps == 2:
            buffer.commit_groups(at_hand(buffer, group_of))
            assert 60 < len(buffer.y) <= 70
        offer(buffer, later)
        buffer.commit_groups(at_hand(buffer, group_of))
        assert 60 < len(buffer.y) <= 70
        kept = [group_of[key] for key in buffer.key.tolist()]
        for group in set(kept):
            assert kept.count(group) == list(group_of.values()).count(group)
        contents.append(sorted(content(buffer)))
    assert contents[0] == contents[1]
    if strategy == "random":  # herding of a part prefers other samples
        assert contents[0] == contents[2]


def test_classes_get_equal_places_and_groups_that_are_not_whole_none() -> None:
    data, group_of = grouped({4: 300, 9: 300, 6: 20})
    buffer = CalibrationBuffer(capacity=150)
    offer(buffer, data)
    found = at_hand(buffer, group_of)
    broken = found.group % 5 == 0
    found.group[broken] = -1
    buffer.commit_groups(found)
    assert not torch.isin(buffer.key, found.key[broken]).any()
    stored = sizes(buffer)
    assert stored[6] == int(((found.y == 6) & ~broken).sum())
    assert abs(stored[4] - stored[9]) < 9


def test_pruning_keeps_some_classes_whole() -> None:
    """The same ones, whatever the order of the samples."""
    data = samples(dict.fromkeys(range(9), 30))
    whole = []
    for order in range(3):
        buffer = CalibrationBuffer(capacity=70)
        for rows in shuffled(270, order).split(50 + order):
            offer(buffer, data, rows)
            buffer._prune_pending()
        counts = torch.bincount(buffer.pending().y, minlength=9)
        whole.append((counts == 30).nonzero().flatten().tolist())
    assert whole[0] == whole[1] == whole[2]
    assert len(whole[0]) == 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_state_survives_a_file_and_learning_goes_on(dtype: torch.dtype) -> None:
    buffer, again = (CalibrationBuffer(capacity=26, seed=4) for _ in range(2))
    for z, y, key in TASKS[:2]:
        buffer.add(z.to(dtype), y, key)
        buffer.commit()
    again.load_state_dict(buffer.state_dict())
    assert again.z.dtype == dtype
    for each in (buffer, again):
        filled(each, TASKS[2])
    assert torch.equal(again.z, buffer.z)
    assert content(again) == content(buffer)


def test_hashes_are_those_of_split_mix_64() -> None:
    """So each sample is as likely as every other, and the kept set never changes."""
    draw = np.random.default_rng(0)
    for seed in (0, 1, 2**31):
        keys = draw.integers(-(2**63), 2**63 - 1, 50)
        hashes = []
        for key in keys.tolist():
            x = key + (seed + 1) * 0x9E3779B97F4A7C15 & 2**64 - 1
            x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & 2**64 - 1
            x = (x ^ x >> 27) * 0x94D049BB133111EB & 2**64 - 1
            hashes.append(x ^ x >> 31)
        found = mix_keys(torch.from_numpy(keys), seed).numpy().astype(np.uint64)
        assert found.tolist() == hashes


# ---------------------------------------------------------------------- strategies


def embeddings(n: int = 60, d: int = 5, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)) + 1.0


KEYS = torch.arange(60)


def test_centroid_keeps_the_nearest_to_the_mean() -> None:
    z = embeddings()
    gap = np.linalg.norm(z.numpy() - z.numpy().mean(axis=0), axis=1)
    assert select_centroid(z, KEYS, 0, 10).tolist() == np.argsort(gap)[:10].tolist()


def test_herding_is_the_greedy_search_written_out() -> None:
    z = embeddings()
    features = z.double().numpy()
    features = features / np.linalg.norm(features, axis=1, keepdims=True)
    mean = features.mean(axis=0)
    chosen = list[int]()
    for _ in range(15):
        left = [i for i in range(len(z)) if i not in chosen]
        means = np.stack([features[[*chosen, i]].mean(axis=0) for i in left])
        chosen.append(left[np.linalg.norm(means - mean, axis=1).argmin()])
    assert select_herding(z, KEYS, 0, 15).tolist() == chosen


def test_kmeans_takes_one_of_each_cluster_the_largest_first() -> None:
    label = torch.arange(4).repeat_interleave(torch.tensor([5, 20, 10, 15]))
    z = embeddings(50) + 100 * one_hot(label, 5)
    rows = select_kmeans(z, torch.arange(50), 0, 4).tolist()
    assert label[rows].tolist() == [1, 3, 2, 0]
    for row in rows:
        own = (label == label[row]).nonzero().flatten()
        distance = (z[own] - z[own].mean(dim=0)).norm(dim=1)
        assert row == own[distance.argmin()]


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_buffer_does_not_depend_on_order_or_batches(strategy: str) -> None:
    z = torch.cat([embeddings(40, seed=1), embeddings(40, seed=2)])
    y = torch.arange(80) % 2
    whole, pieces = (CalibrationBuffer(20, strategy=strategy, seed=1) for _ in range(2))
    whole.add(z, y, torch.arange(80))
    offer(pieces, (z, y, torch.arange(80)), *shuffled(80, 5).split(9))
    for buffer in (whole, pieces):
        buffer.commit()
        assert buffer.z.shape == (20, 5)
        assert len(buffer.key.unique()) == 20
    assert torch.equal(whole.key, pieces.key)
    assert torch.equal(whole.z, pieces.z)
    # Later classes leave the beginning of each class's order of preference.
    kept = whole.key[whole.y == 0][:5].tolist()
    whole.add(embeddings(20, seed=3), torch.arange(20) % 2 + 2, torch.arange(100, 120))
    whole.commit()
    assert whole.key[whole.y == 0].tolist() == kept
