"""What the page takes in and shows, in a real browser: camera, paste, many photos, corrections, versions, read-only."""

import csv
import io

import pytest

from cifnet_pl.serving.service import Options
from tests.serving.browsing import CONTRAST, drop, no_wider_than_the_screen, page_of, picture, sync_api
from tests.serving.services import ThreadServer, heic, photo, zipped

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


def until(page, condition: str) -> None:
    """Wait for an expression; Playwright's own way needs `eval`, which the page's policy forbids."""
    for _ in range(100):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(condition)


def test_a_pasted_photo_is_asked_or_taught(browser, server):
    with page_of(browser, server) as page:
        page.evaluate(PASTE, list(photo("green", 70, 120)))
        expect(page.locator("#answers .card")).to_have_count(1)
        expect(page.locator("#answers .answer").first).to_contain_text("green")
        page.get_by_role("tab", name="Teach").click()
        page.evaluate(PASTE, list(photo("blue", 70, 120)))
        expect(page.locator("#teach-chosen")).to_have_text("Chosen: 1 photo.")
        expect(page.locator("#answers .card")).to_have_count(1)


def test_the_camera_takes_a_photo(browser, server):
    """Chromium's fake camera shows a green picture with a moving timer."""
    with page_of(browser, server) as page:
        page.get_by_role("button", name="Camera", exact=True).click()
        until(page, "document.getElementById('camera-video').videoWidth > 0")
        picture(page, "camera")
        page.get_by_role("button", name="Take a photo").click()
        expect(page.locator("#answers .card")).to_have_count(1)
        expect(page.locator("#answers .file")).to_contain_text("camera-")
        expect(page.locator("#camera")).to_be_hidden()
        assert page.evaluate("document.getElementById('camera-video').srcObject") is None


def test_a_camera_that_cannot_be_used_is_said(browser, server):
    with page_of(browser, server) as page:
        page.evaluate(NO_CAMERA)
        page.get_by_role("button", name="Camera", exact=True).click()
        expect(page.locator("#message")).to_have_text(
            "The camera cannot be used: there is none. Choose a photo instead."
        )


@pytest.mark.parametrize("width", ["desktop", "phone"])
def test_many_photos_become_a_table(width, browser, server):
    names = ["red"] * 8 + ["green"] * 8 + ["blue"] * 4
    files = {f"{i:02} {name}.png": photo(name, 70 + i, 60) for i, name in enumerate(names)}
    with page_of(browser, server, width) as page:
        drop(page, "ask-drop", {**files, "=1+1.png": b"no"})
        rows = page.locator("#answer-rows tr").filter(has=page.locator("td"))
        expect(rows).to_have_count(21)
        expect(page.locator("#ask-progress")).to_be_hidden()
        expect(page.locator("#answers .card")).to_have_count(0)
        expect(rows.nth(9)).to_contain_text("green")
        expect(rows.nth(17)).to_contain_text("This looks unlike what I learned.")
        expect(rows.nth(20)).to_contain_text("no image of a known format")
        page.locator("#answer-rows img").last.scroll_into_view_if_needed()
        until(page, "[...document.querySelectorAll('#answer-rows img')].at(-1).naturalWidth > 0")
        assert page.locator("#answer-rows img").count() == 20
        assert "21 photos" in page.locator("#ask-summary").inner_text()
        assert page.locator("#ask-summary").inner_text().endswith("1 unreadable.")
        no_wider_than_the_screen(page)
        assert page.evaluate(CONTRAST) == []
        picture(page, f"many-{width}")
        with page.expect_download() as download:
            page.get_by_role("button", name="Download as CSV").click()
        text = download.value.path().read_text(encoding="utf-8")
    table = list(csv.DictReader(io.StringIO(text)))
    assert [row["class"] for row in table[:16]] == names[:16]
    assert [(row["class"], row["known"]) for row in table[16:20]] == [("", "false")] * 4
    assert all(row["closest"] in ("red", "green") for row in table[:20])
    assert all(float(row["p_value"]) <= 0.05 for row in table[16:20])
    assert table[20]["file"] == "'=1+1.png"  # a spreadsheet must not run it
    assert table[20]["unreadable"] == "no image of a known format"


def test_an_answer_is_confirmed_or_corrected_and_taken_back(browser, server):
    """ "Yes, right" is one click, another class two; all cards show the served version's answers; the focus stays."""
    with page_of(browser, server) as page:
        drop(page, "ask-drop", {"a.png": photo("red", 70, 120), "b.png": photo("blue", 70, 120)})
        cards, state = page.locator("#answers .card"), page.locator("#state")
        first, second = cards.nth(0), cards.nth(1)
        expect(first.locator(".answer").first).to_contain_text("red")
        expect(second).to_contain_text("It could be: ")
        assert second.get_by_role("button", name="Yes").count() == 0
        first.get_by_role("button", name="Yes, a.png is red").click()
        expect(first).to_contain_text("Taught as “red”.")
        assert page.evaluate("document.activeElement.closest('.card') === document.querySelector('#answers .card')")
        expect(state).to_contain_text("version 2")
        second.get_by_label("Right class of b.png").fill("blue")
        second.get_by_role("button", name="Teach").click()
        expect(second.locator(".answer").first).to_contain_text("blue")
        expect(first.locator(".answer")).to_have_count(3)  # the other card has the new class's share, too
        page.get_by_role("button", name="Undo", exact=True).click()
        expect(second).to_contain_text("This looks unlike what I learned.")
        expect(first.locator(".answer")).to_have_count(2)
        expect(first).to_contain_text("Taught as “red”.")
        page.get_by_role("button", name="Undo", exact=True).click()
        expect(first).not_to_contain_text("Taught as")
        first.get_by_text("No, it is …").click()
        first.get_by_role("button", name="a.png is: green").click()
        expect(page.locator("#message")).to_contain_text("Learned 1 photo as “green”. Undo takes it back.")
        page.get_by_role("button", name="Undo", exact=True).click()
        expect(state).to_contain_text("version 1")
        page.get_by_role("button", name="Redo", exact=True).click()
        expect(state).to_contain_text("version 4")
        expect(page.get_by_role("button", name="Redo", exact=True)).to_be_disabled()
    assert {one["name"]: one["photos"] for one in server.get("/classes")} == {"red": 12, "green": 13}


def test_what_may_be_a_mistake_is_asked_about(browser, server):
    """Two class folders under one name; a name that is nearly another; a photo of another class."""
    with page_of(browser, server) as page:
        page.get_by_role("tab", name="Teach").click()
        lesson, sure = page.locator("#lesson"), page.locator("#sure")
        folders = {f"{name}/{i}.png": photo(name, i) for name in ("apple", "pear") for i in range(3)}
        drop(page, "teach-drop", {"fruit.zip": zipped(folders)})
        page.get_by_label("Name of the class").fill("fruit")
        page.get_by_role("button", name="Learn", exact=True).click()
        expect(sure).to_contain_text("2 folders ('apple', 'pear'): without a name each folder is a class.")
        picture(page, "sure")
        sure.get_by_role("button", name="Cancel").click()
        expect(page.locator("#message")).to_have_text("Nothing was changed.")
        page.get_by_label("Name of the class").fill("")
        page.get_by_role("button", name="Learn", exact=True).click()
        expect(lesson).to_contain_text("Learned apple (3), pear (3)")
        drop(page, "teach-drop", {"a.png": photo("apple", 9)})
        page.get_by_label("Name of the class").fill("Apple ")
        page.get_by_role("button", name="Learn", exact=True).click()
        sure.get_by_role("button", name="Use “apple”").click()
        expect(lesson).to_contain_text("Learned apple (1)")
        drop(page, "teach-drop", {"a.png": photo("apple", 9)})
        page.get_by_label("Name of the class").fill("pear")
        page.get_by_role("button", name="Learn", exact=True).click()
        expect(sure).to_contain_text("1 photo is of another class, too: a.png is 'apple'.")
        sure.get_by_role("button", name="Do it anyway").click()
        expect(lesson).to_contain_text("Learned pear (1)")
        page.get_by_role("tab", name="Change").click()
        page.locator("#change-old").select_option("pear")
        page.locator("#change-new").fill("apple")
        page.get_by_role("button", name="Rename").click()
        expect(sure).to_contain_text("there is a class 'apple' already")
        sure.get_by_role("button", name="Use “apple”").click()
        expect(page.locator("#message")).to_contain_text("Joined 'pear' to 'apple'")
    assert {one["name"]: one["photos"] for one in server.get("/classes")}.keys() == {"red", "green", "apple"}


def test_what_was_asked_stays_through_a_reload_until_it_is_cleared(browser, server):
    with page_of(browser, server) as page:
        drop(page, "ask-drop", {"a.png": photo("red", 70, 120), "b.png": photo("green", 70, 120)})
        cards = page.locator("#answers .card")
        expect(cards).to_have_count(2)
        assert page.title() == "Ask · model · cifnet"
        until(page, "document.getElementById('ask-progress').hidden")
        page.wait_for_timeout(200)
        page.reload()
        expect(cards).to_have_count(2)
        expect(cards.nth(1).locator(".answer").first).to_contain_text("green")
        page.get_by_role("button", name="Clear", exact=True).click()
        expect(cards).to_have_count(0)
        page.reload()
        expect(page.locator("#state")).to_contain_text("2 classes")
        expect(cards).to_have_count(0)


def test_formats_that_the_browser_cannot_show_are_shown(browser, server):
    with page_of(browser, server) as page:
        drop(page, "ask-drop", {"a.tif": photo("red", 70, 120, "TIFF"), "b.heic": heic("green")})
        expect(page.locator("#answers .card")).to_have_count(2)
        until(page, "[...document.querySelectorAll('.card .top > img')].every((one) => one.naturalWidth > 0)")
        assert page.locator("#answers .card .top > img").count() == 2
        assert ".heic" in page.locator("#ask-files").get_attribute("accept")


def promise(right):
    """Lets the service say how many photos are right."""

    def answer(route):
        found = route.fetch()
        route.fulfill(response=found, json={**found.json(), "right": right})

    return answer


def test_plain_words_first(browser, server):
    """The laboratory's words are behind "Details"; accuracy of these days is not promised for another day."""
    with page_of(browser, server) as page:
        page.get_by_role("tab", name="Look").click()
        figures = page.locator("#figures div")
        expect(figures.nth(2)).to_contain_text("Right on photos of these days")
        expect(figures.nth(3)).to_contain_text("Right on photos of another day (estimated)")
        shown = page.locator("body").inner_text()
        assert not [word for word in ("RidgeHead", " Wh", " MB", "stored samples") if word in shown]
        page.locator("#look").get_by_text("Details").click()
        expect(page.locator("#laboratory")).to_contain_text("RidgeHead")
        found = {"these_days": 96.5, "another_day": 71.0, "known": "found", "says": ["of these days", "of another day"]}
        page.route("**/look", promise(found))
        page.get_by_role("tab", name="Look").click()
        expect(figures.nth(2).locator("dd")).to_have_text("96.5 %")
        expect(figures.nth(3).locator("dd")).to_have_text("71.0 %")
        expect(page.locator("#about-days")).to_contain_text("Of these days. Of another day. What helps most")
        page.route("**/look", promise({**found, "another_day": None, "known": "few"}))
        page.get_by_role("tab", name="Look").click()
        expect(figures.nth(3).locator("dd")).to_have_text("too few photos to say")


LONG = ["مرحبا بالعالم الجميل", "🐟🎣 bass 👩‍👩‍👧‍👦", "W" * 150, "<b>a sentence</b>, with commas, " * 6]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", ["desktop", "phone"])
def test_strange_names_fit_on_every_screen(width, scheme, browser, server):
    """Right-to-left, joined emoji, no place to break, HTML: as they are, in two lines at most, readable."""
    with page_of(browser, server, width, scheme) as page:
        page.get_by_role("tab", name="Change").click()
        for old, new in zip(["red", LONG[0], LONG[1], LONG[2]], LONG, strict=True):
            page.locator("#change-old").select_option(old)
            page.locator("#change-new").fill(new)
            page.get_by_role("button", name="Rename").click()
            expect(page.locator("#change-old")).to_contain_text(new.strip())
        expect(page.locator("#versions tr")).to_have_count(6)
        expect(page.locator("#versions b")).to_have_count(0)
        heights = page.evaluate("[...document.querySelectorAll('#versions td .clamp')].map((one) => one.clientHeight)")
        assert max(heights) < 60
        seen = [*screens(page, width, scheme)]
        assert len(seen) == 4
        page.get_by_role("tab", name="Change").click()
        expect(page.locator("#versions")).to_contain_text(LONG[1])


def screens(page, width, scheme):
    """Each screen with something on it: no wider than the window, every text readable."""
    for name in ("Ask", "Teach", "Look", "Change"):
        page.get_by_role("tab", name=name).click()
        if name == "Ask":
            drop(page, "ask-drop", {f"{'long ' * 40}{i}.png": photo(c, 70, 60) for i, c in enumerate(("red", "blue"))})
            expect(page.locator("#answers .card")).to_have_count(2)
        if name == "Teach":
            drop(page, "teach-drop", {"a.png": photo("blue", 70, 60), "b.png": b"no"})
            page.get_by_label("Name of the class").fill("blue")
            page.get_by_role("button", name="Try without learning").click()
            expect(page.locator("#lesson")).to_contain_text("Would learn")
        if name == "Look":
            expect(page.locator("#classes tr")).to_have_count(3)
            page.get_by_role("button", name="Audit").click()
            expect(page.locator("#audited")).to_contain_text("No photos of two classes")
        no_wider_than_the_screen(page)
        assert page.evaluate(CONTRAST) == [], name
        picture(page, f"strange-{name}-{width}-{scheme}")
        yield name


def test_read_only_shows_nothing_that_changes_the_model(browser, tmp_path):
    server = ThreadServer(tmp_path / "w", options=Options(read_only=True))
    try:
        with page_of(browser, server) as page:
            expect(page.locator("#state")).to_contain_text("read-only")
            page.locator("#tab-ask").focus()
            page.keyboard.press("ArrowRight")
            assert page.evaluate("document.activeElement.id") == "tab-look"
            drop(page, "ask-drop", {"a.png": photo("red", 70, 120), "b.png": photo("blue", 70, 120)})
            page.get_by_role("tab", name="Ask").click()
            expect(page.locator("#answers .card")).to_have_count(2)
            for name in ("Ask", "Look", "Change"):
                page.get_by_role("tab", name=name).click()
                expect(page.locator(f"#{name.lower()}")).to_be_visible()
                shown = page.locator("button:visible").all_inner_texts()
                assert not {"Teach", "Undo", "Redo", "Rename", "Go to", "Group by likeness"} & set(shown), shown
                assert not [text for text in shown if "Forget" in text or "Delete" in text]
            page.goto(f"{server.url}#teach")
            page.reload()
            expect(page.locator("#ask")).to_be_visible()
    finally:
        server.stop()


def test_photos_that_could_not_be_asked_are_not_kept(browser, server):
    with page_of(browser, server) as page:
        page.route("**/classify", lambda route: route.abort())
        drop(page, "ask-drop", {"a.png": photo("red", 70, 120)})
        expect(page.locator("#message")).to_contain_text("The service does not answer.")
        expect(page.locator("#ask-actions")).to_be_hidden()
        page.unroute("**/classify")
        drop(page, "ask-drop", {"b.png": photo("red", 71, 120)})
        expect(page.locator("#answers .card")).to_have_count(1)
