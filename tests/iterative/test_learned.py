"""What a trained method has learned is a model like any other."""

from pathlib import Path

import pytest
import torch

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.iterative import (
    METHODS,
    CREATEModule,
    PODNetModule,
    ReplayModule,
)
from cifnet_pl.iterative.learned import learned_model
from cifnet_pl.utilities.errors import CheckpointError
from tests.command_line import DATA, assert_ends, make_images
from tests.iterative.suite import NAMES, data, learner, run
from tests.lightning_runs import trainer

pytestmark = pytest.mark.system
NOT_LINEAR = (PODNetModule, CREATEModule)


@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_the_stored_model_answers_as_the_method_does(method, tmp_path):
    module, _ = run(method, tmp_path, epochs=1)
    images = torch.randint(0, 256, (32, 3, 8, 8), dtype=torch.uint8)
    z = module.embed(images)
    for prediction in module.classifiers or ["classifier"]:
        module.prediction = prediction
        learned_model(module).save(tmp_path / "bundle", overwrite=True)
        model = cifnet_pl.load(tmp_path / "bundle", device="cpu", engine="torch")
        assert model.class_names == module.class_names
        assert [len(task) for task in model.tasks] == [2, 2]
        close = torch.testing.assert_close
        close(model.embed(images), z, rtol=1e-4, atol=1e-4)
        way = "nearest_mean" if method in NOT_LINEAR else prediction
        expected = module.probabilities_of(z, way)
        close(model.probabilities(images), expected, rtol=1e-3, atol=1e-4)


def test_every_command_takes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    fit = ["fit", "--model", "ReplayModule", "--model.epochs", "1", *DATA[2:]]
    fit += ["--model.backbone", "random:resnet32_cifar", "--data.image_size", "8"]
    fit += ["--data.max_tasks", "2", "--model.exemplars", "40"]
    assert main([*fit, "--logs", str(tmp_path)]) == 0
    run_folder = str(tmp_path / "default" / "version_0")
    images = ["--images", str(make_images(tmp_path / "images", ["ant", "bee"]))]
    bundle, more, table = (str(tmp_path / name) for name in ("bundle", "more", "table"))
    assert main(["export", "--model", run_folder, "--output", bundle]) == 0
    known = "learned:plain:random:resnet32_cifar"
    assert_ends(main(["info", "--model", bundle]), 0, known, capsys)
    by_torch = ["--engine", "torch"]
    of_bundle = ["--model", bundle, *by_torch, *images, "--output"]
    assert main(["classify", *of_bundle, table + ".csv"]) == 0
    assert len(Path(table + ".csv").read_text().splitlines()) > 10
    assert main(["extend", *of_bundle, more]) == 0
    assert main(["evaluate", "--model", more, *images]) == 0
    assert cifnet_pl.load(more).class_names[-2:] == ["ant", "bee"]
    graph = ["--output", str(tmp_path / "graph"), "--format", "onnx"]
    assert main(["export", "--model", bundle, *graph]) == 0


def test_an_unfinished_run_is_no_model(tmp_path: Path):
    made = learner(ReplayModule, epochs=1)
    engine = trainer(tmp_path)
    engine.fit(made, datamodule=data())
    path = tmp_path / "alone.ckpt"
    engine.save_checkpoint(path)
    with pytest.raises(CheckpointError, match="finish the run"):
        cifnet_pl.load(path)
