"""The functions behind ``extend``, ``forget`` and ``merge``: they return results, print nothing, change no model."""

from pathlib import Path

import pytest

from cifnet_pl.model.classifier import Classifier
from cifnet_pl.utilities.errors import UsageError
from tests.command_line import make_photos
from tests.models import empty, learned, tensors_equal


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


def test_the_second_class_is_no_surprise(tmp_path: Path):
    """With one class any ridge is as good, so that its change tells nothing."""
    one = empty("ridge").extend(make_photos(tmp_path / "one", ["ant"], 12)).model
    result = one.extend(make_photos(tmp_path / "two", ["bee", "cat"], 12))
    assert result.warnings == []
    assert result.model.head.choices()[0].position != "largest"
