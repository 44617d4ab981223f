"""When checkpoints are saved inside a task."""

from types import SimpleNamespace

from cifnet_pl.learning.callbacks import checkpoint
from cifnet_pl.learning.callbacks.checkpoint import TaskCheckpoint


def test_minutes_lie_between_checkpoints(tmp_path, monkeypatch):
    clock = SimpleNamespace(seconds=0)
    time = SimpleNamespace(monotonic=lambda: clock.seconds)
    monkeypatch.setattr(checkpoint, "time", time)
    saved = []
    trainer = SimpleNamespace(
        loggers=["a logger"],
        log_dir=tmp_path,
        strategy=SimpleNamespace(broadcast=lambda due: due),
        save_checkpoint=lambda path, weights_only: saved.append(clock.seconds),
    )
    module = SimpleNamespace(can_resume_inside_task=True)
    callback = TaskCheckpoint(every_minutes=2)
    for second in range(300):  # a batch each second
        clock.seconds = second
        callback.on_train_batch_end(trainer, module, None, None, 0)
    assert saved == [120, 240]
