"""The page in a real browser without a network, at desktop and phone width: drop, answer, teach, undo."""

import time

import pytest

from cifnet_pl.serving.app import Access
from tests.serving.browsing import CONTRAST, WIDTHS, drop, no_wider_than_the_screen, page_of, picture, sync_api
from tests.serving.services import ThreadServer, photo, zipped

pytestmark = pytest.mark.system


@pytest.mark.parametrize("width", WIDTHS)
def test_drop_answer_teach_undo(width, browser, server):
    expect = sync_api.expect
    with page_of(browser, server, width) as page:
        files = {f"{name}.png": photo(name, 70, 120) for name in ("red", "green", "blue")}
        drop(page, "ask-drop", {**files, "<b>broken</b>.png": b"no"})
        cards = page.locator("#answers .card")
        expect(cards).to_have_count(4)
        expect(cards.nth(0).locator(".answer").first).to_contain_text("red")
        expect(cards.nth(1).locator(".answer").first).to_contain_text("green")
        expect(cards.nth(2)).to_contain_text("This looks unlike what I learned.")
        expect(cards.nth(3)).to_contain_text("<b>broken</b>.png")
        expect(cards.nth(3)).to_contain_text("no image of a known format")
        no_wider_than_the_screen(page)
        picture(page, f"ask-{width}")

        cards.nth(2).locator("input").fill("blue")
        cards.nth(2).get_by_role("button", name="Teach").click()
        expect(page.locator("#message")).to_contain_text("Learned 1 photo as “blue”")
        expect(cards.nth(2).locator(".answer").first).to_contain_text("blue")
        expect(cards.nth(2).locator(".none")).to_have_count(0)

        page.get_by_role("tab", name="Teach").click()
        drop(page, "teach-drop", {"photos.zip": zipped({f"yellow/{i}.png": photo("yellow", i, 60) for i in range(8)})})
        drop(page, "teach-drop", {"yellow/x.png": b"no"})
        expect(page.locator("#teach-chosen")).to_have_text("Chosen: 1 photo and 1 zip file.")
        page.get_by_label("Name of the class").fill("yellow")
        page.get_by_role("button", name="Try without learning").click()
        expect(page.locator("#lesson")).to_contain_text("Would learn yellow (8). Nothing was changed.")
        page.get_by_role("button", name="Learn", exact=True).click()
        expect(page.locator("#lesson")).to_contain_text("Learned yellow (8)")
        expect(page.locator("#lesson")).to_contain_text("Too few photos to say how well")
        expect(page.locator("#lesson")).to_contain_text("no image of a known format")
        expect(page.locator("#state")).to_contain_text("4 classes")
        no_wider_than_the_screen(page)
        picture(page, f"teach-{width}")

        page.get_by_role("tab", name="Look").click()
        expect(page.locator("#classes tr")).to_have_count(5)
        expect(page.locator("#classes img")).to_have_count(5)
        expect(page.locator("#curve circle")).to_have_count(1)
        expect(page.locator("#curve")).to_contain_text("Not shown: 1 lesson of fewer than 50 photos")
        page.get_by_role("button", name="Audit").click()
        expect(page.locator("#audited")).to_contain_text("near-copies of one alone are kept: blue, yellow.")
        expect(page.locator("#audited circle").first).to_be_visible()
        no_wider_than_the_screen(page)
        picture(page, f"look-{width}")

        page.get_by_role("tab", name="Change").click()
        expect(page.locator("#versions tr")).to_have_count(4)
        page.get_by_role("button", name="Undo", exact=True).click()
        expect(page.locator("#message")).to_contain_text("Undid: learned 8 photos of 'yellow'")
        expect(page.locator("#state")).to_contain_text("3 classes")
        expect(page.locator("#versions tr.current td").first).to_contain_text("2")
        page.locator("#change-old").select_option("blue")
        page.get_by_role("button", name="Forget this class").click()
        page.locator("#sure").get_by_role("button", name="Forget").click()
        expect(page.locator("#message")).to_contain_text(
            "the model keeps nothing of its photos. 1 photo of it and the versions"
        )
        page.locator("#change-new").fill("<img src=x onerror=alert(1)>")
        page.get_by_role("button", name="Rename").click()
        expect(page.locator("#message")).to_contain_text("to '<img src=x onerror=alert(1)>'")
        expect(page.locator("#versions img")).to_have_count(0)
        no_wider_than_the_screen(page)
        picture(page, f"change-{width}")
        page.get_by_role("button", name="Delete all kept photos").click()
        page.locator("#sure").get_by_role("button", name="Delete").click()
        expect(page.locator("#message")).to_contain_text("Deleted 9 photos and all other versions for good")
    assert [one["name"] for one in server.get("/classes")] == ["<img src=x onerror=alert(1)>", "green"]


def test_a_change_is_told_once_it_is_shown(browser, server):
    """Whoever acts at once on "Forgot 'red'" renames no class that is gone, however slow the network is."""
    with page_of(browser, server) as page:
        page.get_by_role("tab", name="Change").click()
        page.route("**/classes", lambda route: (time.sleep(1), route.continue_()))
        page.locator("#change-old").select_option("red")
        page.get_by_role("button", name="Forget this class").click()
        page.locator("#sure").get_by_role("button", name="Forget").click()
        sync_api.expect(page.locator("#message")).to_contain_text("Forgot 'red'")
        assert page.locator("#change-old").input_value() == "green"
        assert page.locator("#state").text_content().startswith("1 class,")


def test_a_change_that_cannot_be_shown_is_told(browser, server):
    with page_of(browser, server) as page:
        page.get_by_role("tab", name="Change").click()
        page.route("**/classes", lambda route: route.abort())
        page.locator("#change-new").fill("rouge")
        page.get_by_role("button", name="Rename").click()
        message = page.locator("#message")
        sync_api.expect(message).to_contain_text(
            "is served. The page could not be refreshed: The service does not answer."
        )


def test_by_keyboard_in_the_dark(browser, server):
    """From tab to tab with the arrow keys; every control can be reached; text is readable on its background."""
    with page_of(browser, server, scheme="dark") as page:
        page.locator("#tab-ask").focus()
        for name in ("teach", "look", "change", "ask"):
            page.keyboard.press("ArrowRight")
            sync_api.expect(page.locator(f"#{name}")).to_be_visible()
            assert page.evaluate("document.activeElement.id") == f"tab-{name}"
            unreadable = page.evaluate(CONTRAST)
            assert unreadable == [], unreadable
        reached = set()
        for _ in range(30):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.id"))
        assert {"ask-files", "ask-camera-open"} <= reached
        drop(page, "ask-drop", {"red.png": photo("red", 70, 120)})
        sync_api.expect(page.locator("#answers .card")).to_have_count(1)
        picture(page, "dark")


def test_readable_in_the_light(browser, server):
    with page_of(browser, server) as page:
        for name in ("Teach", "Look", "Change", "Ask"):
            page.get_by_role("tab", name=name).click()
            assert page.evaluate(CONTRAST) == []


def test_groups_are_named_once(browser, server):
    with page_of(browser, server) as page:
        files = {f"{name}-{i}.png": photo(name, i, 60) for name in ("blue", "yellow") for i in range(4)}
        drop(page, "ask-drop", files)
        sync_api.expect(page.locator("#answers .card")).to_have_count(8)
        page.get_by_role("button", name="Group by likeness").click()
        groups = page.locator("#groups .card")
        sync_api.expect(groups).to_have_count(2)
        groups.nth(0).locator("input").fill("blue")
        groups.nth(0).get_by_role("button", name="Teach 4").click()
        sync_api.expect(page.locator("#message")).to_contain_text("Learned 4 photos as “blue”")
        picture(page, "groups")


def test_the_token_is_asked_for(browser, tmp_path):
    server = ThreadServer(tmp_path / "w", Access(token="correct-horse-battery"))
    try:
        context = browser.new_context()
        page = context.new_page()
        page.goto(server.url)
        page.locator("#token").fill("correct-horse-battery")
        page.get_by_role("button", name="Continue").click()
        sync_api.expect(page.locator("#state")).to_contain_text("2 classes")
        assert context.cookies() == []
        context.close()
    finally:
        server.stop()
