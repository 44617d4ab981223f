"""When checkpoints are saved inside a task."""

from types import SimpleNamespace

from cifnet_pl.learning.callbacks import checkpoint
from cifnet_pl.learning.callbacks.checkpoint import TaskCheckpoint


def test_minutes_lie_between_checkpoints(tmp_path, monkeypatch):
    seconds = 0
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda: seconds))
    saved = []
    trainer = SimpleNamespace(
        loggers=["a logger"],
        log_dir=tmp_path,
        strategy=SimpleNamespace(broadcast=lambda due: due),
        save_checkpoint=lambda path, weights_only: saved.append((path.name, seconds)),
    )
    module = SimpleNamespace(can_resume_inside_task=True)
    callback = TaskCheckpoint(every_minutes=2)
    for seconds in range(300):  # a batch each second
        callback.on_train_batch_end(trainer, module, None, None, 0)
    assert saved == [("last.ckpt", 120), ("last.ckpt", 240)]
