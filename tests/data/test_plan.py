"""Plans: every class once, learned ones never move, a split for tuning, one run after another."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from cifnet_pl.data.datamodule import CIFNetDataModule
from cifnet_pl.data.samples import SampleTable, Source
from cifnet_pl.data.splitting import tuning_source
from cifnet_pl.data.streams import class_tasks, order_classes
from cifnet_pl.heads import RidgeHead
from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.names import class_name
from tests.data.entrances import built
from tests.lightning_runs import digits, module, trainer

stored_names = st.text(min_size=1, max_size=4).map(class_name)
names = st.lists(stored_names, min_size=1, max_size=25, unique=True)
seeds = st.integers(0, 2**32 - 1)


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[str], int, int, int | None]:
    """Class names, a seed, classes per task and an initial size that fit each other."""
    classes = draw(names)
    initial = draw(st.none() | st.integers(1, len(classes)))
    per_task = draw(st.integers(1, 30))
    return classes, draw(seeds), per_task, initial


@given(names, seeds)
def test_orders_are_numpys_permutation_or_as_given(classes: list[str], seed: int):
    positions = np.random.default_rng(seed).permutation(len(classes)).tolist()
    chosen = [classes[i] for i in positions]
    for order in (seed, positions, chosen):
        assert order_classes(classes, order) == chosen
    assert class_tasks(classes, None, len(classes)) == (tuple(classes),)


@given(plans())
def test_every_class_is_in_exactly_one_task(plan):
    classes, seed, per_task, initial = plan
    tasks = class_tasks(classes, seed, per_task, initial)
    assert [name for task in tasks for name in task] == order_classes(classes, seed)
    sizes = [len(task) for task in tasks]
    if initial is not None:
        assert sizes.pop(0) == initial
    assert all(size == per_task for size in sizes[:-1])
    assert all(1 <= size <= per_task for size in sizes[-1:])


@given(names, st.data())
def test_list_sizes(classes: list[str], data: st.DataObject) -> None:
    initial, *sizes = data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=7))
    wanted = [initial, *sizes]
    if sum(wanted) > len(classes):
        sentence = f"{sum(wanted)} classes, the data has {len(classes)}: lower"
        with pytest.raises(UsageError, match=sentence):
            class_tasks(classes, None, sizes, initial)
        return
    for tasks in (
        class_tasks(classes, None, sizes, initial),
        class_tasks(classes, None, wanted),
    ):
        assert [len(task) for task in tasks] == wanted
        assert [name for task in tasks for name in task] == classes[: sum(wanted)]


@given(plans(), st.data())
def test_learned_tasks_never_move_when_classes_are_added(plan, data):
    classes, seed, per_task, initial = plan
    before = class_tasks(classes, seed, per_task, initial)
    learned = before[: data.draw(st.integers(0, len(before)))]
    longer = st.text(min_size=5, max_size=6)
    added = data.draw(st.lists(longer, max_size=6, unique=True))
    grown = data.draw(st.permutations([*classes, *added]))
    after = class_tasks(grown, seed, per_task, initial, learned)
    assert after[: len(learned)] == learned
    assert sorted(name for task in after for name in task) == sorted(grown)
    if learned:
        assert all(len(task) == per_task for task in after[len(learned) : -1])


def test_impossible_plans_are_usage_errors():
    for options, sentence in (
        ({"per_task": 0}, "classes_per_task is 0: every task"),
        ({"per_task": []}, r"classes_per_task is \[\]: every task"),
        ({"order": -1}, "class_order is -1, expected a seed of at least 0"),
        ({"order": [0, 0, 1]}, "each of the 3 names once, which is not so for 'c'"),
        ({"order": ["a", "b", "c", "x"]}, "not so for 'x'"),
    ):
        with pytest.raises(UsageError, match=sentence):
            class_tasks(["a", "b", "c"], **options)


def test_the_test_images_are_left_alone() -> None:
    whole = CIFNetDataModule("digits").source
    noted = Source(whole.class_names, whole.train, whole.test, ("note: said",))
    assert tuning_source(noted, 0.2, 0).notes == noted.notes
    tuned, again = (CIFNetDataModule("digits", tune=0.2).source for _ in range(2))
    learned = set(tuned.train.names)
    measured = set(tuned.test.names)
    assert learned | measured == set(whole.train.names)
    assert not learned & measured
    for label, rows in whole.train.rows_of.items():
        assert len(tuned.test.rows_of[label]) == round(0.2 * len(rows))
    assert again.test.names == tuned.test.names


def test_each_domain_gives_its_share() -> None:
    columns = {"label": np.repeat([0, 1], 20), "domain": np.tile(["x", "y"], 20)}
    table = pd.DataFrame({**columns, "split": "train"})
    table.loc[40] = [0, "x", "test"]
    samples = SampleTable(table, embeddings=np.zeros((41, 1)))
    tuned = tuning_source(built(samples), 0.5, 0)
    for part in (tuned.train, tuned.test):
        counts = part.table.groupby(["label", "domain"], observed=True).size()
        assert counts.tolist() == [5] * 4


def test_what_cannot_be_split_is_said() -> None:
    with pytest.raises(UsageError, match="leave it out"):
        CIFNetDataModule((np.zeros((4, 1)), [0, 0, 1, 1]), group="near")
    for options, said in (
        ({"tune": 1.0}, "tune is 1, expected a number between"),
        ({"val_fraction": 0.0}, "val_fraction is 0, expected a number between"),
        ({"val_fraction": float("nan")}, "val_fraction is nan, expected a number"),
        ({"tune": 0.2, "group": "folder"}, "leave one of them out"),
    ):
        with pytest.raises(UsageError, match=said):
            CIFNetDataModule("digits", **options)


PIXELS, LABELS = load_digits(return_X_y=True)
FEW = (PIXELS[:300].reshape(-1, 8, 8).astype(np.uint8) * 15, LABELS[:300])


def test_nothing_of_one_learner_reaches_the_next(tmp_path, watch) -> None:
    """Neither embeddings, of which each is computed once in a run, nor the order of classes."""

    def learned(model, data: CIFNetDataModule) -> float | None:
        trainer(tmp_path).fit(model, datamodule=data)
        return model.evaluation.accuracy

    shared = digits(source=FEW)
    first, negative, other = (module(head=RidgeHead, buffer=None) for _ in range(3))
    counts = watch(first.backbone, "forward", len)
    accuracy = learned(first, shared)
    assert sum(counts) == len(shared.source.train) + len(shared.source.test) == 300
    # An affine change is none, as long as it is the same in learning and evaluation.
    negative.backbone.scale.neg_()
    negative.backbone.shift.add_(1)
    assert learned(negative, shared) == pytest.approx(accuracy, abs=2)
    assert accuracy > 80
    known = learned(other, digits(source=FEW, class_order=3))
    assert other.class_names != first.class_names
    trainer(tmp_path).validate(other, datamodule=shared, verbose=False)
    assert other.evaluation.accuracy == known
