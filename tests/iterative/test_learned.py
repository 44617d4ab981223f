"""What a trained method has learned is a model like any other."""

import pytest
import torch

import cifnet_pl
from cifnet_pl.iterative import (
    METHODS,
    CREATEModule,
    DERModule,
    FOSTERModule,
    PODNetModule,
    ReplayModule,
)
from cifnet_pl.iterative.learned import learned_model
from cifnet_pl.utilities.errors import CheckpointError
from tests.command_line import make_images
from tests.iterative.suite import NAMES, data, learner, run
from tests.lightning_runs import trainer

pytestmark = pytest.mark.system
NOT_LINEAR = (PODNetModule, CREATEModule)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        *((method, {}) for method in METHODS),
        (FOSTERModule, {"evaluated": "branches"}),
        (DERModule, {"backbone": "small+mirror"}),
    ],
    ids=[*NAMES, "FOSTER with both branches", "DER with a view"],
)
def test_the_stored_model_answers_as_the_method_does(method, options, tmp_path):
    module, _ = run(method, tmp_path, epochs=1, **options)
    images = torch.randint(0, 256, (32, 3, 8, 8), dtype=torch.uint8)
    z = module.embed(images)
    for prediction in module.classifiers or ["classifier"]:
        module.prediction = prediction
        learned_model(module).save(tmp_path / "bundle", overwrite=True)
        model = cifnet_pl.load(tmp_path / "bundle", device="cpu", engine="torch")
        structure, _ = module.learned_network()
        start = options.get("backbone", "small")
        assert model.backbone.name == f"learned:{structure}:{start}"
        assert model.class_names == module.class_names
        assert [len(task) for task in model.tasks] == [2, 2]
        close = torch.testing.assert_close
        close(model.embed(images), z, rtol=1e-4, atol=1e-4)
        way = "nearest_mean" if method in NOT_LINEAR else prediction
        expected = module.probabilities_of(z, way)
        close(model.probabilities(images), expected, rtol=1e-3, atol=1e-4)


def test_a_class_whose_name_is_not_utf_8(latin_name, tmp_path):
    names = ["ant", latin_name]
    root = make_images(tmp_path / "images", names)
    given = {"source": "folder", "root": str(root)}
    module, _ = run(ReplayModule, tmp_path, given=given, epochs=1)
    assert sorted(learned_model(module).class_names) == sorted(names)


def test_images_that_cannot_be_read_are_not_counted(tmp_path):
    train = make_images(tmp_path / "train", ["ant", "bee"], 12)
    make_images(tmp_path / "val", ["ant", "bee"], 6, noise=20)
    (train / "ant" / "0.png").write_bytes(b"no image")
    given = {"source": "folder", "root": str(tmp_path), "on_corrupt": "skip"}
    module, _ = run(ReplayModule, tmp_path, given=given, epochs=1)
    model = learned_model(module)
    assert model.counts == {"ant": 11, "bee": 12}
    assert len(model.images.content) == model.history[-1].images == 23


def test_the_stored_model_is_extended_and_exported(tmp_path):
    built_in = {"backbone": "random:resnet32_cifar"}
    module, _ = run(ReplayModule, tmp_path, epochs=1, **built_in)
    learned_model(module).save(tmp_path / "bundle")
    model = cifnet_pl.load(tmp_path / "bundle", device="cpu", engine="torch")
    assert model.backbone.name == "learned:plain:random:resnet32_cifar"
    images = make_images(tmp_path / "images", ["ant", "bee"])
    extended = cifnet_pl.extend(model, images).model
    assert extended.class_names == [*module.class_names, "ant", "bee"]
    assert extended.to_onnx().content


def test_an_unfinished_run_is_no_model(tmp_path):
    made = learner(ReplayModule, epochs=1)
    engine = trainer(tmp_path)
    engine.fit(made, datamodule=data())
    path = tmp_path / "alone.ckpt"
    engine.save_checkpoint(path)
    with pytest.raises(CheckpointError, match="finish the run"):
        cifnet_pl.load(path)
