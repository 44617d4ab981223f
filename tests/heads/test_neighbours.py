from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from cifnet_pl.heads import KNNHead
from cifnet_pl.utilities.errors import UsageError
from tests.heads.suite import teach

_images, _targets = load_digits(return_X_y=True)
Z, Y = torch.from_numpy(_images[:1000] / 16), torch.from_numpy(_targets[:1000]).long()
# Pixels have 17 values, so that distances are often equal; a little noise decides.
REST = torch.from_numpy(_images[1000:] / 16)
REST += 1e-3 * torch.randn(REST.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def learned(head: KNNHead) -> KNNHead:
    for k in range(5):
        rows = (Y // 2).eq(k)
        teach(head, Z[rows], Y[rows])
    return head


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("neighbours", [1, 5, 40])
def test_votes_of_scikit_learn(metric: str, neighbours: int) -> None:
    model = KNeighborsClassifier(neighbours, weights="distance", metric=metric, algorithm="brute")
    expected = torch.from_numpy(model.fit(Z.numpy(), Y.numpy()).predict_proba(REST.numpy()))
    head = learned(KNNHead(64, neighbours=neighbours, metric=metric, dtype="float64"))
    share = ((neighbours + 1) * head(REST).exp() - 1 / 10) / neighbours
    assert torch.allclose(share, expected, rtol=1e-6, atol=1e-9)
    assert torch.allclose(head.probabilities(REST), head(REST).exp(), rtol=1e-12)
    assert torch.equal(head.predict(REST), expected.argmax(dim=1))


def test_float32_is_enough() -> None:
    exact, head = learned(KNNHead(64, dtype="float64")), learned(KNNHead(64))
    assert head.samples.z.dtype == torch.float32
    assert (exact(REST) - head(REST)).abs().max() < 1e-3


def test_a_stored_embedding_finds_itself() -> None:
    for metric in ("cosine", "euclidean"):
        head = learned(KNNHead(64, metric=metric))
        assert torch.equal(head.predict(Z), Y)
        assert head.probabilities(Z).max(dim=1).values.min() > 0.8


def test_embeddings_of_nothing_but_zeros() -> None:
    for metric in ("cosine", "euclidean"):
        head = teach(
            KNNHead(4, neighbours=2, metric=metric), torch.stack([torch.zeros(4), torch.ones(4)]), torch.tensor([0, 1])
        )
        assert head.probabilities(torch.zeros(1, 4)).isfinite().all()
        if metric == "euclidean":
            assert head.predict(torch.zeros(1, 4)).item() == 0


def test_many_queries_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    head = learned(KNNHead(64, dtype="float64"))
    whole = head(REST)
    monkeypatch.setattr("cifnet_pl.heads.neighbours.QUERIES", 7)
    assert torch.allclose(head(REST), whole, rtol=1e-9)


def test_a_vote_counts_with_its_weight() -> None:
    head = teach(
        KNNHead(2, neighbours=2, metric="euclidean", dtype="float64"),
        torch.tensor([[1.0, 0.0], [-1.0, 0.0]]),
        torch.tensor([0, 1]),
        torch.tensor([1.0, 3.0]),
    )
    share = (3 * head(torch.zeros(1, 2)).exp() - 0.5) / 2
    assert share[0].tolist() == pytest.approx([0.25, 0.75])


def test_it_keeps_every_embedding_and_says_so() -> None:
    head = learned(KNNHead(64))
    assert head.state_elements() == {"embeddings": 1000 * 64}
    head.remove_classes([3])
    assert head.state_elements() == {"embeddings": int((Y != 3).sum()) * 64}


def test_fewer_embeddings_than_neighbours() -> None:
    head = teach(KNNHead(2, neighbours=50), torch.ones(3, 2), torch.full((3,), 4))
    assert head.predict(torch.zeros(2, 2)).tolist() == [4, 4]


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(UsageError, match="neighbours is 0"):
        KNNHead(2, neighbours=0)
    with pytest.raises(UsageError, match="did you mean euclidean"):
        KNNHead(2, metric="euclid")
