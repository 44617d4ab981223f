"""ACIL and DS-AL against the authors' recursions and golden vectors."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

from cifnet_pl.heads import ACILHead, DSALHead
from cifnet_pl.heads.trial import learn, stream
from cifnet_pl.statistics import draw_projection, gcv_ridge, projection_fingerprint
from cifnet_pl.utilities.errors import CheckpointError, UsageError
from tests.heads.suite import normal, scans, teach

GOLDEN = np.load(Path(__file__).parents[1] / "data" / "acil_dsal_digits.npz")
TASKS = stream([[0, 1, 2], [3, 4, 5], [6, 7, 8]], width=4)


@pytest.mark.parametrize(("name", "kind"), [("acil", ACILHead), ("dsal", DSALHead)])
def test_scores_of_the_official_recursion(name: str, kind: type[ACILHead]) -> None:
    x, y = scans()
    names = ("train_rows", "test_rows", "class_order", "projection")
    train, test, order, projection = (torch.from_numpy(GOLDEN[name]) for name in names)
    head = kind(64, projection=projection)
    for k in range(5):
        seen = order[: 2 * k + 2]
        head.begin_task(seen[-2:].tolist())
        for rows in train[torch.isin(y[train], seen[-2:])].split(37):
            head.observe(x[rows], y[rows])
        head.solve()
        rows = test[torch.isin(y[test], seen)]
        scores = head(x[rows])
        golden = torch.from_numpy(GOLDEN[f"{name}_test_scores{k + 1}"])
        assert (scores - golden).norm() < 1e-7 * golden.norm()
        assert (scores - golden).abs().max() < 1e-7 * golden.abs().max()
        accuracy = (head.predict(x[rows]) == y[rows]).double().mean().item()
        assert 100 * accuracy == pytest.approx(GOLDEN[f"{name}_acc"][k])


def test_gcv_chooses_and_solves_by_the_random_features() -> None:
    """Samples of a class that was removed stay, with targets of zero.

    That GCV is the search with the hat matrix is tested in tests/statistics.
    """
    z = normal(90, 6)
    y = torch.arange(90) % 6
    head = teach(ACILHead(6, width=30, ridge="gcv"), z, y)
    h = torch.relu(z @ head.projection.T)
    gram = h.T @ h
    for kept in ([0, 1, 2, 3, 4, 5], [2, 3, 5]):
        head.remove_classes([c for c in head.classes if c not in kept])
        head.solve()
        moment = h.T @ one_hot(y, 6).double()[:, kept]
        samples_kept = torch.tensor(15.0 * len(kept)).double()
        ridge = gcv_ridge(gram, moment, samples_kept, 90, free=0)
        assert head.ridge_used.item() == pytest.approx(ridge, rel=1e-9)
        expected = torch.linalg.solve(gram + ridge * torch.eye(30).double(), moment)
        assert torch.allclose(head.weights, expected, rtol=1e-8, atol=1e-10)


def test_the_projection_of_a_seed_never_changes() -> None:
    drawn = draw_projection(3, 4, seed=0)
    assert projection_fingerprint(drawn) == 954717211979661153


def test_a_drawn_projection_is_not_stored_and_a_given_one_is() -> None:
    drawn = learn(ACILHead(4, width=10, seed=3), TASKS)
    given = learn(ACILHead(4, projection=draw_projection(10, 4, seed=3)), TASKS)
    assert "projection" not in drawn.state_dict()
    assert torch.equal(given.state_dict()["projection"], drawn.projection)
    assert torch.equal(drawn.weights, given.weights)
    assert drawn.state_elements() == {"factors": 55, "moments": 90, "weights": 90}
    assert given.state_elements()["projection"] == 40


def test_states_heads_and_widths_of_another_projection_are_refused() -> None:
    with pytest.raises(UsageError, match="projection has shape"):
        ACILHead(4, projection=torch.zeros(9, 5))
    head = learn(ACILHead(4, width=10), TASKS)
    with pytest.raises(CheckpointError, match="another projection"):
        ACILHead(4, width=10, seed=1).load_state_dict(head.state_dict())
    one, two = (ACILHead(4, projection=draw_projection(10, 4, seed)) for seed in (1, 2))
    for combine in (one.merge_, one.subtract_):
        with pytest.raises(UsageError, match="different projection"):
            combine(two)


def test_the_target_energy_for_gcv_is_that_of_the_residuals() -> None:
    head = DSALHead(6, width=20, ridge="gcv")
    weight = 1 + torch.arange(40).double() % 3
    energy = 0.0
    for k in range(3):
        z = normal(40, 6, seed=k)
        y = 2 * k + torch.arange(40) % 2
        teach(head, z, y, weight)
        main = (z @ head.projection.T).relu() @ head.weights
        residual = (one_hot(y, 2 * k + 2) - main)[:, -2:]
        energy += (weight[:, None] * residual.square()).sum().item()
        assert head.residual_energy.sum().item() == pytest.approx(energy, rel=1e-9)
    assert head.compensation_ridge > 0
