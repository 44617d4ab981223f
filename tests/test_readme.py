"""Every command of the README runs."""

import re
import shlex
from pathlib import Path

import pytest

from cifnet_pl.__main__ import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]
SMALL = "--model.backbone pixels:8 --data.image_size 8 --energy.enabled false"


def shell_lines() -> list[str]:
    """Return the command lines of all blocks that are not output or Python."""
    lines = []
    for language, code in BLOCKS:
        if language == "" and "│" not in code:
            lines += [
                line.split("  #")[0].rstrip() for line in code.strip().splitlines()
            ]
    return lines


LINES = shell_lines()
COMMAND_LINES = [line for line in LINES if line.startswith("cifnet ")]


@pytest.mark.system
def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In their order, in an empty folder, with digits as images and their pixels as embeddings."""
    monkeypatch.chdir(tmp_path)
    assert main(["unpack", "--source", "digits", "--output", "all"]) == 0
    for name, digits in (("IMAGES", "012"), ("NEW", "3"), ("HOLIDAY", "0")):
        for digit in digits:
            source = tmp_path / "all" / "train" / digit
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / digit).symlink_to(source)
    variables = dict(re.findall(r'^(\w+)="(.*)"$', "\n".join(LINES), re.MULTILINE))
    for line in COMMAND_LINES:
        for name, value in variables.items():
            line = line.replace(f"${name}", value)
        words = shlex.split(line)[1:]
        if words[0] == "fit":
            words += SMALL.split()
        if words[0] == "sweep":
            words += ["--dry_run", "true"]
        assert main(words) == 0, line
    assert (tmp_path / "predictions.csv").is_file()
    assert (tmp_path / "gallery.png").is_file()
    assert (tmp_path / "lightning_logs/quickstart/version_0/trajectory.png").is_file()
    assert (tmp_path / "report/report.html").is_file()


def test_the_python_runs(capsys: pytest.CaptureFixture[str]):
    (code,) = PYTHON
    exec(code, {})
    assert "[3, 7, 1, 4, 8]" in capsys.readouterr().out
    assert len([line for line in code.strip().splitlines() if line]) <= 11
