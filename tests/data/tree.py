"""Class folders and images that tests write."""

import numpy as np
from PIL import Image

COLOURS = {
    "red": (220, 30, 40),
    "green": (30, 200, 60),
    "blue": (40, 50, 230),
    "white": (250, 250, 250),
}
"""Classes that even raw pixels tell apart, and their mean colours."""


def image(colour, seed=0, size=(24, 16)):
    """A noisy image (width, height) around one colour; another seed gives another image."""
    noise = np.random.default_rng(seed).integers(-25, 26, (size[1], size[0], 3))
    return Image.fromarray((np.asarray(colour) + noise).clip(0, 255).astype(np.uint8))


def fill(folder, colour, count, first=0):
    """``count`` images of one class as ``0.png``, ``1.png``, …"""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(first, first + count):
        image(colour, seed=i).save(folder / f"{i}.png")


def class_tree(root, count=5, classes=("blue", "green", "red")):
    """``root/<class>/<i>.png``, ``count`` images a class."""
    for name in classes:
        fill(root / name, COLOURS[name], count)
    return root
