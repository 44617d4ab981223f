"""Drives the page with an installed Chromium; whatever imports this is skipped without one."""

import os
import shutil
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.serving.services import PATIENCE, image

sync_api = pytest.importorskip("playwright.sync_api", reason="no Playwright")
INSTALLED = shutil.which("chromium") or shutil.which("google-chrome")
CHROMIUM = os.environ.get("CHROMIUM") or INSTALLED
sync_api.expect.set_options(timeout=1000 * PATIENCE)
if CHROMIUM is None:
    pytest.skip("no Chromium: apt-get install chromium", allow_module_level=True)
WIDTHS = {
    "desktop": {"width": 1280, "height": 900},
    "phone": {"width": 375, "height": 800},
}
ARGS = ["--no-sandbox", "--disable-gpu"]
ARGS += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost"]
ARGS += ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
DROP = """([place, files]) => {
  const data = new DataTransfer();
  for (const [name, bytes] of files) {
    data.items.add(new File([new Uint8Array(bytes)], name, { type: "image/png" }));
  }
  const dropped = new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
  document.querySelector(place).dispatchEvent(dropped);
}"""


@contextmanager
def page_of(browser, server, width="desktop", scheme="light", path=""):
    """The open page; nothing is asked of anyone else, and no script or style is refused."""
    size = WIDTHS[width]
    touch = width == "phone"
    context = browser.new_context(viewport=size, color_scheme=scheme, has_touch=touch)
    context.set_default_timeout(1000 * PATIENCE)
    page = context.new_page()
    asked = []
    faults = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: faults.append(str(error)))

    def hear(message):
        if "Security Policy" in message.text:
            faults.append(message.text)

    page.on("console", hear)
    page.goto(f"{server.url}/{path}")
    if not path:
        sync_api.expect(page.locator("#state")).to_contain_text("classes")
    yield page
    own = (server.url, "blob:http://localhost:")
    assert [url for url in asked if not url.startswith(own)] == []
    assert faults == []
    context.close()


def squares(*names):
    """Files with an image of each colour."""
    return {f"{name}.png": image(name, 70, 120) for name in names}


def drop(page, place, files):
    """Drop files on an element, given by its selector."""
    dropped = [[name, list(content)] for name, content in files.items()]
    page.evaluate(DROP, [place, dropped])


def until(page, condition, wanted=True):
    """Wait for an expression's value; Playwright's own way needs `eval`, which is forbidden."""
    end = time.monotonic() + PATIENCE
    while (found := page.evaluate(condition)) != wanted:
        assert time.monotonic() < end, (condition, found)
        page.wait_for_timeout(50)


def keep_texts(page, element):
    """Keep all texts that an element gets from now on, in ``window.texts[element]``."""
    page.evaluate(KEEP_TEXTS, element)


KEEP_TEXTS = """(id) => {
  window.texts = { ...window.texts, [id]: [] };
  const element = document.getElementById(id);
  const keep = () => window.texts[id].push(element.textContent);
  const changes = { childList: true, characterData: true, subtree: true };
  new MutationObserver(keep).observe(element, changes);
}"""


def check_looks(page, name):
    """Nothing is wider than the screen, every text can be read; ``SCREENSHOTS`` keeps it."""
    root = "document.documentElement"
    until(page, f"{root}.scrollWidth <= {root}.clientWidth")
    until(page, CONTRAST, [])
    if folder := os.environ.get("SCREENSHOTS"):
        page.wait_for_timeout(200)
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def choose(page, place, files):
    """Choose files by a field."""
    chosen = []
    for name, buffer in files.items():
        chosen.append({"name": name, "mimeType": "image/jpeg", "buffer": buffer})
    page.locator(place).set_input_files(chosen)


CONTRAST = """() => {
  const shades = (colour) => {
    const canvas = document.createElement("canvas").getContext("2d");
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const weights = [0.2126, 0.7152, 0.0722];
  const light = (rgb) => weights.reduce((sum, w, i) => sum + w * linear(rgb[i] / 255), 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const found = shades(getComputedStyle(e).backgroundColor);
      if (found[3] === 255) return found;
    }
    return shades(getComputedStyle(document.body).backgroundColor);
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const nodes = [...element.childNodes];
    const text = nodes.some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!text || !element.checkVisibility() || element.disabled || element.closest("svg")) continue;
    const [a, b] = [light(shades(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const words = element.textContent.slice(0, 30);
    if (ratio < 4.5) found.push(`${element.tagName} ${words} ${ratio.toFixed(2)}`);
  }
  return found;
}"""
"""Visible texts whose contrast is below WCAG's 4.5 to 1."""
