"""``python -m benchmarks.studies.product_features --images NAME TRAIN.npz VAL.npz …``: could the
number of product features be chosen by the likelihood of left-out samples?

For each number of images of a class, the default of ``fit`` is learned with 0 to 3 product features
for each feature, on one draw. A row has the likelihood of the calibration samples, each left out
with its group, the accuracy on the validation images and the processor seconds of learning. The
last column marks the number that "auto" takes, and the one of the highest likelihood.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from benchmarks.studies.few_images import drawn, learn_task, new_model
from benchmarks.studies.images import (
    Images,
    accuracy,
    pairs_parser,
    read_pair,
    show,
    show_columns,
)
from cifnet_pl.heads import RidgeHead
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.statistics import to_probabilities

SHARES = (0.0, 1.0, 2.0, 3.0)
"""Numbers of product features for each feature."""


class Row(NamedTuple):
    """The default with a number of product features.

    Attributes:
        share: product features for each feature.
        loss: mean negative log likelihood of left-out samples.
        accuracy: on validation images, in percent.
        seconds: of one processor, to learn and to leave out.
    """

    share: float
    loss: float
    accuracy: float
    seconds: float


def left_out_loss(model: Classifier) -> float:
    """Return the mean negative log likelihood of the left-out calibration samples."""
    samples = model.calibration_samples()
    assert samples is not None
    scores, columns, known = samples.known_scores()
    head = model.head
    probabilities = to_probabilities(scores, head.temperature, head.odds_power)
    of_true = probabilities.gather(1, columns[:, None])[:, 0]
    weights = samples.sample_weights()[known]
    return float(-(weights @ of_true.log()) / weights.sum())


def row_of(images: Images, share: float) -> Row:
    """Learn images with a number of product features."""
    start = time.process_time()
    model = new_model(images.z.shape[1], share)
    learn_task(model, images.z, images.y)
    loss = left_out_loss(model)
    seconds = time.process_time() - start
    return Row(share, loss, accuracy(model.head, images), seconds)


def main() -> None:
    """Print a row for each set, number of images and number of product features."""
    parser = pairs_parser(__doc__)
    parser.add_argument("--counts", nargs="*", default=("5", "10", "25", "all"))
    options = parser.parse_args()
    show_columns(("images", "of a class", "products", "loss", "accuracy %", "s", ""))
    for name, train, val in options.images:
        whole = read_pair(train, val)
        for count in options.counts:
            (images,) = drawn(whole, count, range(1))
            rows = [row_of(images, share) for share in SHARES]
            counts = images.y.bincount().tolist()
            chosen = RidgeHead(images.z.shape[1], product_features="auto")
            chosen.begin_task(range(len(counts)), counts)
            best = min(rows, key=lambda row: row.loss)
            for row in rows:
                marks = ["auto"] * (row.share == chosen.product_features) + [
                    "likeliest"
                ] * (row is best)
                values = [f"{row.share:g}", f"{row.loss:.4f}", f"{row.accuracy:.2f}"]
                seconds = f"{row.seconds:.1f}"
                show([name, count, *values, seconds, ", ".join(marks)])


if __name__ == "__main__":
    main()
