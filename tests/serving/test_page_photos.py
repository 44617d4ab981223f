"""Photos on their way to the page: camera, paste, a phone, a bad network, several people: nothing
is lost.
"""

import math
import re

import numpy as np
import pytest
from PIL import Image

from cifnet_pl.serving import app, gate
from cifnet_pl.serving.gate import Limits
from tests.command_line import rows
from tests.images.contents import file_of
from tests.serving.browsing import (
    check_looks,
    choose,
    drop,
    keep_texts,
    page_of,
    sync_api,
    until,
)
from tests.serving.services import becomes, heic, image, images, teach

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
        table = {row["file"]: row for row in rows(download.value.path())}
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


# ---------------------------------------------------------------------- a phone, and two people

TAKEN = "2026:03:01 12:30:00"


def photo(number: int) -> bytes:
    """A photo of a phone, lying on its side: too large to be sent as it is, with its time."""
    noise = np.random.default_rng(number).integers(0, 256, (700, 900, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x0132] = TAKEN
    return file_of(Image.fromarray(noise), "JPEG", quality=75, exif=exif)


def photos(count: int) -> dict[str, bytes]:
    return {f"{number}.jpg": photo(number) for number in range(count)}


def test_a_cut_connection_loses_no_photo(browser, server):
    """Photos are small and upright on their way, with their time; what was not sent is said until
    it is, and asked about before the page is left.
    """

    def lose(route):
        """The connection breaks after the service has stored a few of many photos."""
        assert route.request.post_data_buffer.count(b"filename=") == 8
        route.fetch()
        route.abort()

    with page_of(browser, server, "phone", "dark") as page:
        page.get_by_role("tab", name="Photos").tap()
        page.route(re.compile("/inbox$"), lose, times=1)
        choose(page, "#files", photos(12))
        shown = page.locator("#upload-text")
        expect(shown).to_have_text("0 of 12 files stored, 12 not sent.")
        page.context.set_offline(True)
        few = re.compile("[01] of 12 files stored, 1[12] not sent.")
        expect(shown).to_have_text(few)
        trouble = page.locator("#upload-trouble")
        expect(trouble).to_contain_text("does not answer")
        check_looks(page, "cut")
        with page.expect_event("dialog") as asked:
            page.once("dialog", lambda dialog: dialog.dismiss())
            page.close(run_before_unload=True)
        assert asked.value.type == "beforeunload"
        expect(shown).to_be_visible()
        page.context.set_offline(False)
        expect(page.locator("#message-text")).to_have_text("12 new photos.")
        expect(shown).to_be_hidden()
    assert server.get("/inbox")["waiting"] == 12
    for path in (server.folder / "images").iterdir():
        with Image.open(path) as stored:
            exif = stored.getexif()
            assert (exif[0x0112], exif[0x0132]) == (1, TAKEN)
            assert stored.size == (16, 21)  # the model takes 8


def test_only_the_bad_file_is_left_out(browser, server, monkeypatch):
    limits = Limits(image_bytes=300_000, body_bytes=600_000)
    monkeypatch.setattr(gate, "LIMITS", limits)
    monkeypatch.setattr(app, "LIMITS", limits)
    with page_of(browser, server, "phone") as page:
        bad = {"large.jpg": bytes(400_000), "film.jpg": bytes(700_000)}
        choose(page, "#files", photos(3) | bad)
        said = page.locator("#message-text")
        expect(said).to_contain_text("3 new photos, 2 left out")
        expect(said).to_contain_text("large.jpg: the file is larger than 0 MiB")
        expect(said).to_contain_text("film.jpg: the file is too large")


def test_two_people_at_once(browser, server, patient):
    """A class is renamed while photos wait under its name; undo and redo take back one's own change
    alone; what has the focus keeps it.
    """
    teach(patient, images("blue", 3), "blue")
    patient.post("/inbox", files=images("blue", 2, 500))
    with page_of(browser, server, "phone") as page, page_of(browser, server) as other:
        page.get_by_role("tab", name="Photos").tap()
        card = page.locator("#cards .card").first
        card.focus()
        other.get_by_role("tab", name="Photos").click()
        other.get_by_role("button", name=re.compile("^Yes, ")).last.click()
        expect(page.locator("#named")).to_have_text("1 named")
        expect(card).to_be_focused()
        page.route("**/inbox?count=0", lambda route: route.abort())  # not told yet
        other.get_by_role("tab", name="Classes").click()
        other.get_by_role("button", name="Change blue").click()
        other.locator("#class-new").fill("sea")
        other.get_by_role("button", name="Rename").click()
        undo = other.get_by_role("button", name="Undo version 3")
        expect(undo).to_be_visible()
        page.unroute("**/inbox?count=0")
        page.get_by_role("button", name="Learn 1").tap()
        expect(page.locator("#message-text")).to_contain_text("Learned sea (1)")
        expect(page.locator("#lesson")).to_be_focused()
        undo.click()
        said = other.locator("#message-text")
        expect(said).to_contain_text("version 3 is served no longer: version 4 came")
        other.locator("#undo").click()
        expect(said).to_contain_text("Undid: learned 1 photo")
        expect(page.locator("#state")).to_contain_text("version 3")
        page.route("**/inbox?count=0", lambda route: route.abort())  # nor of the next
        other.locator("#undo").click()
        expect(said).to_contain_text("Undid: renamed 'blue'")
        page.locator("#redo").tap()
        expect(page.locator("#message-text")).to_contain_text("version 2 came after")
        other.locator("#redo").click()
        expect(said).to_contain_text("Did again: renamed 'blue'")
        other.get_by_role("tab", name="Versions").click()
        other.get_by_role("button", name="Delete all kept photos").click()
        expect(other.locator("#sure")).to_be_visible()
        expect(other.get_by_role("button", name="Cancel")).to_be_focused()
        other.keyboard.press("Enter")
    assert [one["name"] for one in server.get("/classes")] == ["red", "green", "sea"]


STEADY = """async (answers) => {
  const { steady } = await import(new URL("page/camera.js", document.baseURI));
  return answers.map(steady).at(-1);
}"""


def frame(red: float, prediction_set: list[str], known: bool) -> dict:
    """The answer to one frame of a camera, in which red has a probability."""
    classes = [{"name": "red", "probability": red}]
    classes.append({"name": "green", "probability": 1 - red})
    return {"classes": classes, "prediction_set": prediction_set, "known": known}


def test_boxes_bars_and_just_asking(browser, server):
    """A class's box names what is chosen for it or dropped on it; a question files nothing; all
    classes are bars; where several are likely, none is said to be it.
    """
    with page_of(browser, server, "phone", "dark") as page:
        page.get_by_role("tab", name="Photos").tap()
        page.get_by_label("Just ask").check()
        several = frame(0.6, ["red", "green"], True) | {"file": "a.jpg"}
        answer = {"images": [several]}
        page.route("**/classify*", lambda route: route.fulfill(json=answer))
        choose(page, "#files", photos(1))
        verdict = page.locator("#cards .verdict")
        expect(verdict).to_have_text("Not sure: red 60 %")
        expect(page.locator("#cards .hint").first).to_have_text("Or: green")
        page.unroute("**/classify*")
        ((_, (name, content)),) = images("red", 1)
        choose(page, "#files", {name: content})
        bars = page.locator("#cards .card").nth(0).locator(".bars li")
        expect(bars).to_have_count(2)
        expect(bars.nth(0)).to_have_text(re.compile("red"))
        page.get_by_role("button", name=f"Enlarge {name}").tap()
        expect(page.locator("#zoom-answer")).to_contain_text("red")
        expect(page.locator("#zoom-bars li")).to_have_count(2)
        check_looks(page, "enlarged")
        page.locator("#zoom").get_by_role("button", name="Close").tap()
        assert server.get("/inbox")["waiting"] == 0
        page.get_by_text("Add photos class by class").tap()
        page.locator("#box-name").fill("  ")
        page.get_by_role("button", name="Add a box").tap()
        expect(page.locator("#message-text")).to_have_text("Type a name first.")
        page.locator("#box-name").fill("navy")
        page.get_by_role("button", name="Add a box").tap()
        choose(page, "[aria-label='Photos of navy']", photos(2))
        expect(page.locator("#named")).to_have_text("2 named")
        drop(page, "[aria-label='navy']", {"dropped.png": content})
        expect(page.locator("#named")).to_have_text("3 named")
        page.get_by_role("button", name="Camera for red").tap()
        expect(page.locator("#camera-name")).to_have_value("red")
        page.locator("#camera").get_by_role("button", name="Close").tap()
        check_looks(page, "boxes")
        names = ["navy"] * 3
        assert becomes(lambda: list(server.get("/inbox")["names"].values()) == names)


def test_the_answer_of_a_second_is_the_mean_of_its_frames(browser, server):
    """The mean of the scores, and the classes of most of the prediction sets."""
    frames = [frame(0.9, ["red"], True), frame(0.2, ["green"], False)]
    frames.append(frame(0.7, ["red", "green"], False))
    with page_of(browser, server) as page:
        answer = page.evaluate(STEADY, frames)
    red = math.prod([0.9, 0.2, 0.7]) ** (1 / 3)
    green = math.prod([0.1, 0.8, 0.3]) ** (1 / 3)
    expected = {"red": red / (red + green), "green": green / (red + green)}
    found = {one["name"]: one["probability"] for one in answer["classes"]}
    assert found == pytest.approx(expected)
    assert list(found) == ["red", "green"]
    assert (answer["prediction_set"], answer["known"]) == (["red", "green"], False)
