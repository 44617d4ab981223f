"""The paper's numbers, and the file of methods that were run elsewhere."""

import re

import pandas as pd
import pytest

from cifnet_pl.report.external_results import (
    SHARED_COLUMNS,
    published_rows,
    read_external,
)
from cifnet_pl.utilities.errors import CifnetError, UsageError

HEADER = "method,seed,task,A_k,seconds,kWh"


def setting(dataset, protocol, n_tasks, backbone="file:x"):
    """A row of a run; all settings learn 100 classes."""
    row = dict.fromkeys(SHARED_COLUMNS, "")
    row |= {"dataset": dataset, "protocol": protocol, "n_tasks": n_tasks}
    name = f"{dataset}, {protocol} cls/task, {backbone}"
    return row | {"n_classes": 100, "backbone": f"{backbone}, 224 px", "setting": name}


CIFAR = setting("CIFAR-100", "10", 10)
FIVE = setting("CIFAR-100", "5", 20)
IMAGES = setting("images", "10", 10)


def test_published_rows_belong_to_their_data_and_protocol_only():
    ten = {row["label"]: row for row in published_rows(CIFAR)}
    assert next(iter(ten)) == "Finetune"
    assert len(ten) == 12 + 2  # and two ablations
    assert ten["CIFNet, no buffer"]["changed"] == "buffer"
    # A_K per kWh of the paper is A_K / kWh, up to the paper's own rounding.
    for row in ten.values():
        if "A_K_per_kwh" in row:
            ratio = row["A_K"] / row["energy_kwh"]
            assert row["A_K_per_kwh"] == pytest.approx(ratio, rel=0.02)
    five = {row["label"]: row for row in published_rows(FIVE)}
    assert "energy_kwh" not in five["CIFNet"]  # the paper's energies are of ten a task
    assert five["CIFNet, kmeans"]["A_K"] == 58.25
    assert published_rows(IMAGES) == []
    assert published_rows({**CIFAR, "n_classes": 50}) == []
    assert published_rows({**CIFAR, "tune": ", on 0.1"}) == []


def write(folder, *lines):
    path = folder / "external.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def read(folder, *lines, settings=(CIFAR,)):
    """The last row of each run of a file."""
    rows = pd.DataFrame(read_external(write(folder, *lines), pd.DataFrame(settings)))
    return rows.drop_duplicates("run", keep="last").set_index(["method", "seed"])


def test_external_runs_with_missing_cells(tmp_path):
    lines = []
    for seed in (1, 2):
        for k in range(10):
            lines.append(f"DER,{seed},{k + 1},{90 - 3 * k - seed},60,0.03")
    for k in range(10):
        accuracy = "" if k == 3 else 80 - k
        seconds = "" if k == 5 else 60
        lines.append(f"PODNet,1,{k + 1},{accuracy},{seconds},")
    rows = read(tmp_path, HEADER, *lines, "WA,,,51.9,600,0.3")
    der = rows.loc["DER"]
    assert list(der["A_K"]) == [62, 61]
    assert list(der["max_drop"]) == [3, 3]
    assert list(der["energy_kwh"]) == pytest.approx([0.3, 0.3])
    assert list(der["train_seconds"]) == [600, 600]
    assert list(der["A_K_per_kwh"]) == pytest.approx([62 / 0.3, 61 / 0.3])
    assert list(der["A_bar"]) == pytest.approx([75.5, 74.5])
    # A mean over some of the tasks would not compare with others: it is not given.
    pod = rows.loc["PODNet", "1"]
    assert pod[["A_bar", "train_seconds", "energy_kwh"]].isna().all()
    assert (pod["A_K"], rows.loc["WA", ""]["A_K"]) == (71, 51.9)


def test_external_methods_find_their_setting(tmp_path):
    other = setting("CIFAR-100", "10", 10, "timm:vit")
    lines = [f"DER,1,{k + 1},50,," for k in range(20)]
    rows = read(tmp_path, HEADER, *lines, settings=[CIFAR, FIVE, IMAGES])
    assert list(rows["setting"]) == [FIVE["setting"]]
    lines = [f"DER,1,{k + 1},50,,,images,10" for k in range(10)]
    header = f"{HEADER},dataset,classes_per_task"
    rows = read(tmp_path, header, *lines, settings=[CIFAR, FIVE, IMAGES])
    assert list(rows["setting"]) == [IMAGES["setting"]]
    lines = [f"DER,1,{k + 1},50,,,timm:vit" for k in range(10)]
    rows = read(tmp_path, f"{HEADER},backbone", *lines, settings=[CIFAR, other])
    assert list(rows["setting"]) == [other["setting"]]
    with pytest.raises(UsageError, match="dataset, classes_per_task and backbone"):
        read(tmp_path, HEADER, "DER,1,10,50,,", settings=[CIFAR, other])


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        (["method,seed,task,A_k,seconds", "a,1,1,2,3"], "kWh"),
        ([HEADER, "a,1,1,high,,"], "could not convert string to float: 'high'"),
        ([HEADER, "a,1,1,101,,"], "A_k of a is 101, expected percentages"),
        ([HEADER, "a,1,1,50,,", "a,1,1,51,,"], "two lines for one task"),
        ([HEADER, "a,1,,50,,"], "external.csv: a fits 3 of the settings"),
        ([HEADER, "a,1,1,50,,", "a,1,2,50,,,7"], "Expected 6 fields in line 3, saw 7"),
        ([HEADER, "a,1,1,0.86,,", "a,1,2,0.71,,"], "0.86, expected percentages"),
        ([HEADER, "a,1,1,50,,", "a,1,1.5,50,,"], "row 2: expected"),
        ([HEADER, "a,1,0,50,,"], "row 1: expected"),
        ([HEADER, "a,1,1,50,-60,"], "row 1: expected"),
        ([HEADER, ",1,1,50,,"], "row 1: expected"),
        ([HEADER, *(f"a,1,{k},50,," for k in range(1, 31))], "fits none"),
    ],
)
def test_bad_external_files_are_named(tmp_path, lines, part):
    with pytest.raises(CifnetError, match=re.escape(part)):
        read_external(write(tmp_path, *lines), pd.DataFrame([CIFAR, FIVE, IMAGES]))


def test_a_file_that_is_missing_or_of_another_encoding(tmp_path):
    path = tmp_path / "external.csv"
    with pytest.raises(CifnetError, match="no table of external results"):
        read_external(path, pd.DataFrame([CIFAR]))
    path.write_bytes(f"{HEADER}\nM\u00fcller,1,1,50,,\n".encode("latin-1"))
    with pytest.raises(CifnetError, match="no table of external results"):
        read_external(path, pd.DataFrame([CIFAR]))
