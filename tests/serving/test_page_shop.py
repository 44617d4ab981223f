"""What the owner of a shop meets on the page: nothing is lost, renamed or deleted unasked."""

from __future__ import annotations

import re

import pytest

from tests.serving.browsing import drop, page_of, picture, sync_api
from tests.serving.services import image, teach

pytestmark = pytest.mark.system
expect = sync_api.expect


def squares(*names: str, first: int = 70) -> dict[str, bytes]:
    """Images by the names of their files, such as ``folder/blue.png``."""
    files = {}
    for number, name in enumerate(names):
        colour = re.split(r"[/.\d]+", name)[-2]
        files[name] = image(colour, first + number, 120)
    return files


def test_names_are_typed_one_after_the_other(browser, server):
    """After each name the next image is chosen, not the first; a name of spaces is none."""
    with page_of(browser, server) as page:
        drop(page, "drop", squares(*[f"{i}blue.png" for i in range(4)]))
        cards = page.locator("#cards .card")
        expect(cards).to_have_count(4)
        expect(page.locator("#sending")).to_be_hidden()
        cards.nth(2).focus()
        page.keyboard.press("y")
        expect(page.locator("#message-text")).to_contain_text("unlike")
        page.keyboard.press("n")
        page.keyboard.type("  ")
        page.keyboard.press("Enter")
        expect(page.locator("#message-text")).to_contain_text("Type a name")
        page.locator("#name").fill("blue")
        page.keyboard.press("Enter")
        expect(page.locator("#named")).to_have_text("1 named")
        assert (
            page.evaluate(
                "[...document.querySelectorAll('#cards .card')].indexOf(document.activeElement)"
            )
            == 3
        )


def test_an_image_in_two_folders_asks_which_it_is(browser, server):
    content = image("blue", 70, 120)
    with page_of(browser, server) as page:
        drop(page, "drop", {"sea/a.png": content, "sky/a.png": content})
        card = page.locator("#cards .card")
        expect(card).to_contain_text("several folders")
        expect(page.get_by_role("button", name="by their folders")).to_be_hidden()
        card.get_by_role("button", name="a.png is: sky").click()
        expect(page.locator("#named")).to_have_text("1 named")


def test_all_names_that_clash_are_asked_about_at_once(browser, server):
    with page_of(browser, server) as page:
        drop(
            page,
            "drop",
            {"RED/1.png": image("red", 70), "Green /1.png": image("green", 71)},
        )
        page.get_by_role("button", name="Name 2 by their folders").click()
        page.get_by_role("button", name="Learn 2").click()
        sure = page.locator("#sure")
        expect(sure).to_contain_text("'RED' and 'red'")
        expect(sure).to_contain_text("'Green' and 'green'")
        sure.get_by_role("button", name="Use the 2 existing names").click()
        expect(page.locator("#message-text")).to_contain_text("red (1)")
    assert [one["images"] for one in server.get("/classes")] == [13, 13]


def test_what_an_update_brought_goes_with_it(browser, server):
    """One sentence and the next step, the rest folded; gone after Undo and with new images."""
    with page_of(browser, server) as page:
        update = page.locator("#lesson")
        drop(page, "drop", squares(*[f"blue/{i}blue.png" for i in range(4)]))
        page.get_by_role("button", name="Name 4 by their folders").click()
        page.get_by_role("button", name="Learn 4").click()
        expect(update).to_contain_text("What it knew before")
        expect(update).to_contain_text("Next: add photos of 'blue'")
        expect(update.locator("details > p").first).to_be_hidden()
        picture(page, "update")
        page.locator("#undo").click()
        expect(update).to_be_empty()


def test_a_learned_image_under_another_name_offers_to_move(browser, server):
    import httpx

    with httpx.Client(base_url=server.url, timeout=60) as http:
        files = [("files", (f"navy/{i}.png", image("navy", i, 60))) for i in range(5)]
        files += [("files", (f"teal/{i}.png", image("teal", i, 60))) for i in range(5)]
        teach(http, files).raise_for_status()
    with page_of(browser, server) as page:
        page.get_by_role("tab", name="Photos").click()
        drop(page, "drop", {"teal/0.png": image("navy", 0, 60)})
        expect(page.locator("#message-text")).to_contain_text("learned as “navy”")
        page.get_by_role("button", name="Move to “teal”").click()
        expect(page.locator("#message-text")).to_contain_text("Moved 1 photo of 'navy'")


def test_ten_images_are_taken_while_a_button_is_held(browser, server):
    with page_of(browser, server) as page:
        page.get_by_role("tab", name="Photos").click()
        page.get_by_role("button", name="Camera", exact=True).click()
        expect(page.locator("#camera-answer")).not_to_be_empty()
        page.locator("#camera-name").fill("timer")
        page.locator("#camera-ten").hover()
        page.mouse.down()
        expect(page.locator("#camera-taken")).to_have_text("10 photos stored.")
        page.mouse.up()
        expect(page.locator("#named")).to_have_text(re.compile(r"\d+ named"))
