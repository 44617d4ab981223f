"""The page on a phone, over a bad network, and for two people: nothing is lost, and nothing is said
that is not so.
"""

import io
import re
import time

import httpx
import numpy as np
import pytest
from PIL import Image

from cifnet_pl.serving import app, gate, service
from cifnet_pl.serving.gate import Limits
from tests.serving.browsing import (
    CONTRAST,
    no_wider_than_the_screen,
    page_of,
    picture,
    sync_api,
    until,
)
from tests.serving.services import images, teach

pytestmark = pytest.mark.system
expect = sync_api.expect
TAKEN = "2026:03:01 12:30:00"


def photo(number: int, orientation: int = 1) -> bytes:
    """A photo of a phone, lying on its side: too large to be sent as it is, with its time."""
    noise = np.random.default_rng(number).integers(0, 256, (700, 900, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif[0x0132] = TAKEN
    out = io.BytesIO()
    Image.fromarray(noise).save(out, "JPEG", quality=75, exif=exif)
    return out.getvalue()


def files(count: int, **others: bytes) -> list[dict]:
    """Files to choose: so many photos, and others by name."""
    chosen = {f"{number}.jpg": photo(number, 6) for number in range(count)}
    for name, content in others.items():
        chosen[f"{name}.jpg"] = content
    found = []
    for name, buffer in chosen.items():
        found.append({"name": name, "mimeType": "image/jpeg", "buffer": buffer})
    return found


def names_of(server) -> dict[str, str]:
    return server.get("/inbox")["names"]


def lose_one_answer(page) -> None:
    """Let the connection break once after the service has stored what it was sent."""

    def lose(route):
        route.fetch()
        route.abort()

    page.route(INBOX, lose, times=1)


INBOX = re.compile("/inbox$")


def test_a_cut_connection_loses_no_photo(browser, server):
    """Photos are small and upright on their way, with their time; what was not sent is said until
    it is, and asked about before the page is left.
    """
    with page_of(browser, server, "phone", "dark") as page:
        page.get_by_role("tab", name="Photos").tap()
        lose_one_answer(page)
        page.locator("#files").set_input_files(files(12))
        shown = page.locator("#upload-text")
        expect(shown).to_have_text("0 of 12 files stored, 12 not sent.")
        page.context.set_offline(True)
        expect(shown).to_have_text(
            re.compile("[01] of 12 files stored, 1[12] not sent.")
        )
        trouble = page.locator("#upload-trouble")
        expect(trouble).to_contain_text("does not answer")
        no_wider_than_the_screen(page)
        assert page.evaluate(CONTRAST) == []
        picture(page, "cut")
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
        chosen = files(3, large=bytes(400_000), film=bytes(700_000))
        page.locator("#files").set_input_files(chosen)
        said = page.locator("#message-text")
        expect(said).to_contain_text("3 new photos, 2 left out")
        expect(said).to_contain_text("large.jpg: the file is larger than 0 MiB")
        expect(said).to_contain_text("film.jpg: the file is too large")


def test_a_camera_counts_what_is_stored(browser, server):
    """What goes wrong is seen above the open camera, and an old answer goes."""
    with page_of(browser, server, "phone") as page:
        page.get_by_role("tab", name="Photos").tap()
        page.get_by_role("button", name="Camera", exact=True).tap()
        expect(page.locator("#camera-bars li")).to_have_count(2)
        page.context.set_offline(True)
        expect(page.locator("#camera-answer")).to_have_text("No answer")
        page.get_by_role("button", name="Take a photo").tap()
        taken = page.locator("#camera-taken")
        expect(taken).to_have_text("0 photos stored, 1 not yet.")
        trouble = page.locator("#camera #upload-trouble")
        expect(trouble).to_contain_text("does not answer")
        page.context.set_offline(False)
        expect(taken).to_have_text("1 photo stored.")
        expect(page.locator("#camera-answer")).to_contain_text("unlike")


def test_two_people_at_once(browser, server):
    """A class is renamed while photos wait under its name; undo takes back one's own change
    alone; what one has open stays open.
    """
    with httpx.Client(base_url=server.url, timeout=60) as http:
        teach(http, images("blue", 3), "blue")
        http.post("/inbox", files=images("blue", 2, 500))
    with page_of(browser, server, "phone") as page, page_of(browser, server) as other:
        page.get_by_role("tab", name="Photos").tap()
        cards = page.locator("#cards .card")
        cards.nth(0).get_by_text("Most similar").tap()
        cards.nth(0).get_by_text("Most similar").focus()
        other.get_by_role("tab", name="Photos").click()
        other.get_by_role("button", name=re.compile("^Yes, ")).last.click()
        expect(page.locator("#named")).to_have_text("1 named")
        expect(cards.nth(0).locator("details")).to_have_attribute("open", "")
        assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
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
        assert page.evaluate("document.activeElement.id") == "lesson"
        undo.click()
        said = other.locator("#message-text")
        expect(said).to_contain_text("version 3 is served no longer: version 4 came after")
        other.get_by_role("tab", name="Versions").click()
        other.get_by_role("button", name="Delete all kept photos").click()
        expect(other.locator("#sure")).to_be_visible()
        assert other.evaluate("document.activeElement.textContent") == "Cancel"
        other.keyboard.press("Enter")
    assert [one["name"] for one in server.get("/classes")] == ["red", "green", "sea"]


def test_a_lesson_says_what_it_does_once(browser, server, monkeypatch):
    """No message is read out again and again, and images that are known are not counted from 0."""
    learn = service.learn

    def slowly(*args, **options):
        time.sleep(1)  # the page looks four times
        return learn(*args, **options)

    monkeypatch.setattr(service, "learn", slowly)
    with page_of(browser, server) as page:
        httpx.post(f"{server.url}/inbox", files=images("blue", 2)).raise_for_status()
        page.get_by_role("tab", name="Photos").click()
        page.get_by_role("button", name="Select all shown").click()
        page.locator("#name").fill("blue")
        page.keyboard.press("Enter")
        expect(page.locator("#named")).to_have_text("2 named")
        page.evaluate(KEEP_ALERTS)
        page.locator("#learn").click()
        expect(page.locator("#message-text")).to_contain_text("Learned blue (2)")
        assert len(page.evaluate("window.alerts")) <= 2  # emptied, and filled
        assert set(page.evaluate("window.works")) == {"Learning…"}


KEEP_ALERTS = """() => {
  const keep = (id, texts) => {
    const element = document.getElementById(id);
    const changes = { childList: true, characterData: true, subtree: true };
    new MutationObserver(() => texts.push(element.textContent)).observe(element, changes);
  };
  window.alerts = [];
  window.works = [];
  keep("message-text", window.alerts);
  keep("work-text", window.works);
}"""


def test_back_goes_to_the_tab_before(browser, server):
    with page_of(browser, server, "phone") as page:
        expect(page.locator("#classes")).to_be_visible()
        page.get_by_role("tab", name="Versions").tap()
        page.get_by_role("tab", name="Photos").tap()
        page.go_back()
        expect(page.locator("#versions")).to_be_visible()
        page.go_back()
        expect(page.locator("#classes")).to_be_visible()
        page.evaluate("location.hash = '#versions'")
        expect(page.locator("#versions")).to_be_visible()
        assert page.locator("th:empty").count() == 0
    assert httpx.head(server.url).status_code == 200


def test_boxes_bars_and_just_asking(browser, server):
    """A class's box names what is chosen for it; a question files nothing; all classes are bars."""
    with page_of(browser, server, "phone", "dark") as page:
        page.get_by_role("tab", name="Photos").tap()
        page.get_by_label("Just ask").check()
        ((_, (name, content)),) = images("red", 1)
        asked = {"name": name, "mimeType": "image/png", "buffer": content}
        page.locator("#files").set_input_files(asked)
        bars = page.locator("#cards .card .bars li")
        expect(bars).to_have_count(2)
        expect(bars.nth(0)).to_have_text(re.compile("red"))
        assert server.get("/inbox")["waiting"] == 0
        page.get_by_text("Add photos class by class").tap()
        page.locator("#box-name").fill("navy")
        page.get_by_role("button", name="Add a box").tap()
        page.get_by_label("Photos of navy").set_input_files(files(2))
        expect(page.locator("#named")).to_have_text("2 named")
        expect(page.get_by_role("listitem", name="navy")).to_contain_text("2 waiting")
        page.get_by_role("button", name="Camera for red").tap()
        expect(page.locator("#camera-name")).to_have_value("red")
        page.locator("#camera").get_by_role("button", name="Close").tap()
        no_wider_than_the_screen(page)
        assert page.evaluate(CONTRAST) == []
    assert sorted(names_of(server).values()) == ["navy", "navy"]


def test_a_photo_is_taken_out_of_a_group(browser, server):
    """All photos that wait are grouped, not only those that are shown."""
    with httpx.Client(base_url=server.url, timeout=60) as http:
        for name in ("blue", "yellow"):
            http.post("/inbox", files=images(name, 40)).raise_for_status()
    with page_of(browser, server, "phone") as page:
        page.get_by_role("tab", name="Photos").tap()
        until(page, "document.querySelector('#sending').hidden")
        page.get_by_role("button", name="Group by likeness").tap()
        groups = page.locator("#groups .card")
        expect(groups.nth(0)).to_contain_text("photos alike")
        grouped = page.locator("#groups .thumb").count()
        assert grouped > 40
        first = groups.nth(0)
        size = first.locator(".thumb").count()
        first.locator(".thumb").nth(0).tap()
        first.locator("input").fill("mine")
        first.get_by_role("button", name=f"Name {size - 1}").tap()
        expect(page.locator("#named")).to_have_text(f"{size - 1} named")


# ---------------------------------------------------------------------- the till


def choose(page, content: bytes) -> None:
    """Ask the till about a photo that was taken with the phone's own camera."""
    chosen = {"name": "a.png", "mimeType": "image/png", "buffer": content}
    page.locator("#till-file").set_input_files(chosen)
    expect(page.locator("#till-tiles")).to_be_visible()


def test_the_till_keeps_what_it_says(browser, server):
    """The name of a photo that waits is changed, a learned one is offered to be moved; a tap counts
    once and can be taken back.
    """
    ((_, (_, learned)),) = images("blue", 1)
    ((_, (_, waits)),) = images("yellow", 1)
    with httpx.Client(base_url=server.url, timeout=60) as http:
        teach(http, images("blue", 1), "blue")
        (file,) = http.post("/inbox", files=images("yellow", 1)).json()["images"]
        http.post("/inbox/names", json={"names": {file: "banana"}})
    with page_of(browser, server, "phone", path="till") as page:
        said = page.locator("#message-text")
        expect(page.locator("#till-answer")).to_have_text("Not known")
        place = page.locator("#till-answer").bounding_box()
        choose(page, waits)
        page.locator("#till-name").fill("lemon")
        page.get_by_role("button", name="Save").tap()
        expect(said).to_contain_text("Kept as “lemon”")
        assert names_of(server) == {file: "lemon"}
        assert page.locator("#till-answer").bounding_box()["y"] == place["y"]
        page.get_by_role("button", name="Take back").tap()
        expect(said).to_have_text("Taken back.")
        assert names_of(server) == {file: "banana"}
        expect(page.locator("#today")).to_contain_text("0 photos,")
        choose(page, learned)
        page.get_by_role("button", name="It is red").dblclick()
        expect(said).to_contain_text("This photo was learned as “blue”.")
        expect(page.get_by_role("button", name="Move to “red”")).to_be_visible()
        expect(page.locator("#today")).to_contain_text("1 photo,")
        page.route("**/classify*", lambda route: None)  # the service hangs
        expect(page.locator("#till-answer")).to_contain_text("No answer")
    assert server.get("/days")[0]["asked"] == 1
