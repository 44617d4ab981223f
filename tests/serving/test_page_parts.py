"""What the page takes in: camera, paste, many images, names from several browsers."""

import csv
import io
import re

import pytest

from tests.serving.browsing import (
    check_looks,
    drop,
    keep_texts,
    page_of,
    sync_api,
    until,
)
from tests.serving.services import heic, image, images

pytestmark = pytest.mark.system
expect = sync_api.expect
PASTE = """(bytes) => {
  const data = new DataTransfer();
  data.items.add(new File([new Uint8Array(bytes)], "image.png", { type: "image/png" }));
  document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true }));
}"""
NO_CAMERA = """() => {
  navigator.mediaDevices.getUserMedia = () => Promise.reject(new Error("gone"));
}"""
LOADED = (
    "[...document.querySelectorAll('.card img')].every((one) => one.naturalWidth > 0)"
)


def test_pasted_images_and_formats_that_the_browser_cannot_show(browser, server):
    with page_of(browser, server) as page:
        page.evaluate(PASTE, list(image("green", 70, 120)))
        cards = page.locator("#cards .card")
        expect(cards.locator(".verdict")).to_contain_text("green")
        others = {"a.tif": image("red", 70, 120, "TIFF"), "b.heic": heic("green")}
        drop(page, "#drop", others)
        expect(cards).to_have_count(3)
        expect(cards.locator("img")).to_have_count(3)
        until(page, LOADED)
        accepted = re.compile(r"\.heic")
        expect(page.locator("#files")).to_have_attribute("accept", accepted)


SHOWN = """(() => {
  const video = document.getElementById("camera-video");
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
  canvas.getContext("2d").drawImage(video, 0, 0);
  return canvas.toDataURL("image/jpeg");
})()"""


def wait_for_another_picture(page) -> None:
    """Wait until the camera shows something else: two images of one picture are one image."""
    before = page.evaluate(SHOWN)
    while page.evaluate(SHOWN) == before:
        page.wait_for_timeout(50)


def test_the_camera_answers_live_and_takes_images_in_a_row(browser, server):
    """Chromium's fake camera shows a green picture with a moving timer, which is learned as what it
    is called. It counts what is stored: what goes wrong is seen above the open camera, and an old
    answer goes. Ten images are taken while a button is held, and stored where the camera goes away
    meanwhile.
    """
    with page_of(browser, server, "phone") as page:
        page.get_by_role("tab", name="Photos").click()
        page.get_by_role("button", name="Camera", exact=True).click()
        until(page, "document.getElementById('camera-video').videoWidth > 0")
        answer = page.locator("#camera-answer")
        expect(answer).to_have_text("This looks unlike what I learned.")
        expect(page.locator("#camera-bars li")).to_have_count(2)
        page.locator("#camera-name").fill("timer")
        take = page.get_by_role("button", name="Take a photo")
        taken = page.locator("#camera-taken")
        page.context.set_offline(True)
        expect(answer).to_have_text("No answer")
        take.click()
        expect(taken).to_have_text("0 photos stored, 1 not yet.")
        trouble = page.locator("#camera #upload-trouble")
        expect(trouble).to_contain_text("does not answer")
        page.context.set_offline(False)
        expect(taken).to_have_text("1 photo stored.")
        expect(answer).to_contain_text("unlike")
        wait_for_another_picture(page)
        take.click()
        expect(taken).to_have_text("2 photos stored.")
        wait_for_another_picture(page)
        expect(page.locator("#named")).to_have_text("2 named")
        check_looks(page, "camera")
        page.set_viewport_size({"width": 1280, "height": 900})
        page.locator("#camera-ten").hover()
        page.mouse.down()
        expect(taken).to_have_text("12 photos stored.")
        page.mouse.up()
        page.locator("#camera").get_by_role("button", name="Close").click()
        until(page, "document.getElementById('camera-video').srcObject", None)
        page.locator("#learn").click()
        expect(page.locator("#message-text")).to_contain_text("Learned timer (")
        page.get_by_role("button", name="Camera", exact=True).click()
        expect(answer).to_contain_text("timer")
        tab = page.locator("#tab-photos")
        expect(tab).to_have_text("Photos")
        page.locator("#camera-ten").focus()
        page.keyboard.down(" ")
        expect(taken).to_contain_text("not yet")
        page.evaluate("document.getElementById('camera-video').srcObject = null")
        expect(taken).to_have_text(re.compile(r"^\d photos? stored\.$"))
        page.keyboard.up(" ")
        expect(tab).to_contain_text("Photos (")
        page.keyboard.press("Escape")
        page.evaluate(NO_CAMERA)
        page.get_by_role("button", name="Camera", exact=True).click()
        said = "The camera cannot be used: gone. Choose a photo instead."
        expect(page.locator("#message-text")).to_have_text(said)


LISTS = re.compile(r"/inbox\?count=[1-9]")
"""Requests for the list of images; others ask for their number alone."""


def test_a_list_that_comes_late_gives_no_name_again(browser, server, patient):
    """The list with two names arrives when one of them has been taken back."""
    late = []

    def hold(route):
        response = route.fetch()
        if len(response.json()["names"]) == 2:
            late.append((route, response))
        else:
            route.fulfill(response=response)

    with page_of(browser, server) as page:
        drop(page, "#drop", {f"{n}/1.png": image(n, 1) for n in ("apple", "pear")})
        expect(page.locator("#cards .card")).to_have_count(2)
        # Nothing else asks for a newer list meanwhile.
        page.route(re.compile(r"/inbox\?count=0"), lambda route: None)
        page.route(LISTS, hold)
        page.get_by_role("button", name="Name 2 by their folders").click()
        while not late:
            page.wait_for_timeout(50)
        # Only a list that is asked for from here on has three images.
        patient.post("/inbox", files=images("fig", 1)).raise_for_status()
        page.get_by_role("button", name="Take back the name of pear/1.png").click()
        expect(page.locator("#named")).to_have_text("1 named")
        keep_texts(page, "named")
        page.unroute(LISTS, hold)
        for route, response in late:
            route.fulfill(response=response)
        expect(page.locator("#cards .card")).to_have_count(3)
        assert "2 named" not in page.evaluate("window.texts.named")


def test_many_images_are_named_by_a_range_and_listed(browser, server):
    """Uncertain ones first; click and shift select; the CSV has every image."""
    names = ["red"] * 8 + ["green"] * 8 + ["blue"] * 4
    files = {}
    for i, name in enumerate(names):
        files[f"{i:02} {name}.png"] = image(name, 70 + i, 60)
    with page_of(browser, server) as page:
        drop(page, "#drop", {**files, "=1+1.png": image("red", 300, 60)})
        cards = page.locator("#cards .card")
        expect(cards).to_have_count(21)
        expect(page.locator("#progress")).to_be_hidden()
        with page.expect_download() as download:
            page.get_by_role("button", name="Download as CSV").click()
        cards.nth(0).locator(".picture").click()
        cards.nth(3).locator(".picture").click(modifiers=["Shift"])
        expect(page.locator("#selected")).to_have_text("4 selected")
        check_looks(page, "many")
        page.get_by_label("Class of the selected photos", exact=True).fill("blue")
        page.keyboard.press("Enter")
        cards.nth(20).get_by_role("button", name="Yes, ").click()
        cards.nth(20).get_by_role("button", name="Take back").click()
        expect(cards.nth(20).get_by_role("button", name="Yes, ")).to_be_visible()
        cards.nth(20).locator(".picture").click()
        page.get_by_role("button", name="Take away").click()
        expect(cards).to_have_count(20)
        expect(page.locator("#cards .card:focus")).to_have_count(1)
        page.get_by_role("button", name="Put back").click()
        expect(cards).to_have_count(21)
        page.locator("#learn").click()
        expect(page.locator("#message-text")).to_contain_text("blue (4)")
        text = download.value.path().read_text(encoding="utf-8")
    table = {row["file"]: row for row in csv.DictReader(io.StringIO(text))}
    assert all(table[file]["closest"] in ("red", "green") for file in files)
    assert [table[file]["class"] for file in list(files)[:16]] == names[:16]
    unknown = [table[file] for file in list(files)[16:]]
    assert [(row["class"], row["known"]) for row in unknown] == [("", "false")] * 4
    assert "'=1+1.png" in table  # a spreadsheet must not run it


TWO_FRAMES = (
    "() => new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))"
)


def test_a_click_counts_if_a_list_arrives_before_its_release(browser, server, patient):
    """The cards are replaced after it, and show what it did."""
    with page_of(browser, server) as page:
        drop(page, "#drop", {"a.png": image("red", 70, 120)})
        cards = page.locator("#cards .card")
        expect(cards).to_have_count(1)
        expect(page.locator("#sending")).to_be_hidden()
        select = page.get_by_role("button", name="Select a.png")
        select.hover()
        page.mouse.down()
        with page.expect_response(LISTS) as list_of_two:
            patient.post("/inbox", files=images("red", 1))
        list_of_two.value.finished()
        page.evaluate(TWO_FRAMES)
        assert cards.count() == 1
        page.mouse.up()
        expect(page.locator("#selected")).to_have_text("1 selected")
        expect(cards).to_have_count(2)
        expect(select).to_have_attribute("aria-pressed", "true")
