"""Many images by several threads: in order, with the reasons of those that cannot be read."""

from pathlib import Path

from PIL import Image

from cifnet_pl.images.reader import decode_images, decoding_batch_size


def test_squares_keep_the_order_and_the_reasons(tmp_path: Path):
    files = []
    for i in range(300):
        files.append(tmp_path / f"{i}.png")
        if i % 7 == 3:
            files[-1].write_bytes(b"broken")
        else:
            Image.new("L", (3, 3), i % 256).save(files[-1])
    seen = []
    for batch in decode_images(files, 2, 1.0):
        values = iter(batch.images[:, 0, 0, 0].tolist())
        for file, reason in zip(batch.files, batch.unreadable, strict=True):
            seen.append((file, None if reason is not None else next(values)))
        assert next(values, None) is None
    assert seen == [
        (file, None if i % 7 == 3 else i % 256) for i, file in enumerate(files)
    ]


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
