"""The seconds of a task that a run was stopped in."""

import pytest
import torch

from cifnet_pl.iterative import FinetuneModule
from cifnet_pl.learning.callbacks import TaskCheckpoint
from tests.iterative.suite import data, install, learner
from tests.killing import Act
from tests.lightning_runs import digits, module, trainer

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers.*", "ignore:.*GPU available.*"
)
LONG = 5000.0
KINDS = {
    "trained": lambda: (learner(FinetuneModule, epochs=1), data()),
    "closed_form": lambda: (module(), digits(max_tasks=2, batch_size=32)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_they_count_only_where_the_run_goes_on_inside_the_task(
    kind, tmp_path, monkeypatch
):
    """From a checkpoint that was written inside the second task."""
    install(monkeypatch.setitem)
    path = tmp_path / "inside.ckpt"
    act = Act(
        "on_train_batch_end",
        1,
        lambda t: t.save_checkpoint(path, weights_only=False),
        batches=3,
    )
    learned, fed = KINDS[kind]()
    trainer(tmp_path, act).fit(learned, datamodule=fed)
    content = torch.load(path, weights_only=True)
    assert 0 < content["cifnet"]["record"]["open_seconds"] < LONG
    content["cifnet"]["record"]["open_seconds"] = LONG
    torch.save(content, path)
    learned, fed = KINDS[kind]()
    trainer(tmp_path, TaskCheckpoint()).fit(learned, datamodule=fed, ckpt_path=path)
    first, second = [row.train_seconds for row in learned.record.rows]
    assert 0 < first < LONG
    assert (second > LONG) == (kind == "trained")
    assert learned.record.open_seconds == 0  # between tasks
