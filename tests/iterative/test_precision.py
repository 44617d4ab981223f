"""bf16-mixed computes the losses and gradients of float32, rounded."""

import pytest
import torch

from cifnet_pl.iterative import METHODS
from cifnet_pl.iterative.trainer import IterativeModule
from tests.iterative.suite import NAMES, run
from tests.killing import Killed

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:.*GPU available.*")


@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_one_step_of_the_second_task(method, tmp_path, monkeypatch):
    """From the same weights on the same batch; after many steps nothing is alike."""
    seen = []
    real = IterativeModule.learn

    def learn(self, batch, progress, loss_of=None):
        if not self.old:
            return real(self, batch, progress, loss_of)
        for rounded in (False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
                loss = self.loss(batch)
            parts = torch.autograd.grad(loss, self._descent.weights, allow_unused=True)
            seen.append((loss, torch.cat([part.flatten() for part in parts if part is not None])))
        raise Killed

    monkeypatch.setattr(IterativeModule, "learn", learn)
    with pytest.raises(Killed):
        run(method, tmp_path, epochs=2)
    (loss, gradient), (rounded_loss, rounded_gradient) = seen
    assert rounded_loss.dtype == rounded_gradient.dtype == torch.float32
    assert float(rounded_loss) == pytest.approx(float(loss), rel=0.005)
    assert not torch.equal(rounded_gradient, gradient)
    assert torch.cosine_similarity(rounded_gradient, gradient, dim=0) > 0.998
