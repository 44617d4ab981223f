"""``info``: what the screen shows of a model."""

import torch

from cifnet_pl import Classifier, build_backbone
from cifnet_pl.__main__ import main
from cifnet_pl.heads import NCMHead
from cifnet_pl.model.bundle import Event
from tests.models import learn_embeddings, learned


def test_every_class_and_number_is_said_once(tmp_path, capsys):
    model = learned("ridge", [["anteater", "bumblebee"], ["cockatoo"]])
    model.history[0] = Event("task", 2, class_names=["anteater", "bumblebee"])
    made = {"class_names": ["cockatoo"], "parents": ["0123456789abcdef"]}
    model.history.append(Event("extend", 3, 7, **made))
    model.save(tmp_path / "b")
    assert main(["info", "--model", str(tmp_path / "b")]) == 0
    said = capsys.readouterr().out
    assert "3 classes, learned from 21 images\n" in said
    for name in ("anteater", "bumblebee", "3 classes", "21 images"):
        assert said.count(name) == 1
    assert "Step 3, extend: cockatoo; from model 0123456789abcdef\n" in said


def test_what_was_learned_from_embeddings_are_samples(tmp_path, capsys):
    model = Classifier(build_backbone("none:4"), NCMHead(4))
    learn_embeddings(model, ["ant", "bee"], torch.eye(4), torch.tensor([0, 0, 1, 1]))
    model.history.append(Event("task", 2, 4))
    model.save(tmp_path / "b")
    assert main(["info", "--model", str(tmp_path / "b")]) == 0
    said = capsys.readouterr().out
    assert "learned from 4 samples" in said
    assert "image" not in said
