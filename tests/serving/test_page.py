"""The page in a real browser without a network, at two widths: drop, name, learn, undo, look,
change.
"""

import time

import pytest

from cifnet_pl.serving.gate import Access
from tests.serving.browsing import (
    CONTRAST,
    WIDTHS,
    drop,
    no_wider_than_the_screen,
    page_of,
    picture,
    sync_api,
)
from tests.serving.services import ThreadServer, image, model, zipped

pytestmark = pytest.mark.system
expect = sync_api.expect


def change(page, name: str) -> None:
    """Open what changes a class."""
    page.get_by_role("button", name=f"Change {name}", exact=True).click()


@pytest.mark.parametrize("width", WIDTHS)
def test_drop_name_learn_undo(width, browser, server):
    with page_of(browser, server, width) as page:
        files = {
            f"{name}.png": image(name, 70, 120) for name in ("red", "green", "blue")
        }
        drop(page, "drop", {**files, "<b>broken</b>.png": b"no"})
        cards = page.locator("#cards .card")
        message = page.locator("#message-text")
        expect(cards).to_have_count(3)
        expect(message).to_contain_text(
            "3 new photos, 1 left out (<b>broken</b>.png: no image of a known"
        )
        expect(cards.nth(0)).to_contain_text("This looks unlike what I learned.")
        expect(cards.filter(has_text="red.png").locator(".verdict")).to_have_text(
            "red over 99 %"
        )
        no_wider_than_the_screen(page)
        picture(page, f"ask-{width}")

        packed = zipped({f"yellow/{i}.png": image("yellow", i, 60) for i in range(8)})
        drop(page, "drop", {"photos.zip": packed})
        page.get_by_role("button", name="Name 8 by their folders").click()
        expect(page.locator("#named")).to_have_text("8 named")
        cards.filter(has_text="blue.png").get_by_role("button", name="Select").click()
        page.locator("#name").fill("blue")
        page.get_by_role("button", name="Name", exact=True).click()
        expect(page.locator("#named")).to_have_text("9 named")
        page.get_by_role("button", name="Try without learning").click()
        expect(message).to_contain_text("Would learn")
        expect(page.locator("#lesson")).to_contain_text(
            "Too few new photos to say how well"
        )
        page.get_by_role("button", name="Learn 9").click()
        expect(message).to_contain_text("yellow (8)")
        expect(page.locator("#state")).to_contain_text("4 classes")
        expect(cards).to_have_count(2)
        no_wider_than_the_screen(page)
        picture(page, f"learned-{width}")

        page.get_by_role("tab", name="Classes").click()
        expect(page.locator("#class-table tr")).to_have_count(5)
        expect(page.locator("#class-table .thumbs img")).to_have_count(4)
        expect(page.locator("#class-table tr").nth(1)).to_contain_text("not estimated")
        page.get_by_role("button", name="Audit").click()
        expect(page.locator("#audited")).to_contain_text(
            "near-copies of one alone are kept:"
        )
        no_wider_than_the_screen(page)
        picture(page, f"classes-{width}")

        page.locator("#undo").click()
        expect(message).to_contain_text("Undid: learned 9 photos of ")
        expect(page.locator("#state")).to_contain_text("2 classes")
        expect(page.locator("#tab-photos")).to_have_text("Photos (11)")
        page.locator("#redo").click()
        change(page, "blue")
        page.get_by_role("button", name="Forget this class").click()
        page.locator("#sure").get_by_role("button", name="Forget", exact=True).click()
        expect(message).to_contain_text(
            "the model keeps nothing of its photos. 1 photo of it and the versions"
        )
        change(page, "red")
        page.locator("#class-new").fill("<img src=x onerror=alert(1)>")
        page.get_by_role("button", name="Rename").click()
        expect(message).to_contain_text("to '<img src=x onerror=alert(1)>'")
        page.get_by_role("tab", name="Versions").click()
        expect(page.locator("#version-table tr")).to_have_count(5)
        expect(page.locator("#version-table img")).to_have_count(0)
        expect(page.locator("#version-table tr").nth(3)).to_contain_text(
            "too few to say"
        )  # of eight photos and one
        no_wider_than_the_screen(page)
        picture(page, f"versions-{width}")
        page.get_by_role("button", name="Delete all kept photos").click()
        page.locator("#sure").get_by_role("button", name="Delete").click()
        expect(message).to_contain_text("Deleted 9 photos")
        page.get_by_role("tab", name="Photos").click()
        expect(cards).to_have_count(2)
    assert [one["name"] for one in server.get("/classes")] == [
        "<img src=x onerror=alert(1)>",
        "green",
        "yellow",
    ]


def test_from_an_empty_page(browser, tmp_path):
    """Two groups are named, and are the first classes; the next images are answered."""
    with (
        ThreadServer(tmp_path / "w", begun=model(())) as server,
        page_of(browser, server) as page,
    ):
        expect(page.locator("#begin")).to_be_visible()
        files = {
            f"{n}-{i}.png": image(n, i, 60) for n in ("red", "blue") for i in range(4)
        }
        drop(page, "drop", files | {"green.png": image("green", 0, 60)})
        cards = page.locator("#cards .card")
        expect(cards.filter(has_text="Nothing is known yet")).to_have_count(9)
        picture(page, "empty")
        page.get_by_role("button", name="Group by likeness").click()
        groups = page.locator("#groups .card")
        expect(groups).to_have_count(2)
        expect(page.locator("#groups")).to_contain_text("3 photos like no other")
        for name in ("one", "two"):
            groups.nth(0).locator("input").fill(name)
            groups.nth(0).get_by_role("button", name="Name 3").click()
        page.get_by_role("button", name="Learn 6").click()
        expect(page.locator("#state")).to_contain_text("2 classes, 6 photos")
        expect(page.locator("#begin")).to_be_hidden()
        expect(cards).to_have_count(
            3, timeout=30_000
        )  # what was learned waits no longer
        drop(page, "drop", {"a.png": image("blue", 70, 60)})
        expect(cards.filter(has_text="a.png").locator(".verdict")).to_contain_text("%")


def test_a_change_is_told_once_it_is_shown(browser, server):
    """Whoever acts at once on "Forgot 'red'" changes no class that is gone, however slow the
    network is.
    """
    with page_of(browser, server) as page:
        page.get_by_role("tab", name="Classes").click()
        change(page, "red")
        page.route("**/classes", lambda route: (time.sleep(1), route.continue_()))
        page.get_by_role("button", name="Forget this class").click()
        page.locator("#sure").get_by_role("button", name="Forget", exact=True).click()
        expect(page.locator("#message-text")).to_contain_text("Forgot 'red'")
        assert page.locator("#class-table tr").count() == 2
        assert page.locator("#state").text_content().startswith("1 class,")


def test_a_change_that_cannot_be_shown_is_told(browser, server):
    with page_of(browser, server) as page:
        page.get_by_role("tab", name="Classes").click()
        change(page, "red")
        page.route("**/classes", lambda route: route.abort())
        page.locator("#class-new").fill("rouge")
        page.get_by_role("button", name="Rename").click()
        said = (
            "is served. The page could not be refreshed: The service does not answer."
        )
        expect(page.locator("#message-text")).to_contain_text(said)


def test_by_keyboard_in_the_dark(browser, server):
    """Tabs by arrows; images by keys, to the next after each; every control can be reached and is
    readable.
    """
    with page_of(browser, server, scheme="dark") as page:
        page.locator("#tab-photos").click()
        page.locator("#tab-photos").focus()
        for name in ("classes", "versions", "photos"):
            page.keyboard.press("ArrowRight")
            expect(page.locator(f"#{name}")).to_be_visible()
            assert page.evaluate("document.activeElement.id") == f"tab-{name}"
            assert page.evaluate(CONTRAST) == []
        drop(
            page,
            "drop",
            {f"{n}.png": image(n, 70, 120) for n in ("red", "green", "blue")},
        )
        cards = page.locator("#cards .card")
        expect(cards.locator(".verdict").filter(has_text="%")).to_have_count(2)
        expect(page.locator("#sending")).to_be_hidden()  # all three are looked at
        reached = set()
        for _ in range(30):
            page.keyboard.press("Tab")
            reached.add(
                page.evaluate(
                    "document.activeElement.id || document.activeElement.className"
                )
            )
        assert {
            "files",
            "folder",
            "camera-open",
            "group",
            "csv",
            "card",
            "plain share",
            "plain yes share",
        } <= reached
        cards.nth(1).focus()
        page.keyboard.press("y")
        page.keyboard.press("2")
        expect(page.locator("#named")).to_have_text("2 named")
        assert page.evaluate(
            "document.activeElement === document.querySelector('#cards .card')"
        )
        page.keyboard.press("n")
        page.keyboard.type("blue")
        page.keyboard.press("Enter")
        expect(page.locator("#named")).to_have_text("3 named")
        assert page.evaluate("document.activeElement.id") == "learn"
        assert page.evaluate(CONTRAST) == []
        picture(page, "dark")
        page.keyboard.press("Enter")
        expect(page.locator("#state")).to_contain_text("3 classes")
        page.locator("#message").get_by_role("button", name="Undo").press("Enter")
        expect(page.locator("#tab-photos")).to_have_text("Photos (3)")


def test_the_token_is_asked_for(browser, tmp_path):
    with ThreadServer(tmp_path / "w", Access(token="correct-horse-battery")) as server:
        context = browser.new_context()
        page = context.new_page()
        page.goto(server.url)
        page.locator("#token").fill("wrong-horse-battery")
        page.get_by_role("button", name="Continue").click()
        expect(page.locator("#token-title")).to_contain_text("The token is wrong")
        page.locator("#token").fill("correct-horse-battery")
        page.get_by_role("button", name="Continue").click()
        expect(page.locator("#state")).to_contain_text("2 classes")
        assert context.cookies() == []
        other = context.new_page()  # another tab does not ask again
        other.goto(server.url)
        expect(other.locator("#state")).to_contain_text("2 classes")
        context.close()
