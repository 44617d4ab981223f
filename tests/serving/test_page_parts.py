"""What the page takes in and shows, in a real browser: camera, paste, boxes, many images,
questions, read-only.
"""

import csv
import io
import re
from hashlib import sha256

import httpx
import numpy as np
import pytest

from cifnet_pl.serving.answering import ServiceOptions
from tests.serving.browsing import (
    CONTRAST,
    WIDTHS,
    drop,
    keep_texts,
    no_wider_than_the_screen,
    page_of,
    picture,
    sync_api,
    until,
)
from tests.serving.services import (
    ThreadServer,
    as_png,
    heic,
    image,
    images,
    pixels,
    teach,
    tree,
)

pytestmark = pytest.mark.system
expect = sync_api.expect
PASTE = """(bytes) => {
  const data = new DataTransfer();
  data.items.add(new File([new Uint8Array(bytes)], "image.png", { type: "image/png" }));
  document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true }));
}"""


NO_CAMERA = """() => {
  navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException("", "NotFoundError"));
}"""


def test_a_pasted_image_waits(browser, server):
    with page_of(browser, server) as page:
        page.evaluate(PASTE, list(image("green", 70, 120)))
        expect(page.locator("#cards .verdict")).to_contain_text("green")


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
    is called.
    """
    with page_of(browser, server) as page:
        page.get_by_role("tab", name="Photos").click()
        page.get_by_role("button", name="Camera", exact=True).click()
        until(page, "document.getElementById('camera-video').videoWidth > 0")
        expect(page.locator("#camera-answer")).to_have_text(
            "This looks unlike what I learned."
        )
        page.locator("#camera-name").fill("timer")
        for taken in ("1 photo stored.", "2 photos stored."):
            page.get_by_role("button", name="Take a photo").click()
            expect(page.locator("#camera-taken")).to_have_text(taken)
            wait_for_another_picture(page)
        no_wider_than_the_screen(page)
        assert page.evaluate(CONTRAST) == []
        picture(page, "camera")
        expect(page.locator("#named")).to_have_text("2 named")
        page.locator("#camera").get_by_role("button", name="Close").click()
        assert (
            page.evaluate("document.getElementById('camera-video').srcObject") is None
        )
        page.get_by_role("button", name="Learn 2").click()
        expect(page.locator("#message-text")).to_contain_text("Learned timer (2)")
        page.get_by_role("button", name="Camera", exact=True).click()
        expect(page.locator("#camera-answer")).to_contain_text("timer")


LISTS = re.compile(r"/inbox\?count=[1-9]")
"""Requests for the list of images; others ask for their number alone."""


def test_a_list_that_comes_late_gives_no_name_again(browser, server):
    """The list that is asked for when two images are named arrives when one name has been taken
    back.
    """
    late = []

    def hold(route):
        response = route.fetch()
        if len(response.json()["names"]) == 2:
            late.append((route, response))
        else:
            route.fulfill(response=response)

    with page_of(browser, server) as page:
        drop(page, "drop", {f"{n}/1.png": image(n, 1) for n in ("apple", "pear")})
        expect(page.locator("#cards .card")).to_have_count(2)
        # Nothing else asks for a newer list meanwhile.
        page.route(re.compile(r"/inbox\?count=0"), lambda route: None)
        page.route(LISTS, hold)
        page.get_by_role("button", name="Name 2 by their folders").click()
        while not late:
            page.wait_for_timeout(50)
        # Only a list that is asked for from here on has three images.
        httpx.post(f"{server.url}/inbox", files=images("fig", 1)).raise_for_status()
        page.get_by_role("button", name="Take back the name of pear/1.png").click()
        expect(page.locator("#named")).to_have_text("1 named")
        keep_texts(page, "named")
        page.unroute(LISTS, hold)
        for route, response in late:
            route.fulfill(response=response)
        expect(page.locator("#cards .card")).to_have_count(3)
        assert "2 named" not in page.evaluate("window.texts")


def test_a_camera_that_cannot_be_used_is_said(browser, server):
    with page_of(browser, server) as page:
        page.get_by_role("tab", name="Photos").click()
        page.evaluate(NO_CAMERA)
        page.get_by_role("button", name="Camera", exact=True).click()
        said = "The camera cannot be used: there is none. Choose a photo instead."
        expect(page.locator("#message-text")).to_have_text(said)


def test_a_box_asks_about_a_part(browser, server):
    """Half red, half green: each half is answered as what it is, and one is kept as an image of its
    own.
    """
    both = np.concatenate([pixels("red", 70, 120), pixels("green", 70, 120)], axis=1)
    with page_of(browser, server) as page:
        drop(page, "drop", {"both.png": as_png(both)})
        page.get_by_role("button", name="Enlarge both.png").click()
        until(page, "document.getElementById('zoom-photo').naturalWidth === 240")
        frame = page.locator("#zoom-photo").bounding_box()
        for part, name in ((0.1, "red"), (0.6, "green")):
            page.mouse.move(frame["x"] + part * frame["width"], frame["y"] + 10)
            page.mouse.down()
            page.mouse.move(
                frame["x"] + (part + 0.3) * frame["width"], frame["y"] + 90, steps=3
            )
            page.mouse.up()
            expect(page.locator("#zoom-answer")).to_have_text(re.compile(f"^{name} "))
        picture(page, "zoom")
        page.get_by_role("button", name="Keep this part").click()
        expect(page.locator("#cards .card")).to_have_count(2)


def test_many_images_are_named_by_a_range_and_listed(browser, server):
    """Uncertain ones first; click and shift select a range, one name serves for all; the CSV has
    every image.
    """
    names = ["red"] * 8 + ["green"] * 8 + ["blue"] * 4
    files = {
        f"{i:02} {name}.png": image(name, 70 + i, 60) for i, name in enumerate(names)
    }
    with page_of(browser, server) as page:
        drop(page, "drop", {**files, "=1+1.png": image("red", 300, 60)})
        cards = page.locator("#cards .card")
        expect(cards).to_have_count(21)
        expect(page.locator("#progress")).to_be_hidden()
        with page.expect_download() as download:
            page.get_by_role("button", name="Download as CSV").click()
        cards.nth(0).locator(".picture").click()
        cards.nth(3).locator(".picture").click(modifiers=["Shift"])
        expect(page.locator("#selected")).to_have_text("4 selected")
        no_wider_than_the_screen(page)
        assert page.evaluate(CONTRAST) == []
        picture(page, "many")
        page.get_by_label("Class of the selected photos", exact=True).fill("blue")
        page.keyboard.press("Enter")
        cards.nth(20).get_by_role("button", name="Yes, ").click()
        cards.nth(20).get_by_role("button", name="Take back").click()
        expect(cards.nth(20).get_by_role("button", name="Yes, ")).to_be_visible()
        cards.nth(20).locator(".picture").click()
        page.get_by_role("button", name="Take away").click()
        expect(cards).to_have_count(20)
        page.get_by_role("button", name="Put back").click()
        expect(cards).to_have_count(21)
        page.locator("#learn").click()
        expect(page.locator("#message-text")).to_contain_text("blue (4)")
        text = download.value.path().read_text(encoding="utf-8")
    table = {row["file"]: row for row in csv.DictReader(io.StringIO(text))}
    assert all(table[file]["closest"] in ("red", "green") for file in files)
    assert [table[file]["class"] for file in list(files)[:16]] == names[:16]
    assert [
        (table[file]["class"], table[file]["known"]) for file in list(files)[16:]
    ] == [("", "false")] * 4
    assert "'=1+1.png" in table  # a spreadsheet must not run it
    assert {one["name"]: one["images"] for one in server.get("/classes")}["blue"] == 4


def test_a_reload_keeps_images_and_names(browser, server):
    """What waits is kept by the service, for every browser, and so are names."""
    with page_of(browser, server) as page:
        drop(
            page,
            "drop",
            {"a.png": image("red", 70, 120), "b.png": image("green", 70, 120)},
        )
        with page.expect_response("**/inbox/names"):
            page.get_by_role("button", name="Yes, a.png is red").click()
        assert page.title() == "Photos · model · cifnet"
        page.reload()
        expect(page.locator("#named")).to_have_text("1 named")
        with page_of(browser, server) as other:
            expect(other.locator("#cards .card")).to_have_count(2)
            expect(other.locator("#named")).to_have_text("1 named")
            other.get_by_role("button", name="Yes, b.png is green").click()
            other.get_by_role("button", name="Learn 2").click()
            expect(other.locator("#cards .card")).to_have_count(0)
        # What others decide goes away here, too.
        expect(page.locator("#cards .card")).to_have_count(0)
        expect(page.locator("#state")).to_contain_text("version 2")


def test_a_click_counts_where_the_list_arrives_before_its_release(browser, server):
    """The cards are replaced after it, and show what it did."""
    with page_of(browser, server) as page:
        drop(page, "drop", {"a.png": image("red", 70, 120)})
        cards = page.locator("#cards .card")
        expect(cards).to_have_count(1)
        expect(page.locator("#sending")).to_be_hidden()
        select = page.get_by_role("button", name="Select a.png")
        select.hover()
        page.mouse.down()
        with page.expect_response(LISTS) as list_of_two:
            httpx.post(f"{server.url}/inbox", files=images("red", 1))
        list_of_two.value.finished()
        page.evaluate(TWO_FRAMES)
        assert cards.count() == 1
        page.mouse.up()
        expect(page.locator("#selected")).to_have_text("1 selected")
        expect(cards).to_have_count(2)
        expect(select).to_have_attribute("aria-pressed", "true")


TWO_FRAMES = (
    "() => new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))"
)


def test_what_may_be_a_mistake_is_asked_about(browser, server):
    """A name that is nearly another; an image of another class; a class that gets the name of
    another one.
    """
    with page_of(browser, server) as page:
        sure = page.locator("#sure")
        message = page.locator("#message-text")
        cards = page.locator("#cards .card")
        fruit = {
            "apple/1.png": image("apple", 1),
            "pear/1.png": image("pear", 1),
            "x/2.png": image("pear", 2),
        }
        drop(page, "drop", fruit)
        expect(cards).to_have_count(3)
        page.get_by_role("button", name="Name 3 by their folders").click()
        page.get_by_role("button", name="Take back the name of x/2.png").click()
        page.get_by_role("button", name="Learn 2").click()
        expect(cards).to_have_count(1)
        cards.locator(".picture").click()
        page.locator("#name").fill(" Pear")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Learn 1").click()
        expect(sure).to_contain_text(
            "'Pear' and 'pear' differ by capitals, spaces or Unicode form only"
        )
        sure.get_by_role("button", name="Cancel").click()
        expect(message).to_have_text("Nothing was changed.")
        page.get_by_role("button", name="Learn 1").click()
        sure.get_by_role("button", name="Use “pear”").click()
        expect(message).to_contain_text("Learned pear (1)")
        page.get_by_role("tab", name="Classes").click()
        page.get_by_role("button", name="Change pear").click()
        page.locator("#class-new").fill("apple")
        page.get_by_role("button", name="Rename").click()
        expect(sure).to_contain_text("there is a class 'apple' already")
        sure.get_by_role("button", name="Join both").click()
        expect(message).to_contain_text("Joined 'pear' to 'apple'")
    assert {one["name"]: one["images"] for one in server.get("/classes")} == {
        "red": 12,
        "green": 12,
        "apple": 3,
    }


@pytest.mark.parametrize("width", WIDTHS)
def test_a_class_is_split_by_groups_and_a_wrong_image_is_moved(width, browser, server):
    taught = {f"both/{i}.png": image("blue", i, 60) for i in range(20)}
    taught |= {f"both/{i}.png": image("yellow", i, 60) for i in range(20, 24)}
    taught |= {f"pink/{i}.png": image("pink", 50 + i) for i in range(20)}
    taught["pink/20.png"] = image("blue", 70)
    with httpx.Client(base_url=server.url, timeout=60) as http:
        teach(http, [("files", one) for one in taught.items()]).raise_for_status()
    with page_of(
        browser, server, width, "dark" if width == "phone" else "light"
    ) as page:
        message = page.locator("#message-text")
        page.get_by_role("button", name="Photos of both").click()
        pictures = page.locator("#class-groups .picture")
        expect(pictures).to_have_count(24)
        page.get_by_role("button", name="Group by likeness").last.click()
        yellow = sha256(image("yellow", 20, 60)).hexdigest()
        of_yellow = page.locator(f'#class-groups > div:has([data-photo^="{yellow}"])')
        of_yellow.get_by_role("button", name="Select group").click()
        expect(page.locator("#move-count")).to_have_text("4 selected")
        no_wider_than_the_screen(page)
        assert page.evaluate(CONTRAST) == []
        picture(page, f"split-{width}")
        page.locator("#move-name").fill("yellow")
        page.get_by_role("button", name="Move").click()
        expect(message).to_contain_text("Moved 4 photos of 'both' to 'yellow'")
        expect(pictures).to_have_count(20)
        page.get_by_role("button", name="Close").last.click()
        page.get_by_role("button", name="Audit").click()
        page.get_by_role("button", name="It is both").click()
        expect(message).to_contain_text("Moved 1 photo of 'pink' to 'both'")
        page.locator("#message").get_by_role("button", name="Undo").click()
        expect(message).to_contain_text("Undid: moved 1 photo")
    counts = {one["name"]: one["images"] for one in server.get("/classes")}
    assert counts == {"red": 12, "green": 12, "pink": 21, "both": 20, "yellow": 4}


def test_forgotten_for_good(browser, server):
    with page_of(browser, server) as page:
        drop(
            page,
            "drop",
            {"blue/1.png": image("blue", 1), "red/1.png": image("red", 99)},
        )
        page.get_by_role("button", name="Name 2 by their folders").click()
        page.get_by_role("button", name="Learn 2").click()
        page.get_by_role("tab", name="Classes").click()
        page.get_by_role("button", name="Change blue").click()
        page.get_by_role("button", name="Forget this class").click()
        sure = page.locator("#sure")
        sure.get_by_role("button", name="Forget, and delete for good").click()
        expect(sure).to_contain_text("Delete 1 photo and 2 other versions for good?")
        sure.get_by_role("button", name="Delete for good").click()
        expect(page.locator("#message-text")).to_contain_text(
            "Deleted 1 photo and 2 other versions for good"
        )
    assert (
        len(tree(server.folder / "images"))
        == len(tree(server.folder / "versions") & {"000003"})
        == 1
    )


def test_formats_that_the_browser_cannot_show_are_shown(browser, server):
    with page_of(browser, server) as page:
        drop(
            page,
            "drop",
            {"a.tif": image("red", 70, 120, "TIFF"), "b.heic": heic("green")},
        )
        expect(page.locator("#cards .card")).to_have_count(2)
        until(
            page,
            "[...document.querySelectorAll('.card img')].every((one) => one.naturalWidth > 0)",
        )
        assert page.locator("#cards .card img").count() == 2
        assert ".heic" in page.locator("#files").get_attribute("accept")


def promise(right):
    """Lets the service say how many images are right."""

    def answer(route):
        found = route.fetch()
        route.fulfill(response=found, json={**found.json(), "accuracy": right})

    return answer


def test_plain_words_first(browser, server):
    """The laboratory's words are behind "Details"; accuracy of these days is not promised for
    another day.
    """
    red = {"name": "red", "accuracy": 71.2, "interval": [50, 86.4]}
    red |= {"confused_with": ["green"], "rarely_predicted": False}
    green = {"name": "green", "accuracy": 3.0, "interval": None}
    green |= {"confused_with": ["red"], "rarely_predicted": True}
    found = {"loo_accuracy": 96.5, "loo_accuracy_interval": None}
    found |= {"new_group_accuracy": 71.0, "new_group_accuracy_interval": [62.2, 79.8]}
    found |= {"kind": "found", "message": "Photos taken together count as one."}
    answers = {"classes": [red, green]}
    with page_of(browser, server) as page:
        figures = page.locator("#figures div")
        expect(figures.nth(4)).to_contain_text("too few to say")
        shown = page.locator("body").inner_text()
        assert not [word for word in ("RidgeHead", " Wh", " MB") if word in shown]
        page.locator("#classes").get_by_text("Details").click()
        expect(page.locator("#laboratory")).to_contain_text("RidgeHead")
        page.route("**/summary", promise(found))
        page.route("**/classes/predictions", lambda route: route.fulfill(json=answers))
        page.get_by_role("tab", name="Classes").click()
        expect(figures.nth(2)).to_contain_text("Right on photos of these days")
        expect(figures.nth(2).locator("dd")).to_have_text("96.5 %")
        expect(figures.nth(3)).to_contain_text("another day (estimated)")
        expect(figures.nth(3).locator("dd")).to_have_text("71 % (62 to 80)")
        rows = page.locator("#class-table tr")  # the worst first
        expect(rows.nth(1)).to_contain_text("3 % hardly ever answered")
        expect(rows.nth(2).get_by_label("71 % (50 to 86)")).to_be_visible()
        few = {**found, "new_group_accuracy": None, "kind": "few"}
        page.route("**/summary", promise(few))
        page.get_by_role("tab", name="Classes").click()
        expect(figures.nth(3).locator("dd")).to_have_text("too few photos to say")


LONG = [
    "مرحبا بالعالم الجميل",
    "🐟🎣 bass 👩‍👩‍👧‍👦",
    "W" * 150,
    "<b>a sentence</b>, with commas, " * 6,
]


@pytest.mark.parametrize(("width", "scheme"), [("desktop", "light"), ("phone", "dark")])
def test_strange_names_fit_on_every_screen(width, scheme, browser, server):
    """Right-to-left, joined emoji, no place to break, HTML: as they are, in three lines at most,
    readable.
    """
    service = server.service
    for old, new in zip(["red", LONG[0], LONG[1], LONG[2]], LONG, strict=True):
        service.submit(service.rename, old, new).end.result(60)
    with page_of(browser, server, width, scheme) as page:
        drop(
            page,
            "drop",
            {
                f"{'long ' * 40}{i}.png": image(c, 70, 60)
                for i, c in enumerate(("red", "blue"))
            },
        )
        expect(
            page.locator("#cards .verdict").filter(has_text="sentence")
        ).to_have_count(1)
        for name, count in (("Versions", 6), ("Classes", 3), ("Photos", 0)):
            page.get_by_role("tab", name=name).click()
            expect(page.locator(f"#{name.lower()} table tr")).to_have_count(count)
            expect(page.locator("main b")).to_have_count(0)
            heights = page.evaluate(
                "[...document.querySelectorAll('main .clamp')].map((one) => one.clientHeight)"
            )
            assert max(heights) < 80
            no_wider_than_the_screen(page)
            assert page.evaluate(CONTRAST) == [], name
            picture(page, f"strange-{name}-{width}-{scheme}")


def test_read_only_answers_and_shows_nothing_that_changes_the_model(browser, tmp_path):
    changes = {"Undo", "Redo", "Change", "Go to", "Group by likeness", "Learn", "Name"}
    photos = {"a.png": image("red", 70, 120), "c.png": b"no"}
    with ThreadServer(tmp_path / "w", options=ServiceOptions(read_only=True)) as server:
        with page_of(browser, server) as page:
            expect(page.locator("#state")).to_contain_text("read-only")
            drop(page, "drop", photos)
            verdicts = page.locator("#cards .verdict")
            expect(verdicts.nth(0)).to_contain_text("red")
            expect(verdicts.nth(1)).to_have_text("Cannot be read")
            for name in ("Photos", "Classes", "Versions"):
                page.get_by_role("tab", name=name).click()
                expect(page.locator(f"#{name.lower()}")).to_be_visible()
                shown = page.locator("button:visible").all_inner_texts()
                assert not changes & set(shown)
                assert not [
                    text for text in shown if text.startswith(("Yes", "Delete"))
                ]
            page.get_by_role("tab", name="Photos").click()
            page.get_by_role("button", name="Clear answers").click()
            expect(page.locator("#cards .card")).to_have_count(0)
        assert tree(tmp_path / "w" / "images") == set()
