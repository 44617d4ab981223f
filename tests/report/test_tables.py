"""Tables: every number computed again from the files of the runs, their formats and rows."""

import csv
import io
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from cifnet_pl.report.page import ImageRow, Section, audit_page
from cifnet_pl.report.results import read_results
from cifnet_pl.report.tables import (
    ReportTable,
    accuracy_table,
    all_tables,
    efficiency_table,
    memory_table,
    number_text,
    report_notes,
)
from tests.report.synthetic import write_run

HERE = {"machine": "some CPU"}
THERE = {"machine": "a server"}
SETTING = "digits, 2 cls/task"
Row = dict[str, str]


def rows_of(table: ReportTable) -> list[Row]:
    return list(csv.DictReader(io.StringIO(table.values.to_csv(index=False))))


def make(root: Path) -> None:
    """A killed seed, a seed with the cache, two widths, two machines, energy not measured."""
    plan: list[tuple[str, int, dict[str, Any], dict[str, Any]]] = [
        ("CIFNetHead", 1, {"final": 89.0, "minutes": 1.1, "kwh": 0.06}, HERE),
        ("CIFNetHead", 2, {"final": 90.0, "minutes": 1.3, "kwh": 0.07}, HERE),
        ("CIFNetHead", 3, {"final": 91.0}, {**HERE, "cached_images": 900}),
        ("RidgeHead", 1, {"final": 92.3, "kwh": 0.05}, HERE),
        ("RidgeHead", 2, {"final": 92.6, "kwh": 0.06}, THERE),
        ("ACILHead", 1, {"final": 95.2, "head_options": {"width": 256}}, HERE),
        ("ACILHead", 1, {"final": 85.9, "head_options": {"width": 64}}, HERE),
        ("ACILHead", 2, {"final": 86.8, "head_options": {"width": 64}}, HERE),
        ("NCMHead", 1, {"final": 71.1, "kwh": None, "buffer": None}, HERE),
    ]
    for number, (head, seed, options, about) in enumerate(plan):
        write_run(
            root / f"{number}" / "version_0",
            head=head,
            seed=seed,
            data={"source": "digits", "root": None, "image_size": 8},
            backbone="pixels:8",
            tasks=5,
            classes=2,
            about={**about, "epochs": 1},
            **options,
        )
    lines = ["method,seed,task,A_k,seconds,kWh"]
    for seed in (1, 2):
        for k in range(5):
            lines.append(f'"Other, tuned",{seed},{k + 1},{95 - 4 * k - seed},300,0.001')
    lines.append("Energy alone,1,,,,0.02")
    (root / "external.csv").write_text("\n".join(lines))


def raw(folder: Path) -> dict[str, Any]:
    """What one run measured, from its rows."""
    summary = json.loads((folder / "summary.json").read_text())
    tasks = list(csv.DictReader((folder / "tasks.csv").open(newline="")))
    accuracies = [float(row["A_k"]) for row in tasks]
    kwh = None
    if tasks[0]["energy_kwh"]:
        kwh = sum(float(row["energy_kwh"]) for row in tasks)
    parts = {name: n for name, n in summary["state_components"].items() if n}
    return {
        "head": summary["head"],
        "width": summary["head_settings"].get("width"),
        "machine": summary["machine"],
        "cached": bool(summary.get("cached_images")),
        "Ā (%)": statistics.fmean(accuracies),
        "A_K (%)": accuracies[-1],
        "ECE (%)": float(tasks[-1]["ece"]),
        "training (min)": sum(float(row["train_seconds"]) for row in tasks) / 60,
        "energy (kWh)": kwh,
        "A_K per kWh": kwh and accuracies[-1] / kwh,
        "total (M)": sum(parts.values()) / 1e6,
        **{f"{name} (M)": count / 1e6 for name, count in parts.items()},
    }


METHODS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "CIFNet": lambda run: run["head"] == "CIFNetHead",
    "Exact ridge": lambda run: run["head"] == "RidgeHead",
    "ACIL": lambda run: run["width"] == 64,
    "ACIL, width 256": lambda run: run["width"] == 256,
    "NCM": lambda run: run["head"] == "NCMHead",
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list]:
    """The tables by name, and what each run measured."""
    root = tmp_path_factory.mktemp("study")
    make(root)
    tables = {}
    for section in all_tables(read_results([root], root / "external.csv")).values():
        for table in section:
            tables[table.name] = table
    folders = [path.parent for path in sorted(root.rglob("summary.json"))]
    return tables, [raw(folder) for folder in folders]


def check(row: Row, header: str, values: list[float | None]) -> None:
    """Compare mean, deviation and number of seeds of one cell."""
    known = [value for value in values if value is not None]
    cell = [row[header], row[f"{header} sd"], row[f"{header} n"]]
    if not known:
        assert cell[:2] == ["", ""]
        return
    assert float(cell[0]) == pytest.approx(statistics.fmean(known))
    assert float(cell[2]) == len(known)
    if len(known) > 1:
        assert float(cell[1]) == pytest.approx(statistics.stdev(known), abs=1e-12)


def test_accuracies_are_means_over_seeds(study) -> None:
    tables, runs = study
    measured = [r for r in rows_of(tables["accuracy"]) if r["origin"] == "measured"]
    assert [row["method"] for row in measured] == [
        "CIFNet",
        "Exact ridge",
        "ACIL",
        "NCM",
    ]
    for row in measured:
        own = [run for run in runs if METHODS[row["method"]](run)]
        assert row["seeds"] == str(len(own))
        for header in ("Ā (%)", "A_K (%)"):
            check(row, f"{SETTING}: {header}", [run[header] for run in own])
    every = rows_of(tables["results_digits_2_cls_task"])
    assert [row["method"] for row in every[:5]] == list(METHODS)
    for row in every[:5]:
        own = [run for run in runs if METHODS[row["method"]](run)]
        for header in ("Ā (%)", "A_K (%)", "ECE (%)"):
            check(row, header, [run[header] for run in own])
    (other,) = [row for row in every if row["method"] == "Other, tuned"]
    check(other, "A_K (%)", [78.0, 77.0])
    check(other, "largest drop (%)", [4.0, 4.0])


def test_costs_are_not_averaged_over_machines_or_with_the_cache(study) -> None:
    tables, runs = study
    rows = rows_of(tables["efficiency_digits_2_cls_task"])
    measured = [row for row in rows if row["origin"] == "measured"]
    assert len(measured) == 7
    for row in measured:
        own = []
        for run in runs:
            same = METHODS[row["method"]](run) and run["machine"] == row["machine"]
            if same and run["cached"] == ("cache" in row["energy from"]):
                own.append(run)
        for header in ("training (min)", "energy (kWh)", "A_K (%)", "A_K per kWh"):
            check(row, header, [run[header] for run in own])
        estimated = "cpu estimated (cpu_load), ram estimated"
        assert row["energy from"].startswith((estimated, "not measured"))
    external = {row["method"]: row for row in rows if row["origin"] == "external"}
    check(external["Other, tuned"], "energy (kWh)", [0.005, 0.005])
    check(external["Other, tuned"], "training (min)", [25.0, 25.0])
    check(external["Energy alone"], "energy (kWh)", [0.02])


def test_memory_and_values_of_a_setting(study) -> None:
    tables, runs = study
    for row in rows_of(tables["memory_digits_2_cls_task"]):
        own = [run for run in runs if METHODS[row["method"]](run)]
        for header in ("factors (M)", "buffer (M)", "total (M)"):
            check(row, header, [run.get(header) for run in own])
    rows = rows_of(tables["head_width"])
    assert [row["head.width"] for row in rows] == ["64", "256"]
    for row in rows:
        own = [run["A_K (%)"] for run in runs if run["width"] == int(row["head.width"])]
        check(row, f"{SETTING}: ACIL: A_K (%)", own)


def test_a_row_is_one_configuration_in_every_setting(tmp_path: Path) -> None:
    """The width that a setting has most runs of is not that of the other setting."""
    runs = [(8192, 10, 1), (8192, 10, 2), (8192, 5, 1), (1024, 5, 1), (1024, 5, 2)]
    for i, (width, classes, seed) in enumerate(runs):
        write_run(
            tmp_path / f"e{i}" / "version_0",
            head="ACILHead",
            head_options={"width": width},
            classes=classes,
            tasks=20 // classes,
            seed=seed,
            final=width / 100,
        )
    found = {}
    for row in rows_of(accuracy_table(read_results([tmp_path]))):
        if row["origin"] == "measured":
            means = [
                row[name] for name in row if name.endswith("A_K (%)") and row[name]
            ]
            found[row["method"]] = {float(mean) for mean in means}
    assert found.keys() <= {"ACIL", "ACIL, width 1024"}
    assert found["ACIL"] == {81.92}


def test_costs_that_count_other_processes_are_said(tmp_path: Path) -> None:
    about = {"energy_counts_other_processes": True}
    write_run(tmp_path / "e" / "version_0", tasks=2, about=about)
    results = read_results([tmp_path])
    (row, *_) = rows_of(efficiency_table(results, results.data[0]))
    assert row["energy from"].endswith("; other processes counted")


def test_networks_on_the_same_data_share_one_table_of_costs(tmp_path: Path) -> None:
    write_run(tmp_path / "a" / "version_0", backbone="timm:vit")
    write_run(tmp_path / "b" / "version_0", backbone="pixels", head="NCMHead")
    results = read_results([tmp_path])
    rows = rows_of(efficiency_table(results, *results.data))
    measured = {r["method"]: r["backbone"] for r in rows if r["origin"] == "measured"}
    assert measured == {"CIFNet": "timm:vit, 224 px", "NCM": "pixels, 224 px"}
    published = [row["method"] for row in rows if row["origin"] == "published"]
    assert len(published) == len(set(published)) > 0


@pytest.mark.parametrize(
    ("head", "networks", "parameters", "kept"),
    [("ICaRLModule", 1, 11_500_000, 0.5), ("DERModule", 3, 34_000_000, 23)],
)
def test_a_trained_network_is_counted_without_one_backbone(
    head, networks, parameters, kept, tmp_path
):
    """Parameters at four bytes, exemplars at one; branches of a growing network count."""
    path = write_run(tmp_path / "trained" / "version_0", tasks=2) / "summary.json"
    more = {
        "head": head,
        "backbone_params": networks * 11_000_000,
        "network_params": 11_000_000,
        "state_components": {"parameters": parameters, "buffer": 6_000_000},
        "state_bytes_per_element": {"parameters": 4, "buffer": 1},
    }
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))
    results = read_results([tmp_path])
    (row, *_) = rows_of(memory_table(results, results.settings[0]))
    shown = {name: float(row[name]) for name in row if name.endswith(("(M)", "(MB)"))}
    assert shown == pytest.approx(
        {
            "parameters (M)": kept,
            "buffer (M)": 6.0,
            "total (M)": kept + 6,
            "stored (MB)": 4 * kept + 6,
            "backbone (M)": 11.0,
        }
    )


@pytest.mark.parametrize(
    ("orders", "said"),
    [
        ([1, 2], "seed_everything and the class order"),
        ([None, None], "the same class order, a seed"),
        ([1, 3], "vary, but not together"),
    ],
)
def test_what_deviations_are_over_is_said(orders, said, tmp_path: Path) -> None:
    for seed, order in enumerate(orders, 1):
        data = {"class_order": order}
        write_run(tmp_path / f"{seed}" / "version_0", tasks=2, seed=seed, data=data)
    assert said in report_notes(read_results([tmp_path]))[0]


# ---------------------------------------------------------------------- formats


def test_numbers_and_deviations() -> None:
    assert number_text(59.256, 0.504, is_percentage=True) == "59.26 ± 0.50"
    assert number_text(0.0603, 0.00112) == "0.0603 ± 0.0011"
    assert number_text(1611.2, 85.4) == "1,611 ± 85"
    assert number_text(0.0) == "0.00"


def test_names_are_escaped_in_every_format(tmp_path: Path) -> None:
    title = "<b>A</b> | 100 % a_b $x$"
    write_run(tmp_path / "e" / "version_0", tasks=2, about={"title": title})
    table = accuracy_table(read_results([tmp_path]))
    assert "<td>&lt;b&gt;A&lt;/b&gt; | 100 % a_b $x$</td>" in table.to_html()
    assert "| <b>A</b> \\| 100 % a_b $x$ | measured " in table.to_markdown()
    latex = table.to_latex()
    assert r"<b>A</b> | 100 \% a\_b \$x\$ & measured &" in latex
    assert r"10 cls/task: $A_K$ (\%)" in latex
    assert r"$\bar{A}$" in latex


def test_a_cell_says_its_seeds_where_it_has_fewer_than_its_row(tmp_path: Path) -> None:
    for i, (seed, classes) in enumerate(((1, 10), (2, 10), (1, 5))):
        folder = tmp_path / f"{i}" / "version_0"
        write_run(folder, seed=seed, classes=classes, tasks=2, final=70.0 + seed)
    table = accuracy_table(read_results([tmp_path])).texts
    (row,) = table[table["origin"] == "measured"].to_dict("records")
    assert row["CIFAR-100, 10 cls/task: A_K (%)"] == "71.50 ± 0.71"
    assert row["CIFAR-100, 5 cls/task: A_K (%)"] == "71.00 (n = 1)"


# ---------------------------------------------------------------------- the page of an audit

MARKUP = "<script>alert('1')</script> & \"x\""


@pytest.mark.parametrize(("inches", "kind"), [(6.4, "small"), (21.0, "wide")])
def test_a_picture_is_as_large_as_it_was_drawn_for(inches: float, kind: str) -> None:
    figure = Figure(figsize=(inches, 2), dpi=130)
    page = audit_page("Audit", [], [Section("Confused", [], figure)])
    assert f'<img class="{kind}" style="width: {inches}in"' in page


def test_whatever_images_and_classes_are_called_is_text() -> None:
    images = {Path("<script>alert('1')"): MARKUP}
    side = ImageRow(MARKUP, images)
    table = {"header": (MARKUP,), "rows": [(MARKUP,)]}
    pairs = [(side, side)]
    section = Section(MARKUP, [MARKUP], pairs=pairs, images=images, **table)
    page = audit_page(MARKUP, [MARKUP], [section])
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(&#39;1&#39;)") == 18
