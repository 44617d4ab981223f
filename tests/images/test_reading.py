"""Many images by several threads; test_loading.py has their order and the unreadable ones."""

from pathlib import Path

from PIL import Image

from cifnet_pl.images.reader import decode_images, decoding_batch_size


def test_decoding_stops_with_its_consumer(tmp_path: Path):
    Image.new("L", (2, 2)).save(tmp_path / "a.png")
    asked = 0

    def endless():
        nonlocal asked
        while True:
            asked += 1
            yield tmp_path / "a.png"

    stream = decode_images(endless(), 2, 1.0)
    next(stream)
    stream.close()
    assert asked <= 2 * decoding_batch_size(2)
