"""What every trained method must do, whatever it is called: learn, go on, count, and take a task of
one class.
"""

from copy import deepcopy
from functools import cache

import pytest
import torch

from cifnet_pl.backbones.structures import with_maps
from cifnet_pl.iterative import (
    METHODS,
    CREATEModule,
    FinetuneModule,
    FOSTERModule,
    PODNetModule,
    ReplayModule,
    TagFexModule,
)
from tests.iterative.suite import (
    NAMES,
    assert_goes_on,
    assert_same_weights,
    data,
    learner,
    run,
)
from tests.killing import Act, Killed, die
from tests.lightning_runs import trainer

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers.*", "ignore:.*GPU available.*"
)
SAVED = "mid.ckpt"
"""Written after twelve batches of the second task: a task has nine batches in each pass."""
each = pytest.mark.parametrize("method", METHODS, ids=NAMES)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """method → (module, record) of a run that learns as long as digits need."""
    return cache(lambda method: run(method, tmp_path_factory.mktemp(method.__name__)))


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """method → (module, record, folder) of two passes over each task, saved in the second."""

    @cache
    def made(method):
        folder = tmp_path_factory.mktemp(method.__name__)
        save = Act(
            "on_train_batch_end",
            1,
            lambda t: t.save_checkpoint(folder / SAVED),
            batches=12,
        )
        return *run(method, folder, save, epochs=2), folder

    return made


@pytest.mark.system
@each
class TestLearning:
    def test_two_tasks_of_digits(self, method, whole):
        _, record = whole(method)
        assert record.matrix[0][0] > 90
        if method is FinetuneModule:
            assert record.matrix[1][1] > 90
            assert record.matrix[1][0] < 50  # it forgets
        else:
            assert record.trajectory[-1] > 80

    def test_state_is_counted(self, method, short):
        module, record, _ = short(method)
        elements = module.state_elements()
        exemplars = 0 if method is FinetuneModule else 60 * 3 * 8 * 8
        assert elements.get("buffer", 0) == exemplars == record.rows[-1].buffer_elements
        assert elements["parameters"] == sum(p.numel() for p in module.parameters())
        assert record.rows[-1].state_elements == sum(elements.values())

    def test_classifier_and_nearest_mean_are_both_evaluated(
        self, method, short, tmp_path
    ):
        module, record, _ = short(method)
        result = {
            way: [getattr(row, f"A_k_{way}") for row in record.rows]
            for way in ("classifier", "nearest_mean")
        }
        if method is FinetuneModule:
            assert result == {"classifier": [None, None], "nearest_mean": [None, None]}
            return
        assert result[module.prediction] == record.trajectory
        module.trainer.save_checkpoint(tmp_path / "it.ckpt")
        for way, trajectory in result.items():
            again = learner(method, epochs=2, prediction=way)
            trainer(tmp_path).validate(
                again, datamodule=data(), ckpt_path=tmp_path / "it.ckpt", verbose=False
            )
            assert again.evaluation.accuracy == trajectory[-1]

    def test_first_task_of_one_class(self, method, tmp_path):
        sizes = {"classes_per_task": [1, 2], "max_tasks": 2}
        _, record = run(method, tmp_path, given=sizes, epochs=3, learning_rate=0.05)
        assert record.matrix[0][0] == 100
        assert record.trajectory[-1] > 30


@pytest.mark.system
@pytest.mark.parametrize("method", [FOSTERModule, TagFexModule])
def test_nothing_depends_on_chance_but_much_on_the_seed(method, short, tmp_path):
    first, _, _ = short(method)
    torch.manual_seed(17)
    again, _ = run(method, tmp_path, epochs=2)
    assert_same_weights(first, again)
    other, _ = run(method, tmp_path, epochs=2, seed=1)
    state = other.state_dict()
    assert any(
        not torch.equal(value, state[key]) for key, value in first.state_dict().items()
    )


class TestResume:
    @each
    def test_inside_a_task(self, method, short, tmp_path):
        module, record, folder = short(method)
        again = learner(method, epochs=2)
        taken = []
        count = Act(
            "on_train_batch_end",
            1,
            lambda t: taken.append(t.lightning_module.steps_done),
        )
        trainer(tmp_path, count).fit(again, datamodule=data(), ckpt_path=folder / SAVED)
        assert_same_weights(again, module)
        assert again.record.trajectory == record.trajectory
        assert taken == [14]  # it went on after the steps that the checkpoint holds

    @pytest.mark.parametrize("method", [ReplayModule, FOSTERModule])
    def test_in_the_process_that_was_interrupted(self, method, short, tmp_path):
        module, _, _ = short(method)
        made = learner(method, epochs=2)
        stop = Act("on_train_batch_end", 1, die, batches=4)
        with pytest.raises(Killed):
            trainer(tmp_path, stop).fit(made, datamodule=data())
        assert made.tasks_finished == 1
        trainer(tmp_path).fit(made, datamodule=data())
        assert_same_weights(made, module)


@pytest.mark.parametrize("method", [ReplayModule, TagFexModule])
def test_augmented_images_are_the_same_after_a_stop(method, tmp_path):
    """The changes of an image follow from what it is, the task and the pass; TagFex learns two
    views of each.
    """
    changes = {
        "flip": True,
        "crop_padding": 1,
        "brightness": 0.3,
        "contrast": 0.3,
        "saturation": 0.3,
        "epochs": 2,
    }
    assert_goes_on(method, tmp_path, 12, **changes)


@pytest.mark.parametrize("batches", [22, 26])
def test_foster_goes_on_from_any_phase(batches, tmp_path):
    """Compression, and the pass that chooses exemplars."""
    assert_goes_on(FOSTERModule, tmp_path, batches, epochs=2, compression=0.5)


def test_foster_can_be_evaluated_before_compression(short, tmp_path):
    options = {"epochs": 2, "evaluated": "branches"}
    made = assert_goes_on(
        FOSTERModule, tmp_path, 4, given={"max_tasks": 3}, task=2, **options
    )
    assert made.exemplars.mean.shape == (6, 64)
    assert len(made.branches) == 2
    assert sum(p.numel() for p in made.counted_module().parameters()) == 5184
    student, _, _ = short(FOSTERModule)
    assert student.exemplars.mean.shape == (4, 32)
    compressed = learner(FOSTERModule, **options)
    trainer(tmp_path).fit(compressed, datamodule=data())
    assert_same_weights(
        compressed.student[0], student.branches[0]
    )  # what is compressed does not depend on it


def state_after(batches):
    """What a module holds after so many batches of its second task, and the callback that copies it
    then.
    """
    seen = {}
    keep = Act(
        "on_train_batch_end",
        1,
        lambda t: seen.update(deepcopy(t.lightning_module.state_dict())),
        batches,
    )
    return seen, keep


def test_create_tunes_no_weight_of_its_network_but_moves_its_statistics(tmp_path):
    """The first batch after 22 steps is embedded by the network that has learned."""
    seen, keep = state_after(22)
    made, _ = run(CREATEModule, tmp_path, keep, epochs=2, tuning=1.0)
    after = made.state_dict()
    assert torch.equal(after["network.first.0.weight"], seen["network.first.0.weight"])
    assert not torch.equal(
        after["network.first.1.running_mean"], seen["network.first.1.running_mean"]
    )
    assert not torch.equal(after["encoders.encode"], seen["encoders.encode"])
    assert all(p.requires_grad for p in made.network.parameters())


class TestPODNet:
    @pytest.mark.parametrize("last_relu", [True, False])
    @pytest.mark.parametrize(
        "name",
        ["random:resnet32_cifar", "small"],
    )
    def test_embeddings_may_be_negative(self, name, last_relu):
        made = PODNetModule(backbone=name, last_relu=last_relu).eval()
        x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        z = made.features(x)
        assert bool((z < 0).any()) is not last_relu
        maps, again = with_maps(made.network, x)
        assert torch.allclose(again, z, atol=1e-5)
        assert bool((maps[-1] < 0).any()) is not last_relu
        count = sum(p.numel() for p in made.network.parameters())
        assert count == sum(
            p.numel() for p in ReplayModule(backbone=name).network.parameters()
        )


def test_podnet_tunes_its_network_but_not_the_proxies_of_old_classes(tmp_path):
    """The last step before the tuning is that of the weights that are kept here."""
    seen, keep = state_after(9 * 2)
    made, _ = run(PODNetModule, tmp_path, keep, epochs=2, tuning=1.0)
    after = made.state_dict()
    assert not torch.equal(
        after["network.first.0.weight"], seen["network.first.0.weight"]
    )
    assert not torch.equal(after["cosine.proxies.1"], seen["cosine.proxies.1"])
    assert torch.equal(after["cosine.proxies.0"], seen["cosine.proxies.0"])
