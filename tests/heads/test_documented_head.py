"""The steps of docs/how_to/custom_head.md work."""

import re
import types
from pathlib import Path

from cifnet_pl import heads
from cifnet_pl.__main__ import main
from cifnet_pl.testing import check_head
from tests.command_line import DATA

PAGE = Path(__file__).parents[2] / "docs/how_to/custom_head.md"


def test_the_head_of_the_page(cwd, monkeypatch, capsys):
    page = PAGE.read_text(encoding="utf-8")
    code, line = re.findall(r"```python\n(.*?)```", page, re.S)
    (configuration,) = re.findall(r"```yaml\n(.*?)```", page, re.S)
    (command,) = re.findall(r"^cifnet (fit .*) --data.root IMAGES$", page, re.M)
    (cwd / "mean_ridge.py").write_text(code, encoding="utf-8")
    # As if the file stood in the package, and the line in its __init__.py.
    monkeypatch.setattr(heads, "__path__", [*heads.__path__, str(cwd)])
    registry = Path(heads.__file__).read_text(encoding="utf-8")
    before, after = registry.split("\n\nHEADS", 1)
    again = types.ModuleType("cifnet_pl.heads")
    exec(f"{before}\n{line}\nHEADS{after}", vars(again))
    kind = again.HEADS["MeanRidgeHead"]
    monkeypatch.setitem(heads.HEADS, "MeanRidgeHead", kind)
    monkeypatch.setattr(heads, "MeanRidgeHead", kind, raising=False)
    check_head(kind)
    (cwd / "configs/heads").mkdir(parents=True)
    (cwd / "configs/heads/mean_ridge.yaml").write_text(configuration)
    tiny = [*DATA, "--data.root", "null", "--data.max_tasks", "2", "--logs", "logs"]
    assert main([*command.split(), *tiny]) == 0
    assert "Ā" in capsys.readouterr().out
    summary = Path("logs/mean_ridge/version_0/summary.json").read_text()
    assert '"head": "MeanRidgeHead"' in summary
