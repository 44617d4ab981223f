"""What every trained method must do: learn, go on, count, and take a task of one class."""

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
from cifnet_pl.iterative.descent import StepBatch
from cifnet_pl.utilities.errors import CheckpointError, UsageError
from tests.iterative.suite import (
    NAMES,
    assert_goes_on,
    assert_same_weights,
    data,
    learner,
    run,
    save_at,
)
from tests.killing import Act, Killed, die
from tests.lightning_runs import trainer

pytestmark = pytest.mark.system
each = pytest.mark.parametrize("method", METHODS, ids=NAMES)

SHORT = {"flip": True, "crop_padding": 1, "brightness": 0.3, "saturation": 0.3}
SHORT |= {"epochs": 2}


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """method → (module, record, checkpoint) of two passes over each task, saved in the second pass
    of the second task: a pass has nine batches. Images are changed, for each from what it is, the
    task and the pass.
    """

    @cache
    def made(method):
        folder = tmp_path_factory.mktemp(method.__name__)
        path = folder / "mid.ckpt"
        save = save_at(path, task=1, batches=12)
        return *run(method, folder, save, **SHORT), path

    return made


@each
class TestLearning:
    def test_two_tasks_of_digits(self, method, tmp_path):
        _, record = run(method, tmp_path)
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

    def test_both_classifiers_are_evaluated(self, method, short, tmp_path):
        module, record, _ = short(method)
        last = record.rows[-1]
        result = {way: getattr(last, f"A_k_{way}") for way in WAYS}
        if method is FinetuneModule:
            assert result == dict.fromkeys(WAYS)
            return
        assert result[module.prediction] == last.A_k
        path = tmp_path / "it.ckpt"
        module.trainer.save_checkpoint(path)
        for way, accuracy in result.items():
            again = learner(method, prediction=way, **SHORT)
            validation = trainer(tmp_path)
            validation.validate(again, data(), ckpt_path=path, verbose=False)
            assert again.evaluation.accuracy == accuracy

    def test_first_task_of_one_class(self, method, tmp_path):
        sizes = {"classes_per_task": [1, 2], "max_tasks": 2}
        _, record = run(method, tmp_path, given=sizes, epochs=2, learning_rate=0.05)
        assert record.matrix[0][0] == 100
        assert record.trajectory[-1] > 30


WAYS = ("classifier", "nearest_mean")


def test_nothing_depends_on_chance_but_much_on_the_seed(short, tmp_path):
    first, _, _ = short(TagFexModule)
    torch.manual_seed(17)
    again, _ = run(TagFexModule, tmp_path, **SHORT)
    assert_same_weights(first, again)
    other, _ = run(TagFexModule, tmp_path, seed=1, **SHORT)
    with pytest.raises(AssertionError):
        assert_same_weights(first, other)


@each
def test_resume_inside_a_task(method, short, tmp_path):
    module, record, path = short(method)
    again = learner(method, **SHORT)
    taken = []
    count = Act("on_train_batch_end", 1, lambda _: taken.append(again.steps_done))
    trainer(tmp_path, count).fit(again, datamodule=data(), ckpt_path=path)
    assert_same_weights(again, module)
    assert again.record.trajectory == record.trajectory
    assert taken == [14]  # it went on after the steps that the checkpoint holds


def test_a_module_that_was_interrupted_or_has_learned_is_refused(short, tmp_path):
    module, _, path = short(ReplayModule)
    with pytest.raises(CheckpointError, match="does not fit the model"):
        trainer(tmp_path).fit(module, datamodule=data(), ckpt_path=path)
    made = learner(ReplayModule, **SHORT)
    stop = Act("on_train_batch_end", 1, die, batches=4)
    with pytest.raises(Killed):
        trainer(tmp_path, stop).fit(made, datamodule=data())
    with pytest.raises(UsageError, match="was interrupted inside a task"):
        trainer(tmp_path).fit(made, datamodule=data())


@pytest.mark.parametrize("batches", [22, 26])
def test_foster_goes_on_from_any_phase(batches, tmp_path):
    """Compression, and the pass that chooses exemplars, of a third task."""
    options = {"epochs": 2, "compression": 0.5}
    assert_goes_on(FOSTERModule, tmp_path, batches, {"max_tasks": 3}, 2, **options)


def test_foster_can_be_evaluated_before_compression(short, tmp_path):
    options = {"evaluated": "branches", **SHORT}
    three_tasks = {"max_tasks": 3}
    made = assert_goes_on(FOSTERModule, tmp_path, 4, three_tasks, task=2, **options)
    assert made.exemplars.mean.shape == (6, 64)
    assert len(made.branches) == 2
    assert sum(p.numel() for p in made.counted_module().parameters()) == 5184
    student, _, _ = short(FOSTERModule)
    assert student.exemplars.mean.shape == (4, 32)
    both, _ = run(FOSTERModule, tmp_path, **options)
    # What is compressed does not depend on it.
    assert_same_weights(both.student[0], student.branches[0])


def test_new_classes_of_foster_without_the_old_branch(tmp_path):
    options = {"evaluated": "branches", "new_on_old": False, "epochs": 2}
    made, record = run(FOSTERModule, tmp_path, **options)
    weight = made.classifier.weight
    assert (weight[2:, :32] == 0).all()
    assert (weight[:2, :32] != 0).any()
    assert (weight[2:, 32:] != 0).any()
    path = tmp_path / "it.ckpt"
    made.trainer.save_checkpoint(path)
    again = learner(FOSTERModule, **options)
    trainer(tmp_path).validate(again, data(), ckpt_path=path, verbose=False)
    assert again.evaluation.accuracy == record.trajectory[-1]


@pytest.mark.parametrize(
    ("method", "batches", "fixed", "tuned"),
    [
        # The network has embedded images since, with the statistics it learned.
        (CREATEModule, 22, "network.conv1.weight",
         ["network.bn1.running_mean", "encoders.encode"]),
        (PODNetModule, 18, "cosine.proxies.0",
         ["network.conv1.weight", "cosine.proxies.1"]),
    ],
)  # fmt: skip
def test_what_is_tuned(method, batches, fixed, tuned, tmp_path):
    """Since the steps of the second task were over: after so many batches."""
    before = {}

    def keep(runner):
        before.update(deepcopy(runner.lightning_module.state_dict()))

    act = Act("on_train_batch_end", 1, keep, batches)
    made, _ = run(method, tmp_path, act, epochs=2, tuning=1.0)
    assert all(p.requires_grad for p in made.network.parameters())
    after = made.state_dict()
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert fixed in same
    assert same.isdisjoint(tuned)


def test_tagfex_compares_by_the_projector_from_before_the_task(short, watch):
    module, _, _ = short(TagFexModule)
    contrasts = watch(TagFexModule, "_contrast", lambda self, a, b: (a, b))
    kept = module.exemplars
    batch = StepBatch(kept.image, kept.label, kept.key, (0, 2, 0, 0), module)
    module.loss(batch)
    x = torch.cat([batch.inputs(0), batch.inputs(1)])
    network, projector = module.teacher
    expected = (projector(module.predictor(module.agnostic(x))), projector(network(x)))
    torch.testing.assert_close(contrasts[1], expected)
    assert not torch.allclose(module.projector(network(x)), expected[1], rtol=0.1)


@pytest.mark.parametrize("last_relu", [True, False])
@pytest.mark.parametrize("name", ["random:resnet32_cifar", "small"])
def test_embeddings_of_podnet_may_be_negative(name, last_relu):
    made = PODNetModule(backbone=name, last_relu=last_relu).eval()
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    z = made.features(x)
    maps, again = with_maps(made.network, x)
    assert torch.allclose(again, z, atol=1e-5)
    for values in (z, maps[-1]):
        assert bool((values < 0).any()) is not last_relu
    other = ReplayModule(backbone=name)
    assert made.describe()["backbone_params"] == other.describe()["backbone_params"]
