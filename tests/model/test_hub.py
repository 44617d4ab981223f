"""Models on the Hugging Face hub, against a server on this machine: pushed, fetched, refused,
offline.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.model.hub import escaped, model_card, push
from cifnet_pl.utilities.errors import CheckpointError, CifnetError, UsageError
from tests.model.fake_hub import TOKEN, FakeHub, fake_hub
from tests.models import learned, tensors_equal

pytest.importorskip("huggingface_hub")
NAME = "someone/animals"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub without models, an empty cache, and a token that may write."""
    with fake_hub() as result:
        use(result.address, tmp_path / "cache", monkeypatch)
        yield result


def use(address: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        address + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)


@pytest.mark.parametrize("head", ["cifnet", "ridge"])
def test_a_model_comes_back_as_it_was(head: str, hub: FakeHub):
    model = learned(head)
    push(model, f"hf:{NAME}")
    result = cifnet_pl.load(f"hf:{NAME}", device="cpu", download=True)
    assert result.class_names == model.class_names
    assert tensors_equal(result.tensors(), model.tensors())
    z = torch.randn(
        5, model.head.in_features, generator=torch.Generator().manual_seed(0)
    )
    assert torch.equal(result.head.probabilities(z), model.head.probabilities(z))


def test_what_was_fetched_is_used_without_the_network(hub: FakeHub):
    push(learned("ridge"), f"hf:{NAME}")
    with pytest.raises(
        CheckpointError,
        match=r"not on this machine.* --download true",
    ):
        cifnet_pl.load(f"hf:{NAME}")
    cifnet_pl.load(f"hf:{NAME}", download=True)
    hub.asked.clear()
    assert cifnet_pl.load(f"hf:{NAME}").class_names
    assert hub.asked == []


def test_the_commands(hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    learned("ridge").save(tmp_path / "bundle")
    assert (
        main(["export", "--model", str(tmp_path / "bundle"), "--push", f"hf:{NAME}"])
        == 0
    )
    assert f"6 classes on the hub, {hub.address}/{NAME}" in capsys.readouterr().out
    assert (
        main(["export", "--model", f"hf:{NAME}", "--output", str(tmp_path / "m")]) == 1
    )
    assert "not on this machine" in capsys.readouterr().err
    assert (
        main(
            [
                "export",
                "--model",
                f"hf:{NAME}",
                "--output",
                str(tmp_path / "m"),
                "--download",
            ]
        )
        == 0
    )
    assert (
        cifnet_pl.load(tmp_path / "m").class_names
        == cifnet_pl.load(tmp_path / "bundle").class_names
    )
    assert main(["info", "--model", f"hf:{NAME}"]) == 0
    assert main(["export", "--model", str(tmp_path / "m")]) == 2
    assert (
        main(
            [
                "export",
                "--model",
                str(tmp_path / "m"),
                "--push",
                f"hf:{NAME}",
                "--format",
                "onnx",
            ]
        )
        == 2
    )


def test_the_card(hub: FakeHub):
    model = learned("ridge", [["ant", "<b>bee</b>"]])
    push(model, f"hf:{NAME}")
    card = hub.repositories[NAME]["README.md"].decode()
    assert card == model_card(model, NAME)
    _, about, body = card.split("---\n", 2)
    assert yaml.safe_load(about)["pipeline_tag"] == "image-classification"
    assert "ant, \\<b\\>bee\\</b\\>" in body
    assert "| head | `RidgeHead` |" in body
    assert f'cifnet_pl.load("hf:{NAME}", download=True)' in body
    assert escaped("a|b\n*c*") == "a\\|b\\\\n\\*c\\*"


# ---------------------------------------------------------------------- what is wrong


def test_no_such_model_or_revision(hub: FakeHub):
    with pytest.raises(
        CheckpointError, match=r"cannot read hf:no/body: .*check the name"
    ):
        cifnet_pl.load("hf:no/body", download=True)
    push(learned("ridge"), f"hf:{NAME}")
    with pytest.raises(CheckpointError, match=f"cannot read hf:{NAME}@v2: "):
        cifnet_pl.load(f"hf:{NAME}@v2", download=True)


def test_no_token(hub: FakeHub, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(
        CifnetError,
        match=r"cannot write hf:someone/animals: .*log in with `hf auth login`",
    ):
        push(learned("ridge"), f"hf:{NAME}")


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    use("http://127.0.0.1:9", tmp_path, monkeypatch)
    with pytest.raises(CheckpointError, match="cannot read hf:someone/animals: "):
        cifnet_pl.load(f"hf:{NAME}", download=True)
    with pytest.raises(CifnetError, match="cannot write hf:someone/animals: "):
        push(learned("ridge"), f"hf:{NAME}")


def test_models_of_others_are_neither_read_nor_replaced(hub: FakeHub):
    hub.repositories[NAME] = {"model.safetensors": b"x"}
    with pytest.raises(CheckpointError, match="is no model of this package"):
        cifnet_pl.load(f"hf:{NAME}", download=True)
    with pytest.raises(UsageError, match="holds files already"):
        push(learned("ridge"), f"hf:{NAME}")
    assert hub.repositories[NAME] == {"model.safetensors": b"x"}


def test_a_hostile_model_is_refused(hub: FakeHub):
    push(learned("ridge"), f"hf:{NAME}")
    files = hub.repositories[NAME]
    (tensors,) = (file for file in files if file.startswith("tensors-"))
    files[tensors] = b"\x80\x04" + files[tensors][2:]
    with pytest.raises(CheckpointError, match="damaged"):
        cifnet_pl.load(f"hf:{NAME}", download=True)
    files["config.json"] = files["config.json"].replace(b"RidgeHead", b"os.system")
    with pytest.raises(CheckpointError, match="checksum is wrong"):
        cifnet_pl.load(f"hf:{NAME}", download=True)
