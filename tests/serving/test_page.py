"""The page in a real browser: drop, name, learn, undo, look, change; by touch and keyboard."""

import re
import time
from hashlib import sha256

import httpx
import pytest

from cifnet_pl.serving import service
from cifnet_pl.serving.answering import ServiceOptions
from cifnet_pl.serving.gate import Access
from tests.serving.browsing import (
    CONTRAST,
    check_looks,
    drop,
    keep_texts,
    page_of,
    squares,
    sync_api,
    until,
)
from tests.serving.services import (
    ThreadServer,
    counts,
    image,
    images,
    model,
    teach,
    tree,
    zipped,
)

pytestmark = pytest.mark.system
expect = sync_api.expect
FOCUSED = "document.activeElement.id || document.activeElement.className"


def change(page, name: str) -> None:
    """Open what changes a class."""
    page.get_by_role("button", name=f"Change {name}", exact=True).click()


def test_drop_name_learn_undo(browser, server, patient):
    """What an update brought is one sentence and the next step, and goes with it."""
    with page_of(browser, server, "phone") as page:
        files = squares("red", "green", "blue")
        drop(page, "#drop", {**files, "<b>broken</b>.png": b"no"})
        cards = page.locator("#cards .card")
        message = page.locator("#message-text")
        expect(cards).to_have_count(3)
        said = "3 new photos, 1 left out (<b>broken</b>.png: no image of a known"
        expect(message).to_contain_text(said)
        expect(cards.nth(0)).to_contain_text("This looks unlike what I learned.")
        red = cards.filter(has_text="red.png")
        expect(red.locator(".verdict")).to_have_text("red 99 %")
        check_looks(page, "ask")

        packed = zipped({f"yellow/{i}.png": image("yellow", i, 60) for i in range(8)})
        drop(page, "#drop", {"photos.zip": packed})
        page.get_by_role("button", name="Name 8 by their folders").click()
        expect(page.locator("#named")).to_have_text("8 named")
        cards.filter(has_text="blue.png").get_by_role("button", name="Select").click()
        page.locator("#name").fill("blue")
        page.get_by_role("button", name="Name", exact=True).click()
        expect(page.locator("#named")).to_have_text("9 named")
        page.get_by_role("button", name="Try without learning").click()
        expect(message).to_contain_text("Would learn")
        update = page.locator("#lesson")
        expect(update).to_contain_text("Too few new photos to say how well")
        page.get_by_role("button", name="Learn 9").click()
        expect(message).to_contain_text("yellow (8)")
        expect(page.locator("#state")).to_contain_text("4 classes")
        expect(update).to_contain_text("Next: add photos of 'blue'")
        expect(update.locator("details > p").first).to_be_hidden()
        expect(cards).to_have_count(2)
        check_looks(page, "learned")

        page.get_by_role("tab", name="Classes").click()
        expect(page.locator("#class-table tr")).to_have_count(5)
        expect(page.locator("#class-table .thumbs img")).to_have_count(4)
        expect(page.locator("#class-table tr").nth(1)).to_contain_text("not estimated")
        page.get_by_role("button", name="Audit").click()
        said = "near-copies of one alone are kept:"
        expect(page.locator("#audited")).to_contain_text(said)
        check_looks(page, "classes")

        page.locator("#undo").click()
        expect(message).to_contain_text("Undid: learned 9 photos of ")
        expect(update).to_be_empty()
        expect(page.locator("#state")).to_contain_text("2 classes")
        expect(page.locator("#tab-photos")).to_have_text("Photos (11)")
        page.locator("#redo").click()
        change(page, "blue")
        page.get_by_role("button", name="Forget this class").click()
        sure = page.locator("#sure")
        sure.get_by_role("button", name="Forget").click()
        expect(message).to_contain_text("Forgot 'blue' exactly")
        expect(message).to_contain_text("1 photo of it and the versions before stay")
        change(page, "red")
        page.locator("#class-new").fill("<img src=x onerror=alert(1)>")
        page.get_by_role("button", name="Rename").click()
        expect(message).to_contain_text("to '<img src=x onerror=alert(1)>'")
        page.get_by_role("tab", name="Versions").click()
        expect(page.locator("#version-table tr")).to_have_count(5)
        expect(page.locator("#version-table img")).to_have_count(0)
        of_nine = page.locator("#version-table tr").nth(3)
        expect(of_nine).to_contain_text("too few to say")
        check_looks(page, "versions")
        page.get_by_role("button", name="Delete photos of forgotten classes").click()
        expect(sure).to_contain_text("Delete 1 photo and 3 other versions for good?")
        sure.get_by_role("button", name="Delete for good").click()
        expect(message).to_contain_text("Deleted 1 photo and 3 other versions for good")
        gone = "3 versions were deleted for good."
        expect(page.locator("#versions-hint")).to_contain_text(gone)
    assert list(counts(patient)) == ["<img src=x onerror=alert(1)>", "green", "yellow"]
    assert len(tree(server.folder / "images")) == 8 + 2


def test_from_an_empty_page(browser, tmp_path):
    """Two groups are named, and are the first classes; the next images are answered.

    All photos that wait are grouped, not only those that are shown; one is taken out of its group.
    """
    with (
        ThreadServer(tmp_path / "w", begun=model(())) as server,
        page_of(browser, server) as page,
    ):
        expect(page.locator("#begin")).to_be_visible()
        check_looks(page, "empty")
        for name in ("red", "blue"):
            sent = httpx.post(f"{server.url}/inbox", files=images(name, 40))
            sent.raise_for_status()
        cards = page.locator("#cards .card")
        expect(cards.filter(has_text="Nothing is known yet")).to_have_count(60)
        expect(page.locator("#sending")).to_be_hidden()
        page.get_by_role("button", name="Group by likeness").click()
        until(page, "document.querySelectorAll('#groups .thumb').length > 60")
        groups = page.locator("#groups .card")
        expect(page.locator("#groups")).to_contain_text("like no other below")
        page.locator("#groups .thumb").first.click()
        for name in ("one", "two"):
            groups.nth(0).locator("input").fill(name)
            size = groups.nth(0).locator(".thumb").count()
            groups.nth(0).get_by_role("button", name=f"Name {size}").click()
        page.locator("#learn").click()
        expect(page.locator("#state")).to_contain_text("2 classes")
        expect(page.locator("#begin")).to_be_hidden()
        drop(page, "#drop", {"a.png": image("blue", 70, 60)})
        expect(cards.filter(has_text="a.png").locator(".verdict")).to_contain_text("%")


def test_a_change_is_told_once_it_is_shown(browser, server):
    """Whoever acts at once on "Forgot 'red'" changes no class that is gone, however slow the
    network is; a change that cannot be shown is told, too.
    """
    with page_of(browser, server) as page:
        page.get_by_role("tab", name="Classes").click()
        change(page, "red")
        page.route("**/classes", lambda route: (time.sleep(1), route.continue_()))
        page.get_by_role("button", name="Forget this class").click()
        page.locator("#sure").get_by_role("button", name="Forget", exact=True).click()
        message = page.locator("#message-text")
        expect(message).to_contain_text("Forgot 'red'")
        assert page.locator("#class-table tr").count() == 2
        assert page.locator("#state").text_content().startswith("1 class,")
        change(page, "green")
        page.route("**/classes", lambda route: route.abort())
        page.locator("#class-new").fill("vert")
        page.get_by_role("button", name="Rename").click()
        said = "The page could not be refreshed: The service does not answer."
        expect(message).to_contain_text(f"is served. {said}")


def test_by_keyboard_in_the_dark(browser, server, watch):
    """Tabs by arrows, and back; images by keys, to the next after each; every control can be
    reached and is readable. No message of an update is read out again and again.
    """
    # The page looks four times.
    watch(service, "learn", lambda *_, **options: time.sleep(1))
    with page_of(browser, server, scheme="dark") as page:
        page.locator("#tab-photos").click()
        page.locator("#tab-photos").focus()
        for name in ("classes", "versions", "photos"):
            page.keyboard.press("ArrowRight")
            expect(page.locator(f"#{name}")).to_be_visible()
            expect(page.locator(f"#tab-{name}")).to_be_focused()
            until(page, CONTRAST, [])
        for name in ("versions", "classes"):
            page.go_back()
            expect(page.locator(f"#{name}")).to_be_visible()
        expect(page.locator("th:empty")).to_have_count(0)
        page.evaluate("location.hash = '#photos'")
        expect(page.locator("#photos")).to_be_visible()
        drop(page, "#drop", squares("red", "green", "blue"))
        cards = page.locator("#cards .card")
        expect(cards.locator(".verdict").filter(has_text="%")).to_have_count(2)
        expect(page.locator("#sending")).to_be_hidden()  # all three are looked at
        page.locator("#tab-photos").focus()
        reached = set()
        for _ in range(30):
            page.keyboard.press("Tab")
            reached.add(page.evaluate(FOCUSED))
        buttons = {"files", "folder", "camera-open", "group", "csv"}
        assert buttons | {"card", "plain share", "plain yes share"} <= reached
        message = page.locator("#message-text")
        cards.nth(0).focus()
        page.keyboard.press("y")
        expect(message).to_contain_text("unlike")
        cards.nth(1).focus()
        page.keyboard.press("y")
        page.keyboard.press("2")
        expect(page.locator("#named")).to_have_text("2 named")
        expect(cards.nth(0)).to_be_focused()
        page.keyboard.press("n")
        page.keyboard.type("  ")
        page.keyboard.press("Enter")
        expect(message).to_contain_text("Type a name")
        page.locator("#name").fill("blue")
        page.keyboard.press("Enter")
        expect(page.locator("#named")).to_have_text("3 named")
        expect(page.locator("#learn")).to_be_focused()
        check_looks(page, "dark")
        keep_texts(page, "message-text")
        keep_texts(page, "work-text")
        page.keyboard.press("Enter")
        expect(message).to_contain_text("Learned ")
        assert len(page.evaluate("window.texts['message-text']")) <= 2
        assert set(page.evaluate("window.texts['work-text']")) == {"Learning…"}
        expect(page.locator("#lesson")).to_be_focused()
        expect(page.locator("#state")).to_contain_text("3 classes")
        page.locator("#message").get_by_role("button", name="Undo").press("Enter")
        expect(page.locator("#tab-photos")).to_have_text("Photos (3)")
        cards.nth(1).focus()
        page.keyboard.press("Delete")
        expect(cards).to_have_count(2)
        # None is left without a name.
        expect(page.locator("#files")).to_be_focused()


def test_what_a_change_waits_for_and_what_it_takes_away(browser, server, patient):
    """How far it is; how many photos that wait lose their name."""
    (file,) = patient.post("/inbox", files=images("red", 1, 500)).json()["images"]
    patient.post("/inbox/names", json={"names": {file: "red"}})
    steps = [{"place": 1}, {"place": 0, "done": 3, "total": 80}]

    def tell(route):
        found = route.fetch()
        job = found.json()
        if steps:
            job |= {"state": "at work", **steps.pop(0)}
        route.fulfill(response=found, json=job)

    with page_of(browser, server) as page:
        expect(page.locator("#tab-photos")).to_have_text("Photos (1)")
        page.get_by_role("tab", name="Classes").click()
        keep_texts(page, "work-text")
        page.route(re.compile("/jobs/|/forget"), tell)
        change(page, "red")
        page.get_by_role("button", name="Forget this class").click()
        sure = page.locator("#sure")
        lost = "1 photo that waits under this name will have none."
        expect(sure).to_contain_text(lost)
        sure.get_by_role("button", name="Forget").click()
        expect(page.locator("#message-text")).to_contain_text("Forgot 'red'")
        texts = page.evaluate("window.texts['work-text']")
    said = ["Waiting: 1 change comes first.", "Looking at photo 3 of 80…"]
    assert texts[:2] == said


def test_the_token_is_asked_for_or_in_the_address(browser, tmp_path):
    """Another tab does not ask again; a token in the address goes out of it."""
    token = "correct-horse-battery"
    with ThreadServer(tmp_path / "w", Access(token=token)) as server:
        context = browser.new_context()
        page = context.new_page()
        page.goto(server.url)
        page.locator("#token").fill("wrong-horse-battery")
        page.get_by_role("button", name="Continue").click()
        expect(page.locator("#token-title")).to_contain_text("The token is wrong")
        page.locator("#token").fill(token)
        page.get_by_role("button", name="Continue").click()
        expect(page.locator("#state")).to_contain_text("2 classes")
        assert context.cookies() == []
        other = context.new_page()
        other.goto(server.url)
        expect(other.locator("#state")).to_contain_text("2 classes")
        context.close()
        with page_of(browser, server, path=f"#token={token}") as page:
            expect(page.locator("#state")).to_contain_text("2 classes")
            expect(page).not_to_have_url(re.compile(token))


# ---------------------------------------------------------------------- what may be a mistake


def test_what_may_be_a_mistake_is_asked_about(browser, server, patient):
    """An image in two folders; names nearly those of others; a name that is taken."""
    with page_of(browser, server) as page:
        sure = page.locator("#sure")
        message = page.locator("#message-text")
        cards = page.locator("#cards .card")
        fruit = {"RED/1.png": image("red", 70), "Green /1.png": image("green", 71)}
        fruit["pear/1.png"] = image("pear", 1)
        fruit["x/2.png"] = fruit["y/2.png"] = image("pear", 2)
        drop(page, "#drop", fruit)
        expect(cards).to_have_count(4)
        page.get_by_role("button", name="Name 3 by their folders").click()
        expect(cards.filter(has_text="several folders")).to_have_count(1)
        page.get_by_role("button", name="2.png is: y").click()
        page.get_by_role("button", name="Take back the name of x/2.png").click()
        page.get_by_role("button", name="Learn 3").click()
        expect(sure).to_contain_text("'RED' and 'red'")
        expect(sure).to_contain_text("'Green' and 'green'")
        sure.get_by_role("button", name="Use the 2 existing names").click()
        expect(message).to_contain_text("red (1)")
        expect(cards).to_have_count(1)
        page.get_by_role("tab", name="Classes").click()
        for answer in ("Cancel", "Join both"):
            change(page, "pear")
            page.locator("#class-new").fill("red")
            page.get_by_role("button", name="Rename").click()
            expect(sure).to_contain_text("there is a class 'red' already")
            sure.get_by_role("button", name=answer).click()
            said = {"Cancel": "Nothing was changed.", "Join both": "Joined 'pear'"}
            expect(message).to_contain_text(said[answer])
    assert counts(patient) == {"red": 14, "green": 13}


def test_a_class_is_split_by_groups_and_wrong_ones_are_moved(browser, server, patient):
    """One that the audit finds, and one that is brought again under another name."""
    taught = {f"both/{i}.png": image("blue", i, 60) for i in range(20)}
    taught |= {f"both/{i}.png": image("yellow", i, 60) for i in range(20, 24)}
    taught |= {f"pink/{i}.png": image("pink", 50 + i) for i in range(20)}
    taught["pink/20.png"] = image("blue", 70)
    teach(patient, [("files", one) for one in taught.items()]).raise_for_status()
    with page_of(browser, server) as page:
        message = page.locator("#message-text")
        page.get_by_role("button", name="Photos of both").click()
        pictures = page.locator("#class-groups .picture")
        expect(pictures).to_have_count(24)
        page.get_by_role("button", name="Group by likeness").last.click()
        yellow = sha256(image("yellow", 20, 60)).hexdigest()
        of_yellow = page.locator(f'#class-groups > div:has([data-photo^="{yellow}"])')
        of_yellow.get_by_role("button", name="Select group").click()
        expect(page.locator("#move-count")).to_have_text("4 selected")
        check_looks(page, "split")
        page.set_viewport_size({"width": 820, "height": 1180})
        # On a tablet the rows are cards: names of classes leave no room for six columns.
        expect(page.locator("#class-table tr").first).to_be_hidden()
        check_looks(page, "tablet")
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
        drop(page, "#drop", {"both/a.png": taught["pink/20.png"]})
        expect(message).to_contain_text("learned as “pink”")
        page.get_by_role("button", name="Move to “both”").click()
        expect(message).to_contain_text("Moved 1 photo of 'pink'")
    expected = {"red": 12, "green": 12, "yellow": 4, "pink": 20, "both": 21}
    assert counts(patient) == expected


# ---------------------------------------------------------------------- what is shown


def promise(right):
    """Lets the service say how many images are right."""

    def answer(route):
        found = route.fetch()
        route.fulfill(response=found, json={**found.json(), "accuracy": right})

    return answer


def test_what_is_promised(browser, server):
    """The accuracy of these days is not promised for another day; the worst class is the first."""
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
        expect(figures).to_have_count(4)
        shown = page.locator("body").inner_text()
        assert not [word for word in ("RidgeHead", " Wh", " MB") if word in shown]
        page.route("**/summary", promise(found))
        page.route("**/classes/predictions", lambda route: route.fulfill(json=answers))
        page.get_by_role("tab", name="Classes").click()
        expect(figures.nth(2)).to_contain_text("Right on photos of these days")
        expect(figures.nth(2).locator("dd")).to_have_text("96.5 %")
        expect(figures.nth(3)).to_contain_text("another day (estimated)")
        expect(figures.nth(3).locator("dd")).to_have_text("71 % (62 to 80)")
        rows = page.locator("#class-table tr")  # the worst first
        expect(rows.nth(1)).to_contain_text("3 % hardly ever answered")
        expect(rows.nth(1)).to_contain_text("(0 kept here)")
        expect(rows.nth(2).get_by_label("71 % (50 to 86)")).to_be_visible()
        expect(page.locator("#about-days")).to_have_text(
            "Hardly ever answered: green. Photos taken together count as one. What helps most on"
            " another day: photos of that day or place, five of each class."
        )
        for kind, words in (
            ("few", "too few photos to say"),
            ("one_group", "photos of one day only: cannot be told"),
        ):
            unknown = {**found, "new_group_accuracy": None, "kind": kind}
            page.route("**/summary", promise(unknown))
            page.get_by_role("tab", name="Classes").click()
            expect(figures.nth(3).locator("dd")).to_have_text(words)


LONG = [
    "مرحبا بالعالم الجميل",
    "🐟🎣 bass 👩‍👩‍👧‍👦",
    "W" * 150,
    "<b>a sentence</b>, with commas, " * 6,
]
LOW_TEXTS = """(() => {
  const texts = [...document.querySelectorAll("main .clamp")];
  return texts.length > 0 && texts.every((one) => one.clientHeight < 80);
})()"""


def test_strange_names_fit_on_every_screen(browser, server):
    """Right-to-left, joined emoji, no place to break, HTML: in three lines, readable."""
    served = server.service
    for old, new in zip(["red", LONG[0], LONG[1], LONG[2]], LONG, strict=True):
        served.submit("rename", served.rename, old, new).end.result()
    long = "long " * 40
    files = {f"{long}0.png": image("red", 70, 60)}
    files[f"{long}1.png"] = image("blue", 70, 60)
    with page_of(browser, server, "phone", "dark") as page:
        drop(page, "#drop", files)
        verdicts = page.locator("#cards .verdict")
        expect(verdicts.filter(has_text="sentence")).to_have_count(1)
        for name, count in (("Versions", 6), ("Classes", 3), ("Photos", 0)):
            page.get_by_role("tab", name=name).click()
            expect(page.locator(f"#{name.lower()} table tr")).to_have_count(count)
            expect(page.locator("main b")).to_have_count(0)
            until(page, LOW_TEXTS)
            check_looks(page, f"strange-{name}")


def test_read_only_answers_and_shows_nothing_that_changes_the_model(browser, tmp_path):
    """Nor does the till count or keep anything."""
    changes = {"Undo", "Redo", "Change", "Go to", "Group by likeness", "Learn", "Name"}
    photos = {**squares("red"), "c.png": b"no"}
    with ThreadServer(tmp_path / "w", options=ServiceOptions(read_only=True)) as server:
        with page_of(browser, server) as page:
            expect(page.locator("#state")).to_contain_text("read-only")
            drop(page, "#drop", photos)
            verdicts = page.locator("#cards .verdict")
            expect(verdicts.nth(0)).to_contain_text("red")
            expect(verdicts.nth(1)).to_have_text("Cannot be read")
            for name, count in (("Photos", 0), ("Classes", 3), ("Versions", 2)):
                page.get_by_role("tab", name=name).click()
                expect(page.locator(f"#{name.lower()}")).to_be_visible()
                rows = page.locator(f"#{name.lower()} table tr")
                expect(rows).to_have_count(count)
                shown = page.locator("button:visible").all_inner_texts()
                assert not changes & set(shown)
                refused = re.compile("Yes|Delete")
                assert not [text for text in shown if refused.match(text)]
            page.get_by_role("tab", name="Photos").click()
            page.get_by_role("button", name="Clear answers").click()
            expect(page.locator("#cards .card")).to_have_count(0)
            page.get_by_role("link", name="For the till").click()
            expect(page.locator("#till-answer")).to_have_text("Not known")
            page.get_by_role("button", name="This one").click()
            expect(page.get_by_role("button", name="Next")).to_be_visible()
            expect(page.locator("#till-tiles")).to_be_hidden()
        assert server.get("/days") == []
        assert tree(tmp_path / "w" / "images") == set()
