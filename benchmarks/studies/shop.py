"""``python -m benchmarks.studies.shop ROOT URL``: from an empty page to all products of ROOT, and the week after.

Start ``cifnet serve --port 7860 --rate 0`` in an empty folder first. A shop brings ten photos of each product, a
quarter of the products at a time, as folders; then the other photos of ``train``. The next week brings those of
``val``: what is certain is confirmed in one go, then the most doubtful are named one by one. Clicks and keys are
counted as the page takes them: one to drop, one to name by folders, one to learn, one for all certain ones, one key
for each photo whose class is offered, else N, the name's first letters and Enter (5). A row has the accuracy that the
page promised before the step, and what photos of ``val`` showed after it, those that were learned since left out.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

FIRST, STEPS, REVIEWED, OFFERED, TYPED = 10, 4, 100, 3, 5


class Shop:
    """A page's owner, who knows the right class of each photo."""

    def __init__(self, root: Path, url: str):
        self.http, self.clicks, self.begun = httpx.Client(base_url=url, timeout=1800), 0, time.perf_counter()
        self.photos = {
            part: {c.name: sorted(c.iterdir()) for c in sorted((root / part).iterdir())} for part in ("train", "val")
        }
        self.learned: set[Path] = set()

    def bring(self, files: Sequence[Path]) -> list[dict[str, Any]]:
        """Drop photos, in the folders of their classes, and wait until they are answered."""
        for start in range(0, len(files), 100):
            sent = [("files", (f"{f.parent.name}/{f.name}", f.read_bytes())) for f in files[start : start + 100]]
            self.http.post("/inbox", files=sent).raise_for_status()
        self.clicks += 1
        while True:
            found = self.http.get("/inbox", params={"count": 20_000}).json()
            if found["seen"] == found["waiting"]:
                return found["photos"]
            time.sleep(0.5)

    def learn(self, names: dict[str, str]) -> float:
        """Learn what was named; the seconds that it took."""
        self.clicks += 1
        answer = self.http.post("/inbox/learn", json={"names": names}, params={"anyway": True})
        answer.raise_for_status()
        return float(answer.json()["seconds"])

    def row(self, step: str, photos: int, seconds: float) -> None:
        """Print what the page promises, and what photos of another day show."""
        look = self.http.get("/look").json()
        known = {one["name"] for one in self.http.get("/classes").json()}
        tested = [f for c, files in self.photos["val"].items() if c in known for f in files if f not in self.learned]
        right = sum(self.right(tested[i : i + 64]) for i in range(0, len(tested), 64))
        said = {key: look["right"][key] for key in ("these_days", "another_day")}
        shown = [f"{value:.1f}" if value is not None else "–" for value in said.values()]
        minutes = (time.perf_counter() - self.begun) / 60
        cells = [step, len(known), photos, f"{seconds:.1f}", f"{minutes:.1f}", self.clicks, *shown]
        cells.append(f"{100 * right / len(tested):.1f} of {len(tested)}")
        print(f"| {' | '.join(map(str, cells))} |", flush=True)

    def right(self, files: Sequence[Path]) -> int:
        """Number of photos whose first answer is their class."""
        answers = self.http.post("/classify", files=[("files", (f.name, f.read_bytes())) for f in files]).json()[
            "photos"
        ]
        return sum(a["classes"][0]["name"] == f.parent.name for a, f in zip(answers, files, strict=True))


def main(root: Path, url: str) -> None:
    """Print a table."""
    shop = Shop(root, url)
    names = list(shop.photos["train"])
    print("| step | classes | photos | s to learn | minutes | clicks | these days % | another day % | right % |")
    print("|---|---|---|---|---|---|---|---|---|")
    for step in range(STEPS):
        part = names[step * len(names) // STEPS : (step + 1) * len(names) // STEPS]
        new = shop.bring([file for name in part for file in shop.photos["train"][name][:FIRST]])
        shop.clicks += 1
        shop.row(f"{len(part)} products", len(new), shop.learn({one["photo"]: one["folder"] for one in new}))
    new = shop.bring([file for name in names for file in shop.photos["train"][name][FIRST:]])
    shop.clicks += 1
    shop.row("their other photos", len(new), shop.learn({one["photo"]: one["folder"] for one in new}))
    week = {f"{file.parent.name}/{file.name}": file for files in shop.photos["val"].values() for file in files}
    new = shop.bring(list(week.values()))
    certain = [one for one in new if one["certain"]]
    wrong = sum(one["classes"][0]["name"] != one["folder"] for one in certain)
    print(f"the week: {len(new)} photos, {len(certain)} certain, {wrong} of them wrong", flush=True)
    doubtful = new[:REVIEWED]
    offered = [one["folder"] in [c["name"] for c in one["classes"][:OFFERED]] for one in doubtful]
    shop.clicks += sum(1 if easy else TYPED for easy in offered)
    shop.learned |= {week[one["file"]] for one in doubtful}
    shop.row(
        f"the {REVIEWED} most doubtful", len(doubtful), shop.learn({one["photo"]: one["folder"] for one in doubtful})
    )
    print(f"their classes were offered for {sum(offered)} of {len(doubtful)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
