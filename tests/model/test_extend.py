"""The functions behind ``extend``, ``forget`` and ``merge``: they return results, print nothing, change no model."""

from pathlib import Path

import pytest
import torch

from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.merge import merge
from cifnet_pl.utilities.errors import DataError, UsageError
from tests.command_line import make_photos
from tests.models import learned, tensors_equal


def test_extend_returns_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model = learned("ridge")
    before = model.tensors()
    images = make_photos(tmp_path / "new", ["gnu", "hen"], 10)
    (images / "gnu" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 broken")
    result = model.extend(images, check=make_photos(tmp_path / "old", ["ant"], 3))
    assert result.learned == {"gnu": 10, "hen": 10}
    assert result.model.class_names == [*model.class_names, "gnu", "hen"]
    assert isinstance(result.model, Classifier)
    assert (result.score.total, result.old_before.total, result.old_after.total) == (4, 3, 3)
    assert [photo.file.name for photo in result.unreadable] == ["broken.jpg"]
    assert result.model.history[-1].photos == 20
    assert tensors_equal(model.tensors(), before)
    assert len(model.history) == 3
    with pytest.raises(UsageError, match="already learned"):
        result.model.extend(images)
    assert capsys.readouterr() == ("", "")


def test_forget_returns_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model = learned("ridge")
    images = make_photos(tmp_path, ["gnu", "hen"], 5)
    both = model.extend(images).model
    without = both.forget(["gnu", "hen"], images)
    assert without.exact
    assert without.photos == {"gnu": 5, "hen": 5}
    z = torch.randn(5, model.head.in_features, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(without.model.head(z), model.head(z), rtol=0, atol=1e-8)
    removed = both.forget("gnu")
    assert (removed.exact, removed.can_be_exact, removed.earlier_removals) == (False, True, False)
    assert "gnu" in both.class_names
    with pytest.raises(DataError, match="0 of them"):
        both.forget("gnu", images / "hen")
    assert capsys.readouterr() == ("", "")


def test_merge_changes_none_of_its_models():
    a, b = learned("ridge", [["ant"]]), learned("ridge", [["bee"], ["cat"]])
    before = [a.tensors(), b.tensors()]
    result = merge([a, b])
    assert result.model.class_names == ["ant", "bee", "cat"]
    assert result.photos == 21
    assert all(tensors_equal(m.tensors(), old) for m, old in zip((a, b), before, strict=True))
    with pytest.raises(UsageError, match="model 2 holds the same model as model 1"):
        merge([a, a.clone()])
