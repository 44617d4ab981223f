"""The whole report on synthetic runs: what is in it, and that it is the same each time."""

import os
import re
from pathlib import Path

import pytest

from cifnet_pl.__main__ import main
from cifnet_pl.report.figures import all_pictures
from cifnet_pl.report.results import read_results
from tests.command_line import assert_ends, rows
from tests.report.labels import assert_labels_are_readable
from tests.report.synthetic import write_run

VARIANTS = {
    "full": {"final": 60.0, "activations": True},
    "no_buffer": {"final": 25.0, "buffer": None, "activations": True},
    "no_oversampling": {"final": 38.0, "buffer": {"oversample": False}},
    "locked": {"final": 35.0, "head_options": {"update_past": False}},
    "small": {"final": 50.0, "buffer": {"capacity": 200}},
    "ridge": {"final": 61.0, "head_options": {"ridge": 1.0}},
    "acil": {"final": 67.0, "head": "ACILHead", "minutes": 2.5, "kwh": 0.09},
}
FIGURES = {
    "trajectory_cifar_100_10_cls_task",
    "trajectory_cifar_100_5_cls_task",
    "ablation_curves_cifar_100_10_cls_task_cifnet",
    "time_cifar_100_10_cls_task",
    "memory_cifar_100_10_cls_task",
    "calibration_cifar_100_10_cls_task_cifnet",
    "buffer_size",
    "by_head_ridge",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for name, options in VARIANTS.items():
        for seed in (1, 2) if name in ("full", "acil") else (1,):
            write_run(root / f"{name}{seed}" / "version_0", seed=seed, **options)
    for strategy in ("random", "kmeans"):
        more = {"buffer": {"strategy": strategy}, "kwh": None}
        write_run(root / strategy / "version_0", tasks=20, classes=5, **more)
    images = {"source": "folder", "root": "some/images", "image_size": 128}
    embedded = "embedded:efficientnet_lite0"
    write_run(root / "images" / "version_0", tasks=1, data=images, backbone=embedded)
    (root / "half" / "version_0" / "checkpoints").mkdir(parents=True)
    killed = root / "acil-s3-0123456789"
    killed.mkdir()
    (killed / "point.yaml").write_text("seed_everything: 3\n")
    (killed / "failure.txt").write_text("killed by SIGKILL\n")
    lines = ["method,seed,task,A_k,seconds,kWh,dataset,classes_per_task"]
    for seed in (1, 2):
        for k in range(10):
            lines.append(f"DER,{seed},{k + 1},{90 - 3 * k},800,0.03,CIFAR-100,10")
    (root / "external.csv").write_text("\n".join(lines))
    return root


@pytest.fixture(scope="module")
def sections(runs):
    return all_pictures(read_results([runs], runs / "external.csv"))


@pytest.fixture(scope="module")
def pictures(sections):
    return {picture.name: picture for drawn in sections.values() for picture in drawn}


@pytest.fixture(scope="module")
def written(runs, sections, tmp_path_factory):
    """The report of the command, with the smallest figures: rendering takes long."""
    output = tmp_path_factory.mktemp("report") / "out"
    words = ["report", str(runs), "--output", str(output)]
    with pytest.MonkeyPatch.context() as patch:
        small = {"Buffer": sections["Buffer"]}
        patch.setattr("cifnet_pl.report.figures.all_pictures", lambda _: small)
        assert main([*words, "--external", str(runs / "external.csv")]) == 0
    return output


def test_every_figure_of_the_paper_is_drawn(written, pictures, sections):
    assert pictures.keys() >= FIGURES
    assert len(sections) == 6
    for suffix in ("png", "svg"):
        names = {path.stem for path in (written / "figures").glob(f"*.{suffix}")}
        assert names == {"buffer_size"}


def test_measured_external_and_published_rows_stand_beside_each_other(written):
    table = rows(written / "tables" / "accuracy.csv")
    result = {(row["method"], row["origin"]): row for row in table}
    name = "CIFAR-100, 10 cls/task: A_K (%)"
    assert float(result["CIFNet", "measured"][name]) == pytest.approx(60.0)
    assert float(result["CIFNet", "published"][name]) == 59.57
    assert float(result["DER", "external"][name]) == 63
    assert float(result["DER", "published"][name]) == 59.03
    images = "images, 10 cls/task: A_K (%)"
    assert {row["origin"] for row in table if row[images]} == {"measured"}
    ablation = {}
    for row in rows(written / "tables" / "ablation.csv"):
        ablation[row["variant"], row["origin"]] = row
    assert float(ablation["CIFNet, no buffer", "measured"][name]) == pytest.approx(25)
    assert float(ablation["CIFNet, no buffer", "published"][name]) == 24.74
    assert ("CIFNet, locked old neurons", "measured") in ablation
    sampling = {}
    for row in rows(written / "tables" / "sampling.csv"):
        place = "CIFAR-100, 5 cls/task: CIFNet (published): A_K (%)"
        sampling[row["buffer.strategy"]] = float(row[place])
    assert sampling["kmeans"] == 58.25
    assert sampling["random"] == 59.26


def test_memory_as_in_the_paper(written):
    kept = {}
    for row in rows(written / "tables" / "memory_cifar_100_10_cls_task.csv"):
        kept[row["method"], row["origin"]] = row
    # tab:memory_breakdown: ACIL keeps 72.1 M numbers, 288.5 MB at four bytes. Here: float64, a
    # triangle, no projection.
    published = kept["ACIL", "published"]
    assert float(published["total (M)"]) == pytest.approx(72.1, abs=0.05)
    assert float(published["stored (MB)"]) == pytest.approx(288.5, abs=0.3)
    numbers = 8192 * 8193 // 2 + 2 * 100 * 8192
    measured = kept["ACIL", "measured"]
    assert float(measured["total (M)"]) == pytest.approx(numbers / 1e6)
    assert float(measured["stored (MB)"]) == pytest.approx(8 * numbers / 1e6)
    assert float(published["factors (M)"]) == pytest.approx(67.1, abs=0.05)


def test_the_page_is_self_contained_and_says_what_is_missing(written):
    page = (written / "report.html").read_text()
    sources = re.findall(r'(?:src|href)\s*=\s*"([^"]{0,30})', page)
    assert sources
    for source in sources:
        assert source.startswith(("data:image/svg+xml;base64,", "#"))
    assert not re.search(r"<script|<link|@import|url\(|https?:", page)
    top = page.partition("<h2")[0]
    assert "half/version_0 has no summary.json" in top
    assert "acil-s3-0123456789: killed by SIGKILL" in top
    assert "was trained on ImageNet labels" in page
    linked = set(re.findall(r'href="#([^"]+)"', page))
    assert linked == set(re.findall(r'<h2 id="([^"]+)"', page))


def test_letters_are_legible_half_a_page_wide(pictures):
    for name in FIGURES:
        assert_labels_are_readable(pictures[name])
        assert pictures[name].figure.get_figwidth() <= 6.5


def test_activations_above_the_diagonal_are_said(pictures):
    picture = pictures["calibration_cifar_100_10_cls_task_cifnet"]
    for axes, later in zip(picture.figure.axes[:2], (70, 10), strict=True):
        assert axes.get_title().endswith(f"above the diagonal: {later} %")


def test_nothing_to_report(tmp_path, runs, capsys):
    words = ["report", str(runs / "half"), "--output", str(tmp_path / "out")]
    assert_ends(main(words), 1, "no finished run in", capsys)
    assert main(["report", str(tmp_path / "none")]) == 2
    assert not (tmp_path / "out").exists()


def content(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*.*")}


def test_an_earlier_report_is_replaced_only_if_asked(cwd, capsys, monkeypatch):
    """By the same bytes. Shells do not replace the ``~`` of ``--output=~/out``."""
    monkeypatch.setenv("HOME", str(cwd / "home"))
    home = cwd / "home"
    write_run(home / "e" / "version_0", tasks=1, kwh=None)
    (home / "README.md").write_text("about the runs")
    words = ["report", "~/e", "~/README.md", "--output=~/out"]
    left_out = f"Left out: {home / 'README.md'} is a file, not a folder of runs"
    assert_ends(main(words), 0, left_out, capsys)
    assert os.listdir(cwd) == ["home"]
    written = content(home / "out")
    assert {Path(name).suffix for name in written} >= {".svg", ".png", ".csv", ".html"}
    page = home / "out" / "report.html"
    assert b"kWh" not in page.read_bytes()  # a run without energy
    page.write_text("mine")
    assert_ends(main(words), 2, "out exists already", capsys)
    assert page.read_text() == "mine"
    assert main([*words, "--overwrite"]) == 0
    assert content(home / "out") == written
    (home / "out" / "tables" / "mine.csv").touch()
    data = {"source": "folder", "root": "my-data"}
    write_run(home / "e" / "version_0", tasks=1, data=data)
    write_run(home / "f" / "version_0", tasks=1, data={**data, "root": "my_data"})
    words[2] = "~/f"
    assert main([*words, "--overwrite"]) == 0
    tables = {path.stem for path in (home / "out" / "tables").glob("*.csv")}
    own = {f"results_my_data_10_cls_task{end}" for end in ("", "_2")}
    assert own | {"mine"} < tables
    assert not [name for name in tables if "cifar" in name]
