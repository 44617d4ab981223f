"""How alike two photos must be to be called near-copies, by their embeddings and by thumbnails of 8 by 8 pixels.

    python -m benchmarks.near_copies FOLDER

The folder has train and val, each with one sub-folder of photos per class. "distinct" counts the photos that have a
near-copy in their class as they are. The other rows are the share of pairs that are called near-copies, of 100 photos:
each pair is a photo and a changed version of it, or two changed versions.
"""

from __future__ import annotations

import io
import random
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance

from benchmarks.embeddings import BACKBONE, read_photos, study_parser
from cifnet_pl.backbones import build_backbone
from cifnet_pl.data.sets import FileSet, SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.photos.copies import SIMILAR, patterns, similar_groups
from cifnet_pl.photos.photo import square, thumbnail
from cifnet_pl.photos.reading import looks_at
from cifnet_pl.statistics import comparable, near_groups, near_limit

PAIRS = {
    "saved anew, quality 60": ("as it is", "quality 60"),
    "10 % brighter": ("as it is", "brighter"),
    "half the side": ("as it is", "half"),
    "turned by 2 degrees": ("as it is", "turned"),
    "moved by 2 % of the frame": ("2 % a", "2 % b"),
    "moved by 4 % of the frame": ("4 % a", "4 % b"),
    "moved by 10 % of the frame": ("10 % a", "10 % b"),
}


def versions(photo: Image.Image) -> dict[str, Image.Image]:
    """A photo as it is and changed, as PIL images."""
    width, height = photo.size

    def cut(start: float, size: float) -> Image.Image:
        left, top = round(start * width), round(start * height)
        return photo.crop((left, top, left + round(size * width), top + round(size * height)))

    again = io.BytesIO()
    photo.save(again, "JPEG", quality=60)
    edited = {"as it is": photo, "quality 60": Image.open(again).convert("RGB")}
    edited["brighter"] = ImageEnhance.Brightness(photo).enhance(1.1)
    edited["half"] = photo.resize((max(1, width // 2), max(1, height // 2)), Image.Resampling.BILINEAR)
    margin = (round(0.03 * width), round(0.03 * height))
    edited["turned"] = photo.rotate(2, Image.Resampling.BICUBIC).crop((*margin, width - margin[0], height - margin[1]))
    for share in (2, 4, 10):
        edited[f"{share} % a"], edited[f"{share} % b"] = cut(0, 1 - share / 100), cut(share / 100, 1 - share / 100)
    return edited


def distinct_photos(root: Path, image_size: int, cache: Path) -> tuple[float, int, int, list[Path]]:
    """The limit of the cosine, photos with a near-copy by embedding and by thumbnail, and all files of a folder."""
    photos = read_photos(root, image_size, cache)
    u, y = comparable(torch.cat([photos.z, photos.val_z])), torch.cat([photos.y, photos.val_y])
    limit = near_limit(u, y)
    assert limit is not None
    sizes = near_groups(u, y, limit).bincount()
    source = build_source("folder", SourceOptions(root))
    sets = [image_set for image_set in (source.train, source.val) if isinstance(image_set, FileSet)]
    files = [image_set.root / name for image_set in sets for name in image_set.names]
    by_class: dict[int, list[Path]] = defaultdict(list)
    for label, file in zip(y.tolist(), files, strict=True):
        by_class[label].append(file)
    counts = [np.bincount(similar_groups(looks_at(group))) for group in by_class.values()]
    looks = sum(int(count[count > 1].sum()) for count in counts)
    return limit, int(sizes[sizes > 1].sum()), looks, files


def shares(files: list[Path], image_size: int, limit: float) -> dict[str, tuple[float, float]]:
    """Share of pairs of changed versions that are called near-copies, by embedding and by thumbnail."""
    backbone = build_backbone(BACKBONE, engine="torch")
    by_edit: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for file in files:
        with Image.open(file) as image:
            made = versions(image.convert("RGB"))
        squares = np.stack([square(photo, image_size, 1.0) for photo in made.values()])
        with torch.inference_mode():
            u = comparable(backbone(torch.from_numpy(squares).permute(0, 3, 1, 2)))
        looks = patterns([thumbnail(photo) for photo in made.values()])
        names = list(made)
        for pair, (one, other) in PAIRS.items():
            i, j = names.index(one), names.index(other)
            by_edit[pair].append((float(u[i] @ u[j]) > limit, float(looks[i] @ looks[j]) > SIMILAR))
    return {pair: (float(np.mean([a for a, _ in v])), float(np.mean([b for _, b in v]))) for pair, v in by_edit.items()}


def main() -> None:
    options = study_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    limit, near, looks, files = distinct_photos(options.root, options.image_size, options.cache_folder)
    print(f"distinct: {near} by embedding, {looks} by thumbnail, of {len(files)} photos (limit {limit:.3f})")
    for pair, (shares_of, seen) in shares(random.Random(0).sample(files, 100), options.image_size, limit).items():
        print(f"{pair}: {100 * shares_of:.0f} % by embedding, {100 * seen:.0f} % by thumbnail")


if __name__ == "__main__":
    main()
