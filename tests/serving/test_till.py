"""The view for the till, and the page behind a reverse proxy and on other devices."""

import re
from dataclasses import replace
from datetime import date
from unittest.mock import Mock

import httpx
import pytest

from cifnet_pl.cli.serve import access_of, show_address
from cifnet_pl.serving import workspace as workspaces
from cifnet_pl.utilities.errors import UsageError
from tests.serving.browsing import check_looks, choose, drop, page_of, squares, sync_api
from tests.serving.services import PATIENCE, ThreadServer, client, images, teach

expect = sync_api.expect


@pytest.fixture
def one_day(monkeypatch):
    """The service never passes midnight."""
    one_day = Mock(today=lambda: date(2026, 3, 1))
    monkeypatch.setattr(workspaces, "date", one_day)


@pytest.mark.system
def test_a_wrong_answer_is_corrected_by_a_tap(browser, server, one_day):
    """Its image waits with the name that was typed; what was asked is counted."""
    with page_of(browser, server, "phone", "dark", "till") as page:
        answer = page.locator("#till-answer")
        expect(answer).to_have_class("unknown")
        expect(answer).to_have_text("Not known")
        page.get_by_role("button", name="This one").click()
        expect(page.locator("#till-tiles button")).to_have_count(2)
        check_looks(page, "till")
        page.locator("#till-name").fill("timer")
        page.get_by_role("button", name="Save").click()
        expect(page.locator("#message-text")).to_contain_text("Kept as “timer”")
        expect(page.locator("#today")).to_contain_text("1 photo,")
        page.locator("#main").focus()  # nothing that keys belong to
        page.keyboard.press(" ")
        expect(page.locator("#till-tiles")).to_be_visible()
        page.keyboard.press("1")
        expect(page.locator("#today")).to_contain_text("2 photos,")
        expect(page.locator("#today")).to_contain_text("0\N{NO-BREAK SPACE}% right")
        page.get_by_text("Day by day").click()
        day = page.get_by_label("2026-03-01: 0\N{NO-BREAK SPACE}% of 2 right, 2 unsure")
        expect(day).to_be_visible()
        page.get_by_role("button", name="This one").click()
        page.get_by_role("button", name="Next").click()  # nobody says what it was
        expect(page.locator("#till-tiles")).to_be_hidden()
    names = server.get("/inbox")["names"]
    assert "timer" in names.values()
    (day,) = server.get("/days")
    assert (day["asked"], day["unsure"], day["corrected"]) == (2, 2, 2)


def ask(page, content):
    """Ask the till about a photo that was taken with the phone's own camera."""
    choose(page, "#till-file", {"a.png": content})
    expect(page.locator("#till-tiles")).to_be_visible()


@pytest.mark.system
def test_the_till_keeps_what_it_says(browser, server, patient):
    """The name of a photo that waits is changed, a learned one is offered to be moved; a tap counts
    once and can be taken back; an answer is sure of one class or names several.
    """
    ((_, (_, learned)),) = images("blue", 1)
    ((_, (_, waits)),) = images("yellow", 1)
    teach(patient, images("blue", 1), "blue")
    (file,) = patient.post("/inbox", files=images("yellow", 1)).json()["images"]
    patient.post("/inbox/names", json={"names": {file: "banana"}})
    with page_of(browser, server, "phone", path="till") as page:
        said = page.locator("#message-text")
        answer = page.locator("#till-answer")
        expect(answer).to_have_text("Not known")
        place = answer.bounding_box()
        ask(page, waits)
        page.locator("#till-name").fill("lemon")
        page.get_by_role("button", name="Save").tap()
        expect(said).to_contain_text("Kept as “lemon”")
        assert server.get("/inbox")["names"] == {file: "lemon"}
        assert answer.bounding_box()["y"] == place["y"]
        page.get_by_role("button", name="Take back").tap()
        expect(said).to_have_text("Taken back.")
        assert server.get("/inbox")["names"] == {file: "banana"}
        expect(page.locator("#today")).to_contain_text("0 photos,")
        ask(page, learned)
        page.get_by_role("button", name="It is red").dblclick()
        expect(said).to_contain_text("This photo was learned as “blue”.")
        expect(page.get_by_role("button", name="Move to “red”")).to_be_visible()
        expect(page.locator("#today")).to_contain_text("1 photo,")
        several = {"file": "a", "known": True, "prediction_set": ["red", "green"]}
        shares = {"red": 0.6, "green": 0.4}
        several["classes"] = [{"name": n, "probability": p} for n, p in shares.items()]
        answers = {"images": [several]}
        page.route("**/classify*", lambda route: route.fulfill(json=answers))
        expect(answer).to_have_class("unsure")
        expect(answer).to_contain_text("Not sure: or green")
        page.route("**/classify*", lambda route: None)  # the service hangs
        expect(answer).to_contain_text("No answer")
    assert server.get("/days")[0]["asked"] == 1


def test_answers_of_a_day_are_counted(http, one_day):
    http.post("/days", json={"asked": 2, "unsure": 1})
    (day,) = http.post("/days", json={"asked": 1, "corrected": 1}).json()
    assert (day["asked"], day["unsure"], day["corrected"]) == (3, 1, 1)
    assert http.post("/days", json={"asked": -1}).status_code == 422
    for _ in range(2):
        (day,) = http.post("/days?back=true", json={"asked": 2, "corrected": 1}).json()
    assert (day["asked"], day["unsure"], day["corrected"]) == (0, 1, 0)


# ---------------------------------------------------------------------- other addresses


@pytest.mark.system
def test_the_page_behind_a_folder_of_another_server(browser, tmp_path):
    """Its scripts, images, requests, and the view for the till."""
    with ThreadServer(tmp_path / "w", below="/photos") as server:
        with page_of(browser, server) as page:
            drop(page, "#drop", squares("red"))
            expect(page.locator("#cards .verdict")).to_contain_text("red")
            picture = page.locator("#cards img").first
            expect(picture).to_have_attribute("src", re.compile("blob:"))
            page.get_by_role("link", name="For the till").click()
            expect(page.locator("#till-answer")).to_have_text("Not known")
        assert httpx.get(f"{server.url}/docs", timeout=PATIENCE).status_code == 200


def test_a_public_address_is_answered_and_others_are_not(tmp_path):
    """nginx leaves the port out of the host with ``proxy_set_header Host $host``: the page's own
    requests are let in.
    """
    access = access_of("t" * 20, "127.0.0.1", "https://shop.example:8443/photos/")
    access = replace(access, token=None)
    with client(tmp_path / "w", access) as http:
        for host, status in (("shop.example", 200), ("evil.example", 421)):
            assert http.get("/classes", headers={"host": host}).status_code == status
        for origin, status in (("shop.example:8443", 200), ("shop.example:99", 403)):
            headers = {"host": "shop.example", "origin": f"https://{origin}"}
            answer = http.post("/days", headers=headers, json={})
            assert answer.status_code == status


@pytest.mark.parametrize("address", ["shop.example", "ftp://shop.example", "https://"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(UsageError, match="--address is"):
        access_of("t" * 20, "localhost", address)
    with pytest.raises(UsageError, match="give a --token"):
        access_of(None, "localhost", address)


def test_a_shared_address_is_printed_with_a_code(capsys):
    show_address("http://192.0.2.7:7860/", "t" * 20)
    said = capsys.readouterr().out
    assert f"http://192.0.2.7:7860/#token={'t' * 20}" in said
    assert said.count("\n") > 15
