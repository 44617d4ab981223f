"""Models on the Hugging Face hub: pushed, fetched, refused, offline."""

import shutil
from types import SimpleNamespace
from unittest.mock import create_autospec

import pytest
import yaml

import cifnet_pl
from cifnet_pl.model.hub import escaped, model_card, push
from cifnet_pl.utilities.errors import CheckpointError, UsageError
from tests.command_line import assert_ends, run_cifnet
from tests.models import learned, tensors_equal

huggingface_hub = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")
NAME = "hf:someone/animals"


class FakeHub:
    """Repositories as folders below one."""

    def __init__(self, root):
        self.root = root
        self.real = huggingface_hub.HfApi()

    def create_repo(self, repo_id, **_):
        (self.root / repo_id).mkdir(parents=True, exist_ok=True)
        return f"https://hub/{repo_id}"

    def repo_exists(self, repo_id):
        return (self.root / repo_id).is_dir()

    def upload_folder(self, *, repo_id, folder_path, delete_patterns, **_):
        target = self.root / repo_id
        for path in target.glob(delete_patterns):
            path.unlink()
        shutil.copytree(folder_path, target, dirs_exist_ok=True)

    def snapshot_download(self, repo_id, *, local_files_only, **options):
        if local_files_only:
            real = self.real.snapshot_download
            return real(repo_id, local_files_only=True, **options)
        snapshot = self.root / "snapshot"
        shutil.rmtree(snapshot, ignore_errors=True)
        snapshot.mkdir()
        for pattern in options["allow_patterns"]:
            for path in (self.root / repo_id).glob(pattern):
                shutil.copy(path, snapshot)
        return str(snapshot)


@pytest.fixture
def hub(tmp_path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """A hub without models, whose calls have the arguments of the package; and an empty cache."""
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    made = FakeHub(tmp_path / "hub")
    api = SimpleNamespace()
    for name in ("create_repo", "repo_exists", "upload_folder", "snapshot_download"):
        real, fake = getattr(made.real, name), getattr(made, name)
        setattr(api, name, create_autospec(real, side_effect=fake))
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: api)
    return made


def test_a_model_comes_back_as_it_was(hub: FakeHub):
    model = learned("cifnet")
    assert push(model, NAME) == "https://hub/someone/animals"
    result = cifnet_pl.load(NAME, device="cpu", download=True)
    assert result.describe() == model.describe()
    assert tensors_equal(result.tensors(), model.tensors())
    card = (hub.root / "someone/animals" / "README.md").read_text()
    assert card == model_card(model, "someone/animals")
    _, about, body = card.split("---\n", 2)
    assert yaml.safe_load(about)["pipeline_tag"] == "image-classification"
    assert "| head | `CIFNetHead` |" in body
    assert escaped("a|b\n*c*") == "a\\|b\\\\n\\*c\\*"
    with pytest.raises(UsageError, match="exists already"):
        push(learned("ridge"), NAME)
    push(learned("ridge"), NAME, overwrite=True)
    assert type(cifnet_pl.load(NAME, download=True).head).__name__ == "RidgeHead"


def test_the_commands(hub: FakeHub, tmp_path, capsys: pytest.CaptureFixture[str]):
    copy = tmp_path / "copy"
    learned("ridge").save(tmp_path / "b")
    code = run_cifnet("export", model=tmp_path / "b", push=NAME)
    assert_ends(code, 0, "6 classes on the hub, https://hub/", capsys)
    code = run_cifnet("export", model=NAME, output=copy)
    assert_ends(code, 1, "not on this machine", capsys)
    assert run_cifnet("export", model=NAME, output=copy, download=True) == 0
    assert cifnet_pl.load(copy).class_names == learned("ridge").class_names
    assert run_cifnet("export", model=copy) == 2
    assert run_cifnet("export", model=copy, push=NAME, format="onnx") == 2


def test_what_is_wrong(hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    repository = hub.root / "someone/animals"
    repository.mkdir(parents=True)
    (repository / "model.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="is neither a bundle"):
        cifnet_pl.load(NAME, download=True)
    for name in ("a/b", "hf:a", "hf:a/b/c", "hf:a/b@v1"):
        with pytest.raises(UsageError, match="expected hf:user/model"):
            push(learned("ridge"), name)
    monkeypatch.undo()
    for name in ("hf:", "hf:a/b/c", "hf:../x", "hf:a b/c"):
        with pytest.raises(CheckpointError, match="cannot read hf:"):
            cifnet_pl.load(name)
