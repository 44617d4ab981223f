import numpy as np
import pytest
import torch
from torch import Tensor

from cifnet_pl.buffer import STRATEGIES, CalibrationBuffer, select_centroid, select_herding, select_kmeans


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
    mean, chosen = features.mean(axis=0), list[int]()
    for _ in range(15):
        left = [i for i in range(len(z)) if i not in chosen]
        gaps = [np.linalg.norm(features[[*chosen, i]].mean(axis=0) - mean) for i in left]
        chosen.append(left[int(np.argmin(gaps))])
    assert select_herding(z, KEYS, 0, 15).tolist() == chosen


def test_kmeans_takes_one_of_each_cluster_the_largest_first() -> None:
    centres = torch.tensor([[0.0, 0.0], [100.0, 0.0], [0.0, 100.0], [100.0, 100.0]])
    sizes = [5, 20, 10, 15]
    parts = [c + embeddings(n, 2, seed=i) for i, (c, n) in enumerate(zip(centres, sizes, strict=True))]
    label = torch.repeat_interleave(torch.arange(4), torch.tensor(sizes))
    z = torch.cat(parts)
    rows = select_kmeans(z, torch.arange(len(z)), 0, 4)
    assert label[rows].tolist() == [1, 3, 2, 0]
    for part, row in zip(label[rows].tolist(), rows.tolist(), strict=True):
        own = parts[part]
        nearest = (own - own.mean(dim=0)).norm(dim=1).argmin()
        assert torch.equal(z[row], own[nearest])


def test_kmeans_with_fewer_distinct_embeddings_than_wanted() -> None:
    z = torch.tensor([[0.0], [0.0], [0.0], [5.0], [5.0], [9.0]])
    rows = select_kmeans(z, torch.arange(6), 0, 5)
    assert len(set(rows.tolist())) == 5
    assert sorted(z[rows[:3]].flatten().tolist()) == [0.0, 5.0, 9.0]


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@pytest.mark.parametrize("quota", [1, 7, 60, 100])
def test_every_strategy_gives_distinct_rows_up_to_the_quota(strategy: str, quota: int) -> None:
    rows = STRATEGIES[strategy](embeddings(), KEYS, 3, quota)
    assert len(rows) == min(quota, 60)
    assert len(set(rows.tolist())) == len(rows)
    assert torch.equal(rows, STRATEGIES[strategy](embeddings(), KEYS, 3, quota))


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_buffer_does_not_depend_on_order_or_batches(strategy: str) -> None:
    z, y = torch.cat([embeddings(40, seed=1), embeddings(40, seed=2)]), torch.arange(80) % 2
    whole, pieces = (CalibrationBuffer(20, strategy=strategy, seed=1) for _ in range(2))
    whole.add(z, y, torch.arange(80))
    order = torch.randperm(80, generator=torch.Generator().manual_seed(5))
    for rows in order.split(9):
        pieces.add(z[rows], y[rows], torch.arange(80)[rows])
    for buffer in (whole, pieces):
        buffer.commit()
        assert buffer.state_elements() == 20 * 5
    assert torch.equal(whole.key, pieces.key)
    assert torch.equal(whole.z, pieces.z)
    # Later classes leave the beginning of each class's order of preference.
    kept = whole.key[whole.y == 0][:5].tolist()
    whole.add(embeddings(20, seed=3), torch.arange(20) % 2 + 2, torch.arange(100, 120))
    whole.commit()
    assert whole.key[whole.y == 0].tolist() == kept
