"""Live with an installed package in the current folder: every command line of a long use, one after
the other in one process, which imports the package once.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import cifnet_pl
from cifnet_pl.__main__ import main

SMALL = "--data.image_size 32 --energy.enabled false"
EXTRAS = "--unknown 0.05 --coverage 0.95 --gallery gallery.png"
LEARNING = """
fit --config quickstart
unpack --source digits --output images
"""
LIVING = f"""
fit --data.root first --experiment first {SMALL}
fit --data.root other --experiment other {SMALL}
info --model lightning_logs/first
export --model lightning_logs/first --output three
extend --model three --images new --output four
classify --model four --images images/val/3 --output predictions.csv {EXTRAS}
forget --model four --class 3 --images new/3 --output again
merge three lightning_logs/other --output five
audit --model five --images first --output audit
sweep paper/ablation --dry_run --data.source digits
report lightning_logs --output report
"""
FOLDERS = {"first": "012", "new": "3", "other": "45"}
FILES = ("predictions.csv", "gallery.png", "report/report.html")
MODELS = ("again", "five")


def run(lines: str) -> None:
    """Run command lines; the first that fails ends this process with its exit code."""
    for line in lines.strip().splitlines():
        print("cifnet", line, flush=True)
        code = main(line.split())
        if code != 0:
            sys.exit(code)


checkout = Path(__file__).parents[1]
assert checkout not in Path(cifnet_pl.__file__).parents, "the wheel is not installed"
run(LEARNING)
for folder, digits in FOLDERS.items():
    Path(folder).mkdir()
    for digit in digits:
        shutil.move(f"images/train/{digit}", f"{folder}/{digit}")
run(LIVING)
for name in FILES:
    assert Path(name).stat().st_size > 0, name
for name in MODELS:
    assert Path(name).is_dir(), name
served = {"fastapi", "uvicorn", "segno"} & set(sys.modules)
assert not served, f"of the extra serve: {served}"
print("the wheel works")
