"""``python -m benchmarks.studies.shop ROOT URL [IMAGES]``: from an empty page to all products of
ROOT, and the week after.

Start ``cifnet serve --port 7860`` in an empty folder first. A shop brings some images of
each product (10 unless IMAGES says otherwise), some products at a time, as folders; then the other
images of ``train``. All images of ``val`` wait from the beginning, so after each step all products
are asked about, whether taught or not. The next week brings the first half of ``val``, by the order
of its files: the most uncertain are named one by one. Clicks and keys are counted as the page takes
them: one to drop, one to name by folders, one to learn, one key for each uncertain image whose
class is offered, else N, the name's first letters and Enter (5). A row has the accuracy that the
page promises after the step, mean over classes, and what the second half of ``val``, none of which
is ever learned, shows of the known classes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

FIRST = 10
STAGES = (1, 2, 3, 5, 14, 31)
"""Products that are known after each step; then all are."""

REVIEWED = 100
OFFERED = 3
TYPED = 5


class Shop:
    """A page's owner, who knows the right class of each image."""

    def __init__(self, root: Path, url: str):
        self.root = root
        # A kept connection may be closed by the service while the next request is on its way.
        limits = httpx.Limits(max_keepalive_connections=0)
        self.http = httpx.Client(base_url=url, timeout=1800, limits=limits)
        self.clicks = 0
        self.images = {
            part: {
                folder.name: sorted(folder.iterdir())
                for folder in sorted((root / part).iterdir())
            }
            for part in ("train", "val")
        }
        self.later = {
            self.sent(f)
            for files in self.images["val"].values()
            for f in files[len(files) // 2 :]
        }
        self.classes = {
            self.sent(file): name
            for part in self.images.values()
            for name, files in part.items()
            for file in files
        }
        self.begun = time.perf_counter()

    def sent(self, file: Path) -> str:
        """Path that an image is sent with: those of ``train`` in the folders of their classes, the
        others in none.
        """
        part, name, file_name = file.relative_to(self.root).parts
        if part == "train":
            return f"train/{name}/{file_name}"
        return f"val/{file_name}"

    def bring(self, files: Sequence[Path]) -> list[dict[str, Any]]:
        """Drop images, and wait until they are answered; those of the same part."""
        for start in range(0, len(files), 100):
            sent = [
                ("files", (self.sent(f), f.read_bytes()))
                for f in files[start : start + 100]
            ]
            self.http.post("/inbox", files=sent).raise_for_status()
        return self.waiting(str(files[0].relative_to(self.root).parts[0]))

    def waiting(self, part: str) -> list[dict[str, Any]]:
        """Images of ``train`` or ``val`` that wait, the most uncertain first, once all of them are
        answered.
        """
        while True:
            found = self.http.get("/inbox", params={"count": 20_000}).json()
            if found["seen"] == found["waiting"]:
                own = [one for one in found["images"] if one["file"].startswith(part)]
                return [one | {"class": self.classes[one["file"]]} for one in own]
            time.sleep(0.5)

    def learn(self, names: dict[str, str]) -> float:
        """Learn what was named; the seconds that it took."""
        self.clicks += 1
        answer = self.http.post(
            "/inbox/learn", json={"names": names}, params={"anyway": True}
        )
        answer.raise_for_status()
        return float(answer.json()["seconds"])

    def row(self, step: str, images: int, seconds: float) -> None:
        """Print what the page promises, and what images of new groups show."""
        summary = self.http.get("/summary").json()
        known = {one["name"] for one in self.http.get("/classes").json()}
        asked = self.waiting("val")
        tested = [
            one for one in asked if one["class"] in known and one["file"] in self.later
        ]
        shares = [
            right_of(tested, name) for name in sorted({one["class"] for one in tested})
        ]
        said = [
            summary["accuracy"][key] for key in ("loo_accuracy", "new_group_accuracy")
        ]
        shown = [
            "–" if value is None else f"{value:.1f}"
            for value in (*said, sum(shares) / len(shares))
        ]
        minutes = (time.perf_counter() - self.begun) / 60
        cells = [
            step,
            len(known),
            images,
            f"{seconds:.1f}",
            f"{minutes:.1f}",
            self.clicks,
            *shown,
        ]
        self.compare(tested)
        print(f"| {' | '.join(map(str, cells))} of {len(tested)} |", flush=True)

    def compare(self, tested: list[dict[str, Any]]) -> None:
        """Print what is said of each class, beside the images of new groups."""
        found = self.http.get("/classes/predictions").json()
        held = []
        for one in found["classes"]:
            count = sum(image["class"] == one["name"] for image in tested)
            if one["accuracy"] is not None and count:
                (low, high), true = one["interval"], right_of(tested, one["name"])
                held.append(low <= true <= high)
                print(
                    f"  {one['name']}: {one['accuracy']:.0f} % ({low:.0f} to {high:.0f});"
                    f" {true:.0f} of {count}"
                )
        print(f"{sum(held)} of {len(held)} intervals hold")


def right_of(tested: list[dict[str, Any]], name: str) -> float:
    """Percent of the images of a class that are predicted correctly."""
    answers = [
        image["classes"][0]["name"] == name
        for image in tested
        if image["class"] == name
    ]
    return 100 * sum(answers) / len(answers)


def main(root: Path, url: str, first: int = FIRST) -> None:
    """Print a table."""
    shop = Shop(root, url)
    names = list(shop.images["train"])
    shop.bring([file for files in shop.images["val"].values() for file in files])
    shop.begun = time.perf_counter()
    print(
        "| step | classes | images | s to learn | minutes | clicks | leave-one-out % |"
        " new groups % | right % of images |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    stages = [*STAGES, len(names)]
    for start, end in pairwise([0, *stages]):
        part = names[start:end]
        folders(
            shop,
            f"{len(part)} products",
            [file for name in part for file in shop.images["train"][name][:first]],
        )
    others = [file for name in names for file in shop.images["train"][name][first:]]
    if others:
        folders(shop, "their other images", others)
    new = [one for one in shop.waiting("val") if one["file"] not in shop.later]
    label_errors = new[:REVIEWED]
    offered = [
        one["class"] in [each["name"] for each in one["classes"][:OFFERED]]
        for one in label_errors
    ]
    shop.clicks += sum(1 if easy else TYPED for easy in offered)
    seconds = shop.learn({one["image"]: one["class"] for one in label_errors})
    shop.row(f"the {REVIEWED} most uncertain of the week", len(label_errors), seconds)
    print(
        f"the week: {len(new)} images; of the most uncertain {sum(offered)} were offered their"
        " class"
    )


def folders(shop: Shop, step: str, files: Sequence[Path]) -> None:
    """Drop images, name them by their folders, learn them."""
    new = shop.bring(files)
    shop.clicks += 2
    shop.row(step, len(new), shop.learn({one["image"]: one["class"] for one in new}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
