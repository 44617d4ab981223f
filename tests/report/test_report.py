"""The whole report on synthetic runs: what is in it, that it is the same each time, that its
figures are legible.
"""

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from matplotlib.text import Text
from PIL import Image

from cifnet_pl.__main__ import main
from cifnet_pl.report import read_study, write_report
from cifnet_pl.report.figures import SMALL_FONT, Picture, all_pictures
from cifnet_pl.report.study import Study
from tests.command_line import assert_ends, rows
from tests.report.labels import assert_labels_are_readable
from tests.report.synthetic import write_run

VARIANTS: dict[str, dict[str, Any]] = {
    "full": {"final": 60.0, "activations": True},
    "no_buffer": {"final": 25.0, "buffer": None, "activations": True},
    "no_oversampling": {"final": 38.0, "buffer": {"oversample": False}},
    "locked": {"final": 35.0, "head_options": {"update_past": False}},
    "small": {"final": 50.0, "buffer": {"capacity": 200}},
    "herding": {"final": 58.0, "buffer": {"strategy": "herding"}},
    "ridge": {"final": 61.0, "head_options": {"ridge": 1.0}},
    "acil": {"final": 67.0, "head": "ACILHead", "minutes": 2.5, "kwh": 0.09},
    "exact": {"final": 64.0, "head": "RidgeHead", "minutes": 1.1, "kwh": 0.04},
    "ncm": {"final": 57.0, "head": "NCMHead"},
    "sgd": {"final": 12.0, "head": "SGDHead", "kwh": None},
}
IMAGES = {"source": "folder", "root": "some/images", "image_size": 128}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for name, options in VARIANTS.items():
        for seed in (1, 2):
            write_run(root / f"{name}{seed}" / "version_0", seed=seed, **options)
    for strategy in ("random", "kmeans"):
        buffer = {"strategy": strategy}
        write_run(
            root / f"five_{strategy}" / "version_0",
            tasks=20,
            classes=5,
            buffer=buffer,
            final=58.0,
            kwh=None,
        )
    for head in ("CIFNetHead", "ACILHead"):
        write_run(root / f"long_{head}" / "version_0", tasks=50, classes=2, head=head)
    embedded = {
        "backbone": "embedded:efficientnet_lite0",
        "data": IMAGES,
        "features": 1280,
        "kwh": None,
    }
    write_run(root / "images" / "version_0", seed=1, **embedded)
    (root / "half" / "version_0" / "checkpoints").mkdir(parents=True)
    killed = root / "acil-s3-0123456789"
    killed.mkdir()
    (killed / "point.yaml").write_text("seed_everything: 3\n")
    (killed / "failure.txt").write_text("killed by SIGKILL\n")
    lines = ["method,seed,task,A_k,seconds,kWh,dataset,classes_per_task"]
    lines += [
        f"DER,{s},{k + 1},{90 - 3 * k},800,0.03,CIFAR-100,10"
        for s in (1, 2)
        for k in range(10)
    ]
    (root / "external.csv").write_text("\n".join(lines))
    return root


@pytest.fixture(scope="module")
def study(runs: Path) -> Study:
    return read_study([runs], runs / "external.csv")


@pytest.fixture(scope="module")
def written(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("report") / "out"
    assert (
        main(
            [
                "report",
                str(runs),
                "--output",
                str(output),
                "--external",
                str(runs / "external.csv"),
            ]
        )
        == 0
    )
    return output


@pytest.fixture(scope="module")
def pictures(study: Study) -> dict[str, list[Picture]]:
    return all_pictures(study)


FIGURES = {
    "trajectory_cifar_100_10_cls_task",
    "ablation_curves_cifar_100_10_cls_task_cifnet",
    "long_horizon_cifar_100_2_cls_task",
    "time_cifar_100_10_cls_task",
    "memory_cifar_100_10_cls_task",
    "ablation_cifar_100_10_cls_task_cifnet",
    "calibration_cifar_100_10_cls_task_cifnet",
    "buffer_size",
    "by_head_ridge",
}


def test_every_figure_of_the_paper_is_drawn(written: Path) -> None:
    for suffix in ("png", "svg"):
        names = {path.stem for path in (written / "figures").glob(f"*.{suffix}")}
        assert names >= FIGURES
    for path in (written / "figures").glob("*.png"):
        with Image.open(path) as image:
            assert image.convert("L").getextrema() == (0, 255)


def test_accuracies_are_means_over_seeds_beside_published_ones(written: Path) -> None:
    table = rows(written / "tables" / "accuracy.csv")
    result = {(row["method"], row["origin"]): row for row in table}
    name = "CIFAR-100, 10 cls/task: A_K"
    assert float(result["CIFNet", "measured"][name]) == pytest.approx(60.0)
    assert result["CIFNet", "measured"][f"{name} n"] == "2"
    assert float(result["CIFNet", "published"][name]) == 59.57
    assert float(result["DER", "external"][name]) == 63
    assert float(result["DER", "published"][name]) == 59.03
    images = [key for key in table[0] if key.startswith("images")]
    assert not any(
        row[key] for row in table for key in images if row["origin"] != "measured"
    )


def test_tables_of_the_ablations(written: Path) -> None:
    ablation = {
        (row["variant"], row["origin"]): row
        for row in rows(written / "tables" / "ablation.csv")
    }
    name = "CIFAR-100, 10 cls/task: A_K"
    assert float(ablation["CIFNet, no buffer", "measured"][name]) == pytest.approx(25.0)
    assert float(ablation["CIFNet, no buffer", "published"][name]) == 24.74
    assert ("CIFNet, locked old neurons", "measured") in ablation
    sizes = {
        row["size of the buffer (embeddings)"]: row
        for row in rows(written / "tables" / "buffer_size.csv")
    }
    assert [
        float(sizes[size]["CIFAR-100, 10 cls/task: CIFNet"]) for size in ("200", "2000")
    ] == [
        50.0,
        60.0,
    ]
    sampling = rows(written / "tables" / "sampling.csv")
    assert [row["buffer.strategy"] for row in sampling] == [
        "herding",
        "kmeans",
        "random",
    ]
    five = {
        row["buffer.strategy"]: row["CIFAR-100, 5 cls/task: CIFNet (published)"]
        for row in sampling
    }
    assert five == {"random": "59.26", "kmeans": "58.25", "herding": "58.07"}


def test_memory_as_in_the_paper(written: Path) -> None:
    kept = {
        (r["method"], r["origin"]): r
        for r in rows(written / "tables" / "memory_cifar_100_10_cls_task.csv")
    }
    # tab:memory_breakdown: ACIL keeps 72.1 M numbers, 288.5 MB at four bytes. Here: float64, a
    # triangle, no projection.
    assert float(kept["ACIL", "published"]["total (M)"]) == pytest.approx(
        72.1, abs=0.05
    )
    assert float(kept["ACIL", "published"]["stored (MB)"]) == pytest.approx(
        288.5, abs=0.3
    )
    numbers = 8192 * 8193 // 2 + 2 * 100 * 8192
    assert float(kept["ACIL", "measured"]["total (M)"]) == pytest.approx(numbers / 1e6)
    assert float(kept["ACIL", "measured"]["stored (MB)"]) == pytest.approx(
        8 * numbers / 1e6
    )
    # Measured and published components stand in the same columns.
    for kind, factors in (("measured", 33.56), ("published", 67.1)):
        assert float(kept["ACIL", kind]["factors (M)"]) == pytest.approx(
            factors, abs=0.05
        )
        assert float(kept["CIFNet", kind]["buffer (M)"]) == pytest.approx(
            1.02, abs=0.03
        )
    assert {
        float(row["backbone (M)"])
        for row in kept.values()
        if row["origin"] == "measured"
    } == {11.17}


def test_energies_carry_their_source(written: Path) -> None:
    for row in rows(written / "tables" / "efficiency_cifar_100_10_cls_task.csv"):
        assert row["conditions"]
        if row["origin"] == "measured" and row["energy (kWh)"]:
            assert row["conditions"] == "a"
    text = (written / "report.md").read_text()
    assert "a: x86_64, cpu estimated (cpu_load), ram estimated." in text
    assert "external: the file does not say" in text
    assert "published, published (CodeCarbon)." in text


def test_the_page_is_self_contained_and_says_what_is_missing(written: Path) -> None:
    page = (written / "report.html").read_text()
    sources = re.findall(r'(?:src|href)\s*=\s*"([^"]{0,30})', page)
    assert sources
    assert all(
        source.startswith(("data:image/svg+xml;base64,", "#")) for source in sources
    )
    assert not re.search(r"<script|<link|@import|url\(|https?:", page)
    assert "half/version_0: no summary.json" in page
    top = page.partition("<h2")[0]
    assert "Missing: 1 point" in top
    assert "acil-s3-0123456789: killed by SIGKILL" in top
    assert "was trained on ImageNet labels" in page
    assert page.count("<table>") == page.count("</table>") > 5
    assert set(re.findall(r'href="#([^"]+)"', page)) == set(
        re.findall(r'<h2 id="([^"]+)"', page)
    )


def test_two_reports_are_the_same_bytes(
    runs: Path, written: Path, tmp_path: Path
) -> None:
    write_report(read_study([runs], runs / "external.csv"), tmp_path)
    first = {
        p.relative_to(written): p.read_bytes()
        for p in written.rglob("*")
        if p.is_file()
    }
    second = {
        p.relative_to(tmp_path): p.read_bytes()
        for p in tmp_path.rglob("*")
        if p.is_file()
    }
    assert first.keys() == second.keys()
    assert [str(name) for name in first if first[name] != second[name]] == []


def test_letters_are_legible_half_a_page_wide(
    pictures: dict[str, list[Picture]],
) -> None:
    """No two labels overlap; no figure is so wide, or has so small letters, that they are lost in a
    column of text.
    """
    drawn = [picture for section in pictures.values() for picture in section]
    assert {picture.name for picture in drawn} >= FIGURES
    for picture in drawn:
        assert_labels_are_readable(picture)
        assert picture.figure.get_figwidth() <= 6.5, picture.name
        texts = [
            text for text in picture.figure.findobj(Text) if text.get_text().strip()
        ]  # type: ignore[attr-defined]
        small = {text.get_text() for text in texts if text.get_fontsize() < SMALL_FONT}  # type: ignore[attr-defined]
        assert not small, picture.name


def test_cells_of_activation_maps_have_their_numbers(
    pictures: dict[str, list[Picture]],
) -> None:
    (picture,) = [p for p in pictures["Ablation"] if p.name.startswith("calibration")]
    without, with_buffer = picture.figure.axes[:2]
    for axes, later in ((without, 70), (with_buffer, 10)):
        cells = {text.get_position(): text.get_text() for text in axes.texts}
        wanted = {
            (j + 1, i + 1): 90 if i == j else later if j > i else 15
            for i in range(10)
            for j in range(10)
        }
        assert cells == {place: str(number) for place, number in wanted.items()}
        assert axes.get_title().endswith(f"above the diagonal: {later} %")


def test_methods_differ_without_colours(
    study: Study, pictures: dict[str, list[Picture]]
) -> None:
    (setting,) = [
        s for s in study.settings if s.protocol == "10" and s.dataset == "CIFAR-100"
    ]
    own = [p for p in pictures["Accuracy"] if p.name.endswith(study.slug(setting))]
    assert own
    for picture in own:
        lines = [bars.lines[0] for bars in picture.figure.axes[0].containers]  # type: ignore[attr-defined]
        assert len({line.get_marker() for line in lines}) == len(lines)


def test_nothing_to_report(
    tmp_path: Path, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(runs / "half", tmp_path / "half")
    assert_ends(
        main(["report", str(tmp_path), "--output", str(tmp_path / "out")]),
        1,
        "no finished run in",
        capsys,
    )
    assert main(["report", str(tmp_path / "none")]) == 2
    assert not (tmp_path / "out").exists()


def test_an_earlier_report_is_replaced_only_if_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "e" / "version_0", tasks=1)
    words = ["report", str(tmp_path / "e"), "--output", str(tmp_path / "out")]
    assert main(words) == 0
    page = tmp_path / "out" / "report.html"
    page.write_text("mine", encoding="utf-8")
    assert_ends(main(words), 2, "out exists already", capsys)
    assert page.read_text(encoding="utf-8") == "mine"
    assert main([*words, "--overwrite"]) == 0
    assert "cls/task" in page.read_text(encoding="utf-8")


def test_a_tilde_is_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in ``--output=~/report``, which shells do not replace."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "home" / "runs" / "e" / "version_0", tasks=1)
    assert main(["report", "~/runs", "--output=~/report"]) == 0
    assert (tmp_path / "home" / "report" / "report.html").is_file()
    assert os.listdir(tmp_path) == ["home"]


def test_a_single_run_without_energy_makes_a_report(tmp_path: Path) -> None:
    write_run(
        tmp_path / "e" / "version_0",
        tasks=1,
        kwh=None,
        data={"source": "digits", "root": None},
    )
    assert main(["report", str(tmp_path / "e"), "--output", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "digits, 10 cls/task" in page
    assert "kWh" not in page


@pytest.mark.parametrize(
    ("images", "ridge", "noted"), [(1000, 0.01, 1), (1000, 1.0, 0), (9000, 0.01, 0)]
)
def test_a_small_ridge_with_about_as_many_images_as_features_is_noted(
    tmp_path, images, ridge, noted
):
    about = {"learned_images": images}
    write_run(
        tmp_path / "e" / "version_0",
        tasks=2,
        head_options={"ridge": ridge},
        about=about,
    )
    write_report(read_study([tmp_path]), tmp_path / "out")
    assert (tmp_path / "out" / "report.md").read_text().count(
        "weights follow noise"
    ) == noted
