"""Tables: every number computed again from the files of the runs, their formats and rows."""

import csv
import io
import statistics
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from cifnet_pl.report.page import TEMPLATES, Section
from cifnet_pl.report.tables import (
    accuracy_table,
    all_tables,
    efficiency_table,
    memory_table,
    report_notes,
)
from tests.report.synthetic import SOURCE, results_of

HERE = {"machine": "some CPU", "git_commit": "0123456789abcdef+changes"}
SETTING = "digits, 10 cls/task"
NARROW = {"head": "ACILHead", "head_options": {"width": 64}}
RUNS = [
    {"seed": 1, "first": 89.0, "minutes": 1, "kwh": 0.06},
    {"seed": 2, "first": 90.0, "minutes": 2, "kwh": 0.08},
    {"seed": 3, "first": 91.0, "minutes": 4, "about": {**HERE, "cached_images": 900}},
    {"head": "RidgeHead", "seed": 1, "first": 92.3},
    {"head": "RidgeHead", "seed": 2, "first": 92.7, "about": {"machine": "a server"}},
    {"head": "ACILHead", "head_options": {"width": 256}, "seed": 1, "first": 95.2},
    {**NARROW, "seed": 1, "first": 85.0},
    {**NARROW, "seed": 2, "first": 87.0},
    {"head": "NCMHead", "first": 71.1, "kwh": None, "buffer": None},
]
"""A seed with the cache, two widths, two machines, energy that was not measured."""
EXTERNAL = """method,seed,task,A_k,seconds,kWh
"Other, tuned",1,1,78,1500,0.005
"Other, tuned",2,1,77,1500,0.005
Energy alone,1,,,,0.02
"""


def rows_of(table):
    return list(csv.DictReader(io.StringIO(table.values.to_csv(index=False))))


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The rows of each table by name, of runs of one task, whose accuracy is Ā and A_K."""
    root = tmp_path_factory.mktemp("study")
    data = {"source": "digits", "root": None, "image_size": 8}
    every = {"data": data, "backbone": "pixels:8", "tasks": 1, "about": HERE}
    external = root / "external.csv"
    external.write_text(EXTERNAL)
    results = results_of(root, *[every | run for run in RUNS], external=external)
    rows = {}
    for section in all_tables(results).values():
        for table in section:
            rows[table.name] = rows_of(table)
    return rows


def check(row, header, *values):
    """Compare mean, deviation and number of seeds of one cell."""
    assert float(row[header]) == pytest.approx(statistics.fmean(values))
    assert float(row[f"{header} n"]) == len(values)
    if len(values) > 1:
        deviation = pytest.approx(statistics.stdev(values), abs=1e-12)
        assert float(row[f"{header} sd"]) == deviation


def test_accuracies_are_means_over_seeds(study):
    measured = [row for row in study["accuracy"] if row["origin"] == "measured"]
    cifnet, ridge, acil, ncm = measured
    methods = [row["method"] for row in measured]
    assert methods == ["CIFNet", "Exact ridge", "ACIL", "NCM"]
    for header in (f"{SETTING}: Ā (%)", f"{SETTING}: A_K (%)"):
        check(cifnet, header, 89, 90, 91)
        check(ridge, header, 92.3, 92.7)
        check(acil, header, 85, 87)
        check(ncm, header, 71.1)
    assert [row["seeds"] for row in (cifnet, ridge, ncm)] == ["3", "2", "1"]
    every = {row["method"]: row for row in study["results_digits_10_cls_task"]}
    assert list(every)[:5] == [*methods[:3], "ACIL, width 256", "NCM"]
    check(every["CIFNet"], "A_K (%)", 89, 90, 91)
    check(every["CIFNet"], "ECE (%)", 30, 30, 30)
    check(every["ACIL, width 256"], "A_K (%)", 95.2)
    check(every["Other, tuned"], "A_K (%)", 78, 77)
    by_width = {row["head.width"]: row for row in study["head_width"]}
    assert list(by_width) == ["64", "256"]
    check(by_width["64"], f"{SETTING}: ACIL: A_K (%)", 85, 87)
    check(by_width["256"], f"{SETTING}: ACIL: A_K (%)", 95.2)


def test_costs_are_not_averaged_over_machines_or_with_the_cache(study):
    rows = study["efficiency_digits_10_cls_task"]
    measured = [row for row in rows if row["origin"] == "measured"]
    assert len(measured) == 7
    (cached,) = (row for row in measured if "the cache" in row["energy from"])
    check(cached, "training (min)", 4)
    (cifnet,) = (row for row in measured if row["method"] == "CIFNet" and row != cached)
    assert cifnet["energy from"] == SOURCE
    check(cifnet, "training (min)", 1, 2)
    check(cifnet, "energy (kWh)", 0.06, 0.08)
    check(cifnet, "A_K per kWh", 89 / 0.06, 90 / 0.08)
    machines = [row["machine"] for row in measured if row["method"] == "Exact ridge"]
    assert machines == ["some CPU", "a server"]
    by_method = {row["method"]: row for row in rows}
    assert by_method["NCM"]["energy (kWh)"] == ""
    assert by_method["NCM"]["energy from"] == "not measured"
    check(by_method["Other, tuned"], "energy (kWh)", 0.005, 0.005)
    check(by_method["Other, tuned"], "training (min)", 25, 25)
    check(by_method["Energy alone"], "energy (kWh)", 0.02)


def test_a_run_is_listed_with_the_commit_of_the_package(study):
    assert {row["commit"] for row in study["runs"]} == {"0123456789", ""}


def test_networks_on_the_same_data_share_one_table_of_costs(tmp_path):
    about = {"energy_counts_other_processes": True}
    first = {"tasks": 10, "backbone": "timm:vit", "about": about}
    second = {"tasks": 10, "backbone": "pixels", "head": "NCMHead"}
    results = results_of(tmp_path, first, second)
    rows = rows_of(efficiency_table(results, *results.data))
    assert rows[0]["energy from"].endswith("; other processes counted")
    measured = {r["method"]: r["backbone"] for r in rows if r["origin"] == "measured"}
    assert measured == {"CIFNet": "timm:vit, 224 px", "NCM": "pixels, 224 px"}
    published = [row["method"] for row in rows if row["origin"] == "published"]
    assert len(published) == len(set(published)) > 0


def test_a_trained_network_is_counted_without_one_backbone(tmp_path):
    """Parameters at four bytes, exemplars at one; branches of a growing network count."""
    kept = {"parameters": 34_000_000, "buffer": 6_000_000}
    more = {"network_params": 11_000_000, "state_components": kept}
    more |= {"state_bytes_per_element": {"parameters": 4, "buffer": 1}}
    results = results_of(tmp_path, {"about": more})
    (row, *_) = rows_of(memory_table(results, results.settings[0]))
    assert float(row["parameters (M)"]) == pytest.approx(23)
    assert float(row["total (M)"]) == pytest.approx(23 + 6)
    assert float(row["stored (MB)"]) == pytest.approx(4 * 23 + 6)
    assert float(row["backbone (M)"]) == pytest.approx(11)


@pytest.mark.parametrize(
    ("orders", "said"),
    [
        ([1, 2], "seed_everything and the class order"),
        ([None, None], "the same class order, a seed"),
        ([1, 3], "vary, but not together"),
    ],
)
def test_what_deviations_are_over_is_said(orders, said, tmp_path):
    runs = [{"seed": i + 1, "data": {"class_order": orders[i]}} for i in range(2)]
    assert said in report_notes(results_of(tmp_path, *runs))[0]


# ---------------------------------------------------------------------- formats


def test_names_are_escaped_in_every_format(tmp_path):
    title = "<b>A</b> | 100 % a_b $x$"
    table = accuracy_table(results_of(tmp_path, {"about": {"title": title}}))
    assert "<td>&lt;b&gt;A&lt;/b&gt; | 100 % a_b $x$</td>" in table.to_html()
    assert "| <b>A</b> \\| 100 % a_b $x$ | measured " in table.to_markdown()
    latex = table.to_latex()
    assert r"<b>A</b> | 100 \% a\_b \$x\$ & measured &" in latex
    assert r"10 cls/task: $A_K$ (\%)" in latex
    assert r"$\bar{A}$" in latex


def test_a_cell_says_its_seeds_where_it_has_fewer_than_its_row(tmp_path):
    runs = []
    for seed, classes in ((1, 10), (2, 10), (1, 5)):
        runs.append({"seed": seed, "classes": classes, "final": 70.0 + seed})
    table = accuracy_table(results_of(tmp_path, *runs)).texts
    (row,) = table[table["origin"] == "measured"].to_dict("records")
    assert row["CIFAR-100, 10 cls/task: A_K (%)"] == "71.50 ± 0.71"
    assert row["CIFAR-100, 5 cls/task: A_K (%)"] == "71.00 (n = 1)"


# ---------------------------------------------------------------------- the page of an audit

MARKUP = "<script>alert('1')</script> & \"x\""


def test_whatever_images_and_classes_are_called_is_text():
    images = {Path("<script>alert('1')"): MARKUP}
    side = (MARKUP, images)
    table = {"header": (MARKUP,), "rows": [(MARKUP,)]}
    pairs = [(side, side)]
    figure = Figure(figsize=(21, 2), dpi=130)
    section = Section(MARKUP, [MARKUP], figure, pairs=pairs, images=images, **table)
    template = TEMPLATES.get_template("audit.html")
    page = template.render(title=MARKUP, lead=[MARKUP], sections=[section])
    assert '<img class="wide" style="width: 21.0in"' in page  # as it was drawn
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(&#39;1&#39;)") == 19
