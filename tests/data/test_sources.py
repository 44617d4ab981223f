"""What every data source promises, and what single ones do besides."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cifnet_pl.data.datamodule import CIFNetDataModule
from cifnet_pl.data.loading import ImageLoader
from cifnet_pl.data.samples import Source, SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.data.splitting import held_out
from cifnet_pl.utilities.errors import DataError, UsageError
from tests.data.layouts import CASES, Case


def _id(case: Case) -> str:
    return f"{case.source}-{case.write.__name__}"


@pytest.fixture(params=CASES, ids=_id)
def case(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Case:
    made: Case = request.param
    made.write(tmp_path, monkeypatch)
    return made


@pytest.fixture
def source(case: Case, tmp_path: Path) -> Source:
    return case.build(tmp_path)


class TestEverySource:
    def test_classes_and_sizes(self, case: Case, source: Source) -> None:
        assert tuple(source.class_names) == case.classes
        assert len(set(source.class_names)) == len(source.class_names)
        assert (len(source.train), len(source.val)) == case.sizes

    def test_labels_are_positions_of_classes(self, source: Source) -> None:
        for images in (source.train, source.val):
            assert images.labels.dtype == np.int64
            assert images.labels.shape == (len(images.names),)
            assert set(images.labels.tolist()) <= set(range(len(source.class_names)))
            for label, rows in images.rows_of.items():
                assert (np.diff(rows) > 0).all()
                assert (images.labels[rows] == label).all()
            assert sum(map(len, images.rows_of.values())) == len(images)

    def test_no_image_is_in_both_sets(self, source: Source) -> None:
        contents = [
            set(images.hashes(np.arange(len(images))).tolist())
            for images in (source.train, source.val)
        ]
        assert len(contents[0]) == len(
            source.train
        )  # so that the next line means something
        assert contents[0].isdisjoint(contents[1])

    def test_built_twice_is_the_same(
        self, case: Case, source: Source, tmp_path: Path
    ) -> None:
        again = case.build(tmp_path)
        assert again.class_names == source.class_names
        for one, two in ((source.train, again.train), (source.val, again.val)):
            assert list(one.names) == list(two.names)
            assert one.labels.tolist() == two.labels.tolist()
            assert [one.change_stamp(i) for i in range(5) if i < len(one)] == [
                two.change_stamp(i) for i in range(5) if i < len(two)
            ]
            assert one.hashes(np.arange(1)) == two.hashes(np.arange(1))

    def test_subset_keeps_names_and_contents(self, source: Source) -> None:
        rows = np.array([len(source.train) - 1, 0])
        split = source.train.subset(rows)
        assert list(split.names) == [source.train.names[i] for i in rows]
        assert split.labels.tolist() == source.train.labels[rows].tolist()
        assert split.hashes(np.arange(2))[1] == source.train.hashes(np.array([0]))[0]
        assert split.place(0) == source.train.place(int(rows[0]))

    def test_domains_and_tasks_are_of_every_sample(self, source: Source) -> None:
        for column in {"domain", "task"} & set(source.train.table):
            for images in (source.train, source.val):
                assert images.table[column].notna().all()


class TestEverySourceOfImages:
    @pytest.fixture(params=[case for case in CASES if case.images], ids=_id)
    def case(
        self,
        request: pytest.FixtureRequest,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Case:
        made: Case = request.param
        made.write(tmp_path, monkeypatch)
        return made

    def test_squares(self, source: Source) -> None:
        for images in (source.train, source.val):
            for size, crop in ((5, 1.0), (16, 0.875)):
                image = images.image(len(images) - 1).square(size, crop)
                assert (image.shape, image.dtype) == ((size, size, 3), np.uint8)

    def test_workers_change_nothing(self, source: Source) -> None:
        rows = np.random.default_rng(0).permutation(len(source.train))[:40]
        batches = [rows[:3], rows[3:3], rows[3:]]
        here, there = (
            list(ImageLoader(source.train, 6, 0.875, workers).decode(batches))
            for workers in (0, 2)
        )
        assert [len(batch.label) for batch in here] == [len(batch) for batch in batches]
        for one, two in zip(here, there, strict=True):
            for a, b in zip(one[:4], two[:4], strict=True):
                assert torch.equal(a, b)
            assert one.unreadable == two.unreadable == ()
        assert torch.cat([batch.row for batch in here]).tolist() == rows.tolist()
        assert (
            torch.cat([batch.key for batch in here]).tolist()
            == source.train.hashes(rows).tolist()
        )


# ---------------------------------------------------------------------- splits


@given(
    st.lists(st.text(max_size=5), unique=True, max_size=30),
    st.floats(0.01, 0.99),
    st.integers(0, 5),
    st.randoms(),
)
def test_held_out_share(
    names: list[str], fraction: float, seed: int, random: Random
) -> None:
    held = {
        name
        for name, flag in zip(names, held_out(names, fraction, seed), strict=True)
        if flag
    }
    assert len(held) == (
        min(max(round(len(names) * fraction), 1), len(names) - 1)
        if len(names) > 1
        else 0
    )
    mixed = random.sample(names, len(names))
    assert {
        name
        for name, flag in zip(mixed, held_out(mixed, fraction, seed), strict=True)
        if flag
    } == held


def test_another_seed_holds_out_others() -> None:
    names = [f"{i}.jpg" for i in range(100)]
    one, two = (held_out(names, 0.3, seed) for seed in (0, 1))
    assert one.sum() == two.sum() == 30
    assert 3 <= (one & two).sum() <= 17  # 9 expected by chance


@pytest.mark.parametrize("fraction", [0.0, 1.0, float("nan")])
def test_fraction_must_be_inside(fraction: float) -> None:
    with pytest.raises(UsageError, match=r"val_fraction is .*, expected a number"):
        CIFNetDataModule("digits", val_fraction=fraction)


def test_a_hub_s_set_with_fewer_rows_than_it_says_is_refused(tmp_path: Path) -> None:
    """A download that is not whole; a local folder is checked as a set of the hub is."""
    datasets = pytest.importorskip("datasets", reason="the extra `hf` is missing")
    rows = datasets.Dataset.from_dict({"label": [0, 1, 0, 1]})
    rows.to_parquet(tmp_path / "train-00000-of-00001.parquet")
    about = "dataset_info:\n  splits:\n  - name: train\n    num_bytes: 1\n    num_examples: 5\n"
    (tmp_path / "README.md").write_text(f"---\n{about}---\n")
    with pytest.raises(DataError, match=r"cannot load .*num_examples=5"):
        build_source("hf", SourceOptions(tmp_path))
