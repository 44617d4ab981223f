"""docs/arrays_to_figure.md: the page is one script that ends in the figure and the table that it shows."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "arrays_to_figure.md"


@pytest.mark.system
def test_the_page_ends_in_its_table_and_its_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGE.read_text(encoding="utf-8")
    script = "\n".join(re.findall(r"```python\n(.*?)```", text, re.S))
    assert sum(bool(line.strip()) for line in script.splitlines()) <= 30
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    exec(compile(script, str(PAGE), "exec"), {"__name__": "page"})
    table = (tmp_path / "report" / "tables" / "accuracy.md").read_text(encoding="utf-8")
    figures = tmp_path / "report" / "figures"
    assert (figures / "trajectory_arrays_2_cls_task.svg").stat().st_size > 10_000
    for method, average, final in re.findall(r"^\| (.+?) \| (\S+ ± \S+) \| (\S+ ± \S+) \|$", text, re.M):
        assert f"| {method} | measured | {average} | {final} |" in table
