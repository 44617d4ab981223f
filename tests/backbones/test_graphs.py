"""Graphs in the cache folder: never a damaged or wrong one, nor a failure over a cache."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Event

import pytest
import torch

from cifnet_pl.backbones import Backbone, Preprocessing, engines
from cifnet_pl.backbones.engines import NoGraph, checked_runtime, exported, graph_file
from tests.backbones.test_engines import Small, assert_agree, images


class Edited(Small):
    """The weights of ``Small``, and other code."""

    def forward(self, x):
        return self.second(self.first(x).tanh()).mean((2, 3))


def small(network: type[Small] = Small) -> Backbone:
    return Backbone("small", network(), 12, Preprocessing(16))


@cache
def graph_of(network: type[Small]) -> bytes:
    """The graph of a network: an export takes seconds. That of ``Edited`` has another operator."""
    if network is Edited:
        return graph_of(Small).replace(b"Relu", b"Tanh")
    return exported(small(network))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(engines.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(
        engines, "exported", lambda backbone: graph_of(type(backbone.network))
    )
    return tmp_path / "cache" / "graphs"


@pytest.fixture
def exports(watch) -> list[str]:
    """Names of the networks that were exported."""
    return watch(engines, "exported", lambda backbone: backbone.name)


def test_a_network_is_exported_once(folder, exports: list[str]):
    for _ in range(2):
        assert_agree(small())
    assert exports == ["small"]
    assert len(list(folder.glob("[!.]*"))) == len(list(folder.glob("*.onnx"))) == 1
    other_weights = Backbone("small", Small(seed=1), 12, Preprocessing(16))
    assert graph_file(other_weights) != graph_file(small())


def test_a_damaged_graph_is_made_again(folder, exports, caplog):
    assert_agree(small())
    (graph,) = folder.glob("*.onnx")
    graph.write_bytes(graph.read_bytes()[:-7])
    assert_agree(small())
    assert f"{graph} is not used" in caplog.text
    assert len(exports) == 2
    assert_agree(small())
    assert len(exports) == 2


def test_a_folder_that_cannot_be_written(folder, caplog):
    """The run goes on. A file stands for a read-only folder, which root could write to."""
    folder.parent.write_text("no folder")
    backbone = small()
    assert backbone.engine() == "onnxruntime"
    assert_agree(backbone)
    assert "exports" in caplog.text


def test_a_graph_that_computes_something_else_is_not_used(caplog, monkeypatch):
    wrong = graph_of(Edited)
    with pytest.raises(NoGraph, match="differs"):
        checked_runtime(wrong, small())
    checked_runtime(wrong, small(Edited))
    monkeypatch.setattr(engines, "exported", lambda backbone: wrong)
    backbone = small()
    assert backbone.engine() == "torch"
    assert torch.equal(backbone(images()), backbone.embed(images()))
    assert "engine torch" in caplog.text


def test_a_network_whose_code_has_changed_is_exported_again(exports, caplog):
    assert_agree(small())
    assert graph_file(small(Edited)) == graph_file(small())
    assert_agree(small(Edited))
    assert "small" in caplog.text
    assert_agree(small(Edited))
    assert exports == ["small", "small"]


def test_a_thread_embeds_by_torch_while_another_exports():
    """The exporter replaces the parameters of what it traces for a moment; it is given a copy."""
    backbone = small()
    done = Event()
    expected = backbone.embed(images())
    agree: list[bool] = []

    def embed() -> None:
        while not done.is_set():
            agree.append(torch.allclose(backbone.embed(images()), expected, atol=1e-6))

    with ThreadPoolExecutor(1) as pool:
        embedding = pool.submit(embed)
        while len(agree) <= 10 and not embedding.done():
            exported(backbone)
        done.set()
        embedding.result()
    assert all(agree)
