"""``python -m benchmarks.studies.shrinking FOLDER [IMAGE_SIZE]``: how small may photos be sent?

FOLDER has ``train`` and ``val`` with class folders. A model learns the training images as they are,
at an image size (56) at which they have more than twice the pixels that the backbone sees, as
photos of a phone have at 224. The validation images are asked about as they are, and as Chromium
makes them with the page's own script: to a shorter side of so many pixels for each that the
backbone sees, JPEG of quality 0.92. It needs Playwright and an installed Chromium.
"""

from __future__ import annotations

import base64
import io
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from playwright.sync_api import Page, sync_playwright
from torch import Tensor
from torch.nn.functional import cosine_similarity

from benchmarks.http_load import serving
from cifnet_pl.cli.serve import empty_model
from cifnet_pl.images.image import EncodedImage
from cifnet_pl.model.classifier import Classifier

SCALES = (1.0, 1.5, 2.0, 3.0)
CROP_RATIO = 0.875
SENT_SMALLER = 2**18
"""Bytes up to which the page sends a photo as it is; files are filled up to it."""

SHRINK = """async ([photos, side]) => {
  const { small } = await import(new URL("page/photos.js", document.baseURI));
  const { model } = await import(new URL("page/state.js", document.baseURI));
  model.summary.photo_side = side;
  const found = [];
  for (const photo of photos) {
    const bytes = Uint8Array.from(atob(photo), (one) => one.charCodeAt(0));
    const file = new File([bytes, new Uint8Array(2 ** 18)], "a.png", { type: "image/png" });
    const made = new Uint8Array(await (await small({ file, path: "a.png" })).file.arrayBuffer());
    found.push(btoa(String.fromCharCode(...made)));
  }
  return found;
}"""


def images_of(folder: Path) -> tuple[list[bytes], list[str]]:
    """Return the images of a folder and their classes, without loss as PNG files."""
    contents = []
    names = []
    for path in sorted(folder.glob("*/*.jp*g")):
        out = io.BytesIO()
        Image.open(path).convert("RGB").save(out, "PNG")
        contents.append(out.getvalue())
        names.append(path.parent.name)
    return contents, names


def shrunk(page: Page, contents: list[bytes], side: int) -> list[bytes]:
    """Return images as the page would send them."""
    found = []
    for start in range(0, len(contents), 50):
        part = [base64.b64encode(one).decode() for one in contents[start : start + 50]]
        made = page.evaluate(SHRINK, [part, side])
        found += [base64.b64decode(one) for one in made]
    return found


def embedded(model: Classifier, contents: list[bytes]) -> Tensor:
    """Return the embeddings (n, d) of images."""
    parts = []
    for start in range(0, len(contents), 64):
        squares = []
        for content in contents[start : start + 64]:
            image = EncodedImage(content)
            squares.append(image.square(model.image_size, model.crop_ratio))
        pixels = torch.from_numpy(np.stack(squares)).permute(0, 3, 1, 2)
        with torch.inference_mode():
            parts.append(model.embed(pixels))
    return torch.cat(parts)


def main(folder: Path, image_size: int) -> None:
    """Print the table."""
    model = empty_model()
    model.image_size = image_size
    model.crop_ratio = CROP_RATIO
    contents, names = images_of(folder / "train")
    classes = sorted(set(names))
    y = torch.tensor([classes.index(name) for name in names])
    model.begin_task(classes, torch.bincount(y).tolist())
    model.observe(embedded(model, contents), y, torch.arange(len(y)))
    model.finish_task()
    contents, names = images_of(folder / "val")
    truth = torch.tensor([classes.index(name) for name in names])
    z = embedded(model, contents)
    answers = model.head(z).argmax(1)
    right = 100 * (answers == truth).double().mean()
    print("| shorter side | pixels a pixel seen | cosine | same answer % | right % |")
    print("|---|---|---|---|---|")
    print(f"| as it is | – | 1 | 100 | {right:.1f} |")
    with (
        tempfile.TemporaryDirectory() as workspace,
        serving("cifnet_pl", "serve", "--workspace", workspace, "--port", "0") as ours,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page()
        page.goto(ours.url)
        for scale in SCALES:
            side = round(scale * image_size / CROP_RATIO)
            small = embedded(model, shrunk(page, contents, side))
            found = model.head(small).argmax(1)
            cosine = cosine_similarity(z, small).mean()
            same = 100 * (found == answers).double().mean()
            right = 100 * (found == truth).double().mean()
            print(f"| {side} | {scale:g} | {cosine:.4f} | {same:.1f} | {right:.1f} |")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 56)
