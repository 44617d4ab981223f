"""What every data source promises, and what single ones do besides."""

from itertools import compress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cifnet_pl.data.loading import ImageLoader
from cifnet_pl.data.samples import SampleTable, Source, SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.data.splitting import held_out
from cifnet_pl.utilities.errors import DataError
from tests.data.entrances import ENTRANCES, Entrance, samples, split_samples
from tests.data.layouts import CASES, Case


def as_shipped(case: Case, folder: Path) -> Source:
    """Lay a benchmark out, build it, and check its classes and sizes."""
    case.write(folder)
    source = case.build(folder)
    assert tuple(source.class_names) == case.classes
    assert (len(source.train), len(source.test)) == case.sizes
    return source


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{case.source} {case.write.__name__}" for case in CASES]
)
def test_what_every_benchmark_promises(case, tmp_path):
    check_source(as_shipped(case, tmp_path))


def as_users_have_them(entrance: Entrance, folder: Path) -> Source:
    given = samples("blue", "red")
    if entrance.splits:
        given = split_samples("train", "test")
    return entrance.build(folder, given)


@pytest.mark.parametrize("name", ENTRANCES)
def test_what_every_source_promises(name: str, tmp_path: Path) -> None:
    check_source(as_users_have_them(ENTRANCES[name], tmp_path))


def check_source(source: Source) -> None:
    contents = []
    for part in (source.train, source.test):
        every_row = np.arange(len(part))
        assert part.labels.dtype == np.int64
        assert set(part.labels.tolist()) <= set(range(len(source.class_names)))
        assert sum(map(len, part.rows_of.values())) == len(part)
        for label, rows in part.rows_of.items():
            assert (np.diff(rows) > 0).all()
            assert (part.labels[rows] == label).all()
        for column in {"domain", "task"} & set(part.table):
            assert part.table[column].notna().all()
        assert len(set(part.names)) == len(part.names) == len(part)
        contents.append(set(part.hashes(every_row).tolist()))
    assert len(contents[0]) == len(source.train)  # so that the next line says something
    assert contents[0].isdisjoint(contents[1])
    rows = np.array([len(source.train) - 1, 0])
    part = source.train.subset(rows)
    assert part.names == [source.train.names[row] for row in rows]
    assert part.labels.tolist() == source.train.labels[rows].tolist()
    assert part.hashes(np.arange(2)).tolist() == source.train.hashes(rows).tolist()
    assert part.place(0) == source.train.place(int(rows[0]))
    if source.train.are_images:
        check_images(source.train)


def check_images(images: SampleTable) -> None:
    """A loader gives the same squares and hashes as the images themselves."""
    rows = np.random.default_rng(0).permutation(len(images))[:40]
    (batch,) = ImageLoader(images, 6, 0.875, 2).decode([rows])
    squares = [images.image(row).square(6, 0.875) for row in rows.tolist()]
    assert (batch.image.permute(0, 2, 3, 1).numpy() == squares).all()
    assert batch.unreadable == ()
    assert batch.row.tolist() == rows.tolist()
    assert batch.key.tolist() == images.hashes(rows).tolist()


def test_the_same_images_are_the_same_samples_in_every_source(tmp_path: Path) -> None:
    """Folders, archives, tables and shards: the same contents and labels are learned."""
    learned = []
    for name in ("folders", "archive", "table", "shards"):
        (tmp_path / name).mkdir()
        train = as_users_have_them(ENTRANCES[name], tmp_path / name).train
        hashes = train.hashes(np.arange(len(train))).tolist()
        learned.append(set(zip(hashes, train.labels.tolist(), strict=True)))
    assert all(pairs == learned[0] for pairs in learned)


# ---------------------------------------------------------------------- splits


@given(
    st.lists(st.text(max_size=5), unique=True, max_size=30),
    st.floats(0.01, 0.99),
    st.integers(0, 5),
    st.randoms(),
)
def test_held_out_share(names, fraction, seed, random):
    held = set(compress(names, held_out(names, fraction, seed)))
    wanted = max(round(len(names) * fraction), 1)
    assert len(held) == max(min(wanted, len(names) - 1), 0)
    mixed = random.sample(names, len(names))
    assert set(compress(mixed, held_out(mixed, fraction, seed))) == held
    if len(names) > 20 and 5 <= len(held) <= len(names) - 5:
        others = (held_out(names, fraction, seed + i) for i in range(1, 4))
        assert any(set(compress(names, other)) != held for other in others)


def test_a_hub_s_set_with_fewer_rows_than_it_says_is_refused(tmp_path: Path) -> None:
    """A download that is not whole; a local folder is checked as a set of the hub is."""
    datasets = pytest.importorskip("datasets", reason="the extra `hf` is missing")
    rows = datasets.Dataset.from_dict({"label": [0, 1, 0, 1]})
    rows.to_parquet(tmp_path / "train-00000-of-00001.parquet")
    about = "dataset_info:\n  splits:\n  - name: train\n    num_bytes: 1\n    num_examples: 5\n"
    (tmp_path / "README.md").write_text(f"---\n{about}---\n")
    with pytest.raises(DataError, match=r"cannot load .*num_examples=5"):
        build_source("hf", SourceOptions(tmp_path))
