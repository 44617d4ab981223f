"""Every number of a report, recomputed from the rows of the run folders by code that shares nothing
with the report.

A sweep of digits with a killed seed, a seed that read its embeddings from the cache, two widths,
two machines, a method whose energy was not measured, and methods that were run elsewhere.
"""

import csv
import io
import itertools
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cifnet_pl.report import read_study
from cifnet_pl.report.table_formats import to_csv_table, to_markdown
from cifnet_pl.report.tables import all_tables
from tests.report.synthetic import write_run

HERE = {"machine": "some CPU, 2 cores"}
THERE = {"machine": "a server, 32 cores"}
SETTING = "digits, 2 cls/task"
Row = dict[str, str]
Raw = dict[str, Any]


def make(root: Path) -> None:
    """Run folders as a sweep leaves them."""
    digits = {"source": "digits", "root": None, "image_size": 8}
    common: dict[str, Any] = {
        "data": digits,
        "backbone": "pixels:8",
        "tasks": 5,
        "classes": 2,
        "features": 192,
    }
    plan: list[tuple[str, int, dict[str, Any], dict[str, Any]]] = [
        *[
            (
                "CIFNetHead",
                seed,
                {
                    "final": 88.0 + seed,
                    "minutes": 1.0 + seed / 7,
                    "kwh": 0.05 + seed / 90,
                },
                HERE,
            )
            for seed in (1, 2)
        ],
        (
            "CIFNetHead",
            3,
            {"final": 91.0, "minutes": 0.1, "kwh": 0.004},
            {**HERE, "cached_images": 900},
        ),
        *[
            (
                "RidgeHead",
                seed,
                {"final": 92.0 + seed / 3, "minutes": 1.1, "kwh": 0.04 + seed / 99},
                machine,
            )
            for seed, machine in ((1, HERE), (2, HERE), (3, THERE))
        ],
        *[
            (
                "ACILHead",
                seed,
                {
                    "final": 95.0 + seed / 5,
                    "head_options": {"width": 256},
                    "buffer": None,
                },
                HERE,
            )
            for seed in (1,)
        ],
        *[
            (
                "ACILHead",
                seed,
                {
                    "final": 85.0 + 0.9 * seed,
                    "head_options": {"width": 64},
                    "buffer": None,
                },
                HERE,
            )
            for seed in (1, 2)
        ],
        *[
            (
                "NCMHead",
                seed,
                {"final": 70.0 + 1.1 * seed, "kwh": None, "buffer": None},
                HERE,
            )
            for seed in (1, 2, 3)
        ],
    ]
    for number, (head, seed, options, about) in enumerate(plan):
        run = write_run(
            root / f"{head}-{number}" / "version_0",
            head=head,
            seed=seed,
            **{**common, **options},
        )
        path = run / "summary.json"
        summary = json.loads(path.read_text())
        sizes = {
            name: 4 if name == "buffer" else 8 for name in summary["state_components"]
        }
        more = {
            "cached_images": 0,
            "top5": 98.0 + seed / 10,
            "epochs": 1,
            "state_bytes_per_element": sizes,
            **about,
        }
        path.write_text(json.dumps({**summary, "co2_kg": number / 1000, **more}))
    killed = root / "acil256-s2-0123456789"
    (killed / "version_0" / "checkpoints").mkdir(parents=True)
    (killed / "point.yaml").write_text("data: {}\n")
    (killed / "failure.txt").write_text("killed by SIGKILL\n")
    write_external(root)


def write_external(root: Path) -> None:
    """Methods that were run elsewhere: one task by task, of one the energy alone."""
    lines = ["method,seed,task,A_k,seconds,kWh"]
    lines += [
        f'"Other, tuned",{seed},{k + 1},{95 - 4 * k - seed},300,0.001'
        for seed in (1, 2)
        for k in range(5)
    ]
    lines += ["Energy alone,1,,,,0.02"]
    (root / "external.csv").write_text("\n".join(lines))


def raw(folder: Path) -> Raw:
    """What one run measured, from its rows."""
    summary = json.loads((folder / "summary.json").read_text())
    rows = list(csv.DictReader((folder / "tasks.csv").open(newline="")))
    matrix = [
        [float(cell) for cell in row[1:] if cell]
        for row in list(csv.reader((folder / "accuracy_matrix.csv").open(newline="")))[
            1:
        ]
    ]
    accuracies = [float(row["A_k"]) for row in rows]
    last = len(rows) - 1
    kwh = (
        sum(float(row["energy_kwh"]) for row in rows) if rows[0]["energy_kwh"] else None
    )
    parts = {
        name: count for name, count in summary["state_components"].items() if count
    }
    return {
        "folder": folder,
        "head": summary["head"],
        "seed": summary["seed"],
        "summary": summary,
        "width": summary["head_settings"].get("width"),
        "conditions": (summary["machine"], summary["cached_images"] > 0, bool(kwh)),
        "A_K": accuracies[-1],
        "A_bar": statistics.fmean(accuracies),
        "drop": max(a - b for a, b in itertools.pairwise(accuracies)),
        "forgetting": statistics.fmean(
            max(row[j] for row in matrix[j:]) - matrix[last][j] for j in range(last)
        ),
        "bwt": statistics.fmean(matrix[last][j] - matrix[j][j] for j in range(last)),
        "minutes": sum(float(row["train_seconds"]) for row in rows) / 60,
        "kwh": kwh,
        "per_kwh": accuracies[-1] / kwh if kwh else None,
        "ece": float(rows[-1]["ece"]),
        "nll": float(rows[-1]["nll"]),
        "parts": parts,
        "elements": sum(parts.values()),
        "bytes": sum(
            count * (4 if name == "buffer" else 8) for name, count in parts.items()
        ),
    }


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    make(folder)
    return folder


@pytest.fixture(scope="module")
def runs(root: Path) -> list[Raw]:
    return [raw(path.parent) for path in sorted(root.rglob("summary.json"))]


@pytest.fixture(scope="module")
def tables(root: Path) -> dict[str, tuple[list[Row], str]]:
    """Name of a table → its rows as in the CSV file, and its Markdown."""
    result = [
        table
        for section in all_tables(read_study([root], root / "external.csv")).values()
        for table in section
    ]
    return {
        t.name: (list(csv.DictReader(io.StringIO(to_csv_table(t)))), to_markdown(t))
        for t in result
    }


METHODS: dict[str, Callable[[Raw], bool]] = {
    "CIFNet": lambda run: run["head"] == "CIFNetHead",
    "Exact ridge": lambda run: run["head"] == "RidgeHead",
    "ACIL": lambda run: run["width"] == 64,
    "ACIL, width 256": lambda run: run["width"] == 256,
    "NCM": lambda run: run["head"] == "NCMHead",
}
CONDITIONS: dict[str, Callable[[Raw], bool]] = {
    "embeddings from the cache": lambda run: bool(run["conditions"][1]),
    HERE["machine"]: lambda run: run["conditions"][0] == HERE["machine"],
    THERE["machine"]: lambda run: run["conditions"][0] == THERE["machine"],
}


def chosen(runs: list[Raw], label: str, costs: bool = False) -> list[Raw]:
    """The runs that a row's name stands for; in a table of costs those with the cache have a row of
    their own.
    """
    method = max((name for name in METHODS if label.startswith(name)), key=len)
    kept = [run for run in runs if METHODS[method](run)]
    rest = label[len(method) :].removeprefix(", ")
    mixed = label == "CIFNet" and costs
    return [
        run
        for run in kept
        if (not mixed or not run["conditions"][1])
        and (not rest or CONDITIONS[rest](run))
    ]


def check(row: Row, header: str, values: list[float | None]) -> None:
    """Compare mean, deviation and number of seeds of one cell."""
    known = [value for value in values if value is not None]
    cell = [row[header], row[f"{header} sd"], row[f"{header} n"]]
    if not known:
        assert cell == ["", "", ""], (header, row)
        return
    assert float(cell[0]) == pytest.approx(statistics.fmean(known), rel=1e-9), (
        header,
        row,
    )
    assert int(cell[2]) == len(known), (header, row)
    if len(known) > 1 and cell[1]:
        assert float(cell[1]) == pytest.approx(
            statistics.stdev(known), rel=1e-6, abs=1e-12
        ), (
            header,
            row,
        )


def numeric(rows: list[Row]) -> set[str]:
    """Headers of columns of numbers."""
    return {name.removesuffix(" n") for name in rows[0] if name.endswith(" n")}


def test_the_accuracy_table(
    tables: dict[str, tuple[list[Row], str]], runs: list[Raw]
) -> None:
    rows, text = tables["accuracy"]
    assert [row["method"] for row in rows if row["origin"] == "measured"] == [
        "CIFNet",
        "Exact ridge",
        "ACIL",
        "NCM",
    ]
    for row in rows:
        for header, key in ((f"{SETTING}: Ā", "A_bar"), (f"{SETTING}: A_K", "A_K")):
            if row["origin"] == "measured":
                check(row, header, [run[key] for run in chosen(runs, row["method"])])
    (other,) = (row for row in rows if row["method"] == "Other, tuned")
    check(other, f"{SETTING}: A_K", [78.0, 77.0])
    check(other, f"{SETTING}: Ā", [86.0, 85.0])
    for name in ("CIFNet", "Exact ridge", "ACIL", "NCM"):
        (line,) = (
            line
            for line in text.splitlines()
            if line.startswith(f"| {name} | measured")
        )
        assert f"(n = {len(chosen(runs, name))})" in line


def test_the_tables_of_costs(
    tables: dict[str, tuple[list[Row], str]], runs: list[Raw]
) -> None:
    rows, _ = tables["efficiency_digits_2_cls_task"]
    measured = [row for row in rows if row["origin"] == "measured"]
    assert [row["method"] for row in measured] == [
        "CIFNet",
        "CIFNet, embeddings from the cache",
        f"Exact ridge, {THERE['machine']}",
        f"Exact ridge, {HERE['machine']}",
        "ACIL",
        "NCM",
    ]
    headers = {"training (min)": "minutes", "energy (kWh)": "kwh", "A_K (%)": "A_K"}
    for row in measured:
        row_runs = chosen(runs, row["method"], costs=True)
        assert (
            len({run["conditions"] for run in row_runs}) == 1
        )  # never averaged over machines, or with the cache
        for header, key in headers.items():
            check(row, header, [run[key] for run in row_runs])
        if row_runs[0]["kwh"]:  # of the row's own means, not a mean of ratios
            ratio = float(row["A_K (%)"]) / float(row["energy (kWh)"])
            assert float(row["A_K per kWh"]) == pytest.approx(ratio)
        check(
            row,
            "backbone (M)",
            [run["summary"]["backbone_params"] / 1e6 for run in row_runs],
        )
        check(row, "epochs", [1.0 for _ in row_runs])
        check(row, "CO₂ (kg)", [run["summary"]["co2_kg"] for run in row_runs])
    assert numeric(rows) == {
        *headers,
        "A_K per kWh",
        "backbone (M)",
        "epochs",
        "CO₂ (kg)",
    }
    external = {row["method"]: row for row in rows if row["origin"] == "external"}
    check(external["Other, tuned"], "energy (kWh)", [0.005, 0.005])
    assert float(external["Other, tuned"]["A_K per kWh"]) == pytest.approx(77.5 / 0.005)
    check(external["Energy alone"], "energy (kWh)", [0.02])


def test_the_table_of_all_results(
    tables: dict[str, tuple[list[Row], str]], runs: list[Raw]
) -> None:
    rows, _ = tables["results_digits_2_cls_task"]
    quality: dict[str, Callable[[Raw], float | None]] = {
        "Ā (%)": lambda r: r["A_bar"],
        "A_K (%)": lambda r: r["A_K"],
        "top-5 (%)": lambda r: r["summary"]["top5"],
        "forgetting (%)": lambda r: r["forgetting"],
        "backward transfer (%)": lambda r: r["bwt"],
        "largest drop (%)": lambda r: r["drop"],
        "ECE (%)": lambda r: r["ece"],
        "NLL": lambda r: r["nll"],
    }
    costs: dict[str, Callable[[Raw], float | None]] = {
        "training (min)": lambda r: r["minutes"],
        "energy (kWh)": lambda r: r["kwh"],
        "CO₂ (kg)": lambda r: r["summary"]["co2_kg"],
    }
    measured = {row["method"]: row for row in rows if row["origin"] == "measured"}
    assert set(measured) == set(METHODS)
    for label, row in measured.items():
        row_runs = chosen(runs, label)
        assert int(row["seeds"]) == len(row_runs)
        for header, value in quality.items():
            check(row, header, [value(run) for run in row_runs])
        mixed = len({run["conditions"] for run in row_runs}) > 1
        for header, value in costs.items():
            check(row, header, [] if mixed else [value(run) for run in row_runs])
    assert numeric(rows) == {*quality, *costs}
    elsewhere = {row["method"]: row for row in rows if row["origin"] == "external"}
    known = {
        "Other, tuned": {
            "Ā (%)": [86.0, 85.0],
            "A_K (%)": [78.0, 77.0],
            "largest drop (%)": [4.0, 4.0],
            "training (min)": [25.0, 25.0],
            "energy (kWh)": [0.005, 0.005],
        },
        "Energy alone": {"energy (kWh)": [0.02]},
    }
    assert set(elsewhere) == set(known)
    for label, row in elsewhere.items():
        assert int(row["seeds"]) == max(map(len, known[label].values()))
        for header in numeric(rows):
            check(row, header, list(known[label].get(header, [])))


def test_the_tables_of_memory_widths_and_runs(tables, runs, root):
    rows, _ = tables["memory_digits_2_cls_task"]
    parts = {name for run in runs for name in run["parts"]}
    for row in rows:
        row_runs = chosen(runs, row["method"])
        for part in parts:
            check(
                row,
                f"{part} (M)",
                [run["parts"][part] / 1e6 for run in row_runs if part in run["parts"]],
            )
        check(row, "total (M)", [run["elements"] / 1e6 for run in row_runs])
        check(row, "stored (MB)", [run["bytes"] / 1e6 for run in row_runs])
        check(
            row,
            "backbone (M)",
            [run["summary"]["backbone_params"] / 1e6 for run in row_runs],
        )
    assert numeric(rows) == {
        *(f"{part} (M)" for part in parts),
        "total (M)",
        "stored (MB)",
        "backbone (M)",
    }
    rows, _ = tables["head_width"]
    for row in rows:
        row_runs = [run for run in runs if run["width"] == int(row["head.width"])]
        check(row, f"{SETTING}: ACIL", [run["A_K"] for run in row_runs])
    assert [row["head.width"] for row in rows] == ["64", "256"]
    rows, _ = tables["runs"]
    by_folder = {str(run["folder"]): run for run in runs}
    assert {row["folder"] for row in rows} == {*by_folder, "external file"}
    for row in (row for row in rows if row["folder"] in by_folder):
        run = by_folder[row["folder"]]
        assert (row["seed"], row["machine"]) == (
            str(run["seed"]),
            run["summary"]["machine"],
        )
        check(row, "A_K (%)", [run["A_K"]])
        check(row, "Ā (%)", [run["A_bar"]])


def test_what_is_missing_is_said(root: Path) -> None:
    study = read_study([root])
    (killed,) = root.glob("acil256-s2-*")
    assert study.missing == [f"{killed.name}: killed by SIGKILL"]
    assert any(killed.name in sentence for sentence in study.left_out)


def test_no_table_is_left_out(tables: dict[str, tuple[list[Row], str]]) -> None:
    """The tests above recompute these."""
    recomputed = {
        "accuracy",
        "efficiency_digits_2_cls_task",
        "results_digits_2_cls_task",
        "memory_digits_2_cls_task",
        "head_width",
        "runs",
    }
    assert set(tables) - recomputed == {"settings"}
