"""Models on the Hugging Face hub: pushed, fetched, refused, offline."""

import inspect
import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.model.hub import escaped, model_card, push
from cifnet_pl.utilities.errors import CheckpointError, UsageError
from tests.models import learned, tensors_equal

huggingface_hub = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")
NAME = "hf:someone/animals"


class FakeHub:
    """Repositories as folders below one; calls have the arguments that the package knows."""

    def __init__(self, root: Path):
        self.root = root
        self.real = huggingface_hub.HfApi()
        self.is_online = True

    def _bound(self, method: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        signature = inspect.signature(getattr(self.real, method))
        return signature.bind(*args, **kwargs).arguments

    def repository(self, name: str) -> Path:
        return self.root / name

    def create_repo(self, *args: Any, **kwargs: Any) -> str:
        given = self._bound("create_repo", *args, **kwargs)
        self.repository(given["repo_id"]).mkdir(parents=True, exist_ok=True)
        return f"https://hub/{given['repo_id']}"

    def list_repo_files(self, *args: Any, **kwargs: Any) -> list[str]:
        given = self._bound("list_repo_files", *args, **kwargs)
        return [path.name for path in self.repository(given["repo_id"]).iterdir()]

    def upload_folder(self, *args: Any, **kwargs: Any) -> None:
        given = self._bound("upload_folder", *args, **kwargs)
        target = self.repository(given["repo_id"])
        for path in target.iterdir():
            if fnmatch(path.name, given["delete_patterns"]):
                path.unlink()
        shutil.copytree(given["folder_path"], target, dirs_exist_ok=True)

    def snapshot_download(self, *args: Any, **kwargs: Any) -> str:
        given = self._bound("snapshot_download", *args, **kwargs)
        if given["local_files_only"] or given["revision"]:
            return str(self.real.snapshot_download(*args, **kwargs))
        source = self.repository(given["repo_id"])
        snapshot = self.root / "snapshot"
        shutil.rmtree(snapshot, ignore_errors=True)
        snapshot.mkdir()
        for path in source.iterdir():
            if any(fnmatch(path.name, pattern) for pattern in given["allow_patterns"]):
                shutil.copy(path, snapshot)
        return str(snapshot)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """A hub without models, and an empty cache."""
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    made = FakeHub(tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: made)
    return made


def test_a_model_comes_back_as_it_was(hub: FakeHub):
    model = learned("cifnet")
    assert push(model, NAME) == "https://hub/someone/animals"
    result = cifnet_pl.load(NAME, device="cpu", download=True)
    assert result.describe() == model.describe()
    assert tensors_equal(result.tensors(), model.tensors())
    card = (hub.repository("someone/animals") / "README.md").read_text()
    assert card == model_card(model, "someone/animals")
    _, about, body = card.split("---\n", 2)
    assert yaml.safe_load(about)["pipeline_tag"] == "image-classification"
    assert "| head | `CIFNetHead` |" in body
    assert escaped("a|b\n*c*") == "a\\|b\\\\n\\*c\\*"
    with pytest.raises(UsageError, match="holds files already"):
        push(learned("ridge"), NAME)
    push(learned("ridge"), NAME, overwrite=True)
    assert type(cifnet_pl.load(NAME, download=True).head).__name__ == "RidgeHead"


def test_the_commands(hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    bundle = str(tmp_path / "bundle")
    copy = str(tmp_path / "copy")
    learned("ridge").save(bundle)
    assert main(["export", "--model", bundle, "--push", NAME]) == 0
    assert "6 classes on the hub, https://hub/" in capsys.readouterr().out
    assert main(["export", "--model", NAME, "--output", copy]) == 1
    assert "not on this machine" in capsys.readouterr().err
    assert main(["export", "--model", NAME, "--output", copy, "--download"]) == 0
    assert cifnet_pl.load(copy).class_names == cifnet_pl.load(bundle).class_names
    assert main(["export", "--model", copy]) == 2
    onnx = ["--push", NAME, "--format", "onnx"]
    assert main(["export", "--model", copy, *onnx]) == 2


def test_what_is_wrong(hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    repository = hub.repository("someone/animals")
    repository.mkdir(parents=True)
    (repository / "model.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="is no model of this package"):
        cifnet_pl.load(NAME, download=True)
    monkeypatch.undo()
    for name in ("hf:", "hf:a/b/c", "hf:../x", "hf:a b/c"):
        with pytest.raises(CheckpointError, match="cannot read hf:"):
            cifnet_pl.load(name)
