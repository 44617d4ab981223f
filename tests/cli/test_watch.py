"""``cifnet watch``: a row and a JSON object for each image, none twice, and nothing elsewhere."""

import json
import re
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from cifnet_pl.cli.watch import COLUMNS, Sender
from cifnet_pl.utilities.files import list_cell, read_list_cell
from tests.command_line import rows as rows_of
from tests.command_line import run_cifnet
from tests.killing import ended, start
from tests.serving.services import becomes, client, image, saved

DOCS = Path(__file__).parents[2] / "docs/how_to/watch.md"


class Receiver(HTTPServer):
    """A receiver on this machine: what it got, and the statuses that it answers with before 200."""

    def __init__(self, *refusals: int, elsewhere: str = ""):
        self.got: list[tuple[str, dict]] = []
        self.refused: list[dict] = []
        self.authorised: list[str | None] = []
        answers = list(refusals)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler):
                length = int(handler.headers["content-length"])
                content = json.loads(handler.rfile.read(length))
                self.authorised.append(handler.headers["authorization"])
                status = answers.pop(0) if answers else 200
                if status == 200:
                    self.got.append((handler.path, content))
                else:
                    self.refused.append(content)
                handler.send_response(status)
                if elsewhere:
                    handler.send_header("location", elsewhere)
                handler.send_header("content-length", "0")
                handler.end_headers()

            def log_message(handler, *args):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        # Without a pause of half a second at its end.
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def server_close(self):
        self.shutdown()
        super().server_close()


@pytest.fixture
def impatient(monkeypatch):
    """A sender that tries again without a pause."""
    at_once = property(lambda sender: 0.0, lambda sender, value: None)
    monkeypatch.setattr(Sender, "_next_attempt", at_once, raising=False)


@pytest.fixture
def place(tmp_path):
    """A model, and a folder with a red and a blue image and one that cannot be read."""
    saved(tmp_path / "model")
    (tmp_path / "images" / "day").mkdir(parents=True)
    (tmp_path / "images" / "day" / "red.png").write_bytes(image("red", 60))
    (tmp_path / "images" / "blue.png").write_bytes(image("blue", 60))
    (tmp_path / "images" / "bad.png").write_bytes(b"no")
    return tmp_path


def options_of(place: Path) -> dict[str, object]:
    images, table = place / "images", place / "a.csv"
    return {"images": images, "output": table, "every": 0.1, "model": place / "model"}


def watched(place: Path, *options: str) -> int:
    """Watch the images of a place, by its model unless a workspace is given."""
    given = options_of(place)
    if "--workspace" in options:
        del given["model"]
    return run_cifnet("watch", "--once", *options, **given)


def rows(place: Path) -> dict[str, dict[str, str]]:
    found = rows_of(place / "a.csv")
    named = {Path(row["file"]).name: row for row in found}
    assert len(named) == len(found)
    return named


def test_each_image_has_one_row_also_after_a_new_start(place):
    (place / "a.csv").write_bytes(b"time,id,fi")  # of a process killed at once
    assert watched(place) == 0
    found = rows(place)
    red = found["red.png"]
    assert (red["class"], red["known"], red["prediction_set"]) == ("red", "true", "red")
    assert (found["blue.png"]["class"], found["blue.png"]["known"]) == ("", "false")
    assert found["bad.png"]["unreadable"] == "no image of a known format"
    with open(place / "a.csv", "ab") as file:
        file.write(b"2026-01-01,0123")  # what a killed process left
    (place / "images" / "copy.png").write_bytes(image("red", 60))
    (place / "images" / "green.png").write_bytes(image("green", 60))
    assert watched(place) == 0
    again = rows(place)
    assert again.pop("green.png")["class"] == "green"
    assert again == found


def test_what_is_refused_is_sent_again_and_nothing_twice(place, impatient, capsys):
    """A receiver that refuses, one that is gone, one that takes: each image once, in order."""
    link = ("--link", "https://shop.example/images/")
    with Receiver(500, 503) as receiver:
        hook = ("--webhook", f"{receiver.url}/hook")
        assert watched(place, *hook, *link) == 0
        assert [path for path, _ in receiver.got] == ["/hook"] * 3
        assert len({content["id"] for _, content in receiver.got}) == 3
        assert [one["id"] for one in receiver.refused] == [receiver.got[0][1]["id"]] * 2
        sent = {Path(content["file"]).name: content for _, content in receiver.got}
        red = sent["red.png"]
        assert (red["known"], red["prediction_set"]) == (True, ["red"])
        assert red["probability"] > 0.9
        assert red["unreadable"] is None
        empty = {"known": None, "prediction_set": [], "probability": None}
        assert empty.items() <= sent["bad.png"].items()
        assert red["link"] == "https://shop.example/images/day/red.png"
        assert watched(place, *hook) == 0
        assert len(receiver.got) == 3
    (place / "images" / "green.png").write_bytes(image("green", 60))
    assert watched(place) == 0  # answered while nobody received anything
    with Receiver() as receiver:
        assert watched(place, "--webhook", receiver.url) == 0
        assert [content["class"] for _, content in receiver.got] == ["green"]
    said = capsys.readouterr().out
    assert "500: Internal Server Error; 3 predictions not sent yet" in said


def test_killed_while_nobody_receives_it_sends_all_afterwards(place):
    """Images that arrive while it runs wait; after a kill they are sent, each once."""
    output = place / "output"
    output.touch()
    given = {"webhook": "http://127.0.0.1:1/", **options_of(place)}
    process = start(partial(run_cifnet, "watch", **given), output)
    try:
        assert becomes(lambda: "watching" in output.read_text())
        (place / "images" / "late.png").write_bytes(image("green", 61))
        assert becomes(lambda: "late.png" in (place / "a.csv").read_text())
    finally:
        process.kill()
        ended(process)
    with Receiver() as receiver:
        assert watched(place, "--webhook", receiver.url) == 0
    sent = [Path(content["file"]).name for _, content in receiver.got]
    assert sorted(sent) == sorted(rows(place))
    assert "late.png" in sent


@pytest.mark.parametrize("names", [["bolt; M4", "nut"], ["a\\", ";", " b"], []])
def test_names_may_hold_what_separates_them_in_a_cell(names):
    assert read_list_cell(list_cell(names)) == names


def test_nothing_goes_where_it_was_not_sent(place, impatient, monkeypatch):
    """Neither after a redirection nor through a proxy."""
    with (
        Receiver() as other,
        Receiver(307, 301, elsewhere=f"{other.url}/x") as receiver,
    ):
        monkeypatch.setenv("http_proxy", other.url)
        assert watched(place, "--webhook", receiver.url) == 0
        assert (len(receiver.got), len(receiver.refused), other.got) == (3, 2, [])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--webhook file:///etc/passwd", "an http or https address"),
        ("--every 0", "--every is 0, expected more than 0"),
        ("--unknown 2", "unknown is 2"),
        ("--output other.csv", "other.csv is no table of watch"),
        ("--output images/blue.png", "blue.png is no table of watch"),
        ("--model model --workspace w", "give one of --model and --workspace"),
        ("--workspace .", "journal.sqlite"),
    ],
)
def test_wrong_options(options, sentence, place, cwd, capsys):
    (cwd / "other.csv").write_text("a,b\n1,2\n")
    before = (place / "images" / "blue.png").read_bytes()
    assert watched(place, *options.split()) in (1, 2)
    assert sentence in capsys.readouterr().err
    assert (place / "images" / "blue.png").read_bytes() == before


def test_the_documentation_names_what_is_sent():
    text = DOCS.read_text(encoding="utf-8")
    named = set(re.findall(r"trigger\.json(?:\.|\[')(\w+)", text))
    assert named
    assert named <= {*COLUMNS, "link"}


def test_the_version_that_a_workspace_serves_classifies(place):
    """Also after it changed, while the service has the workspace open."""
    with client(place / "w") as http:
        options = ("--workspace", str(place / "w"))
        assert watched(place, *options) == 0
        assert rows(place)["red.png"]["class"] == "red"
        http.post("/rename", json={"old": "red", "new": "crimson"})
        (place / "images" / "more.png").write_bytes(image("red", 61))
        assert watched(place, *options) == 0
        assert rows(place)["more.png"]["class"] == "crimson"


def test_a_password_is_sent_as_a_header_and_shown_nowhere(place, impatient, capfd):
    with Receiver(503) as receiver:
        url = receiver.url.replace("//", "//me:s%3Acret@") + "/x"
        assert watched(place, "--webhook", url) == 0
    assert watched(place, "--webhook", url.replace("http:", "ftp:")) == 2
    ((path, _), *_) = receiver.got
    assert (path, len(receiver.got)) == ("/x", 3)
    assert set(receiver.authorised) == {"Basic bWU6czpjcmV0"}  # me:s:cret in Base64
    shown = "".join(capfd.readouterr())
    assert "503" in shown
    written = [file for file in place.rglob("*") if file.is_file()]
    said = shown.encode() + b"".join(file.read_bytes() for file in written)
    for secret in (b"cret", b"bWU6"):
        assert secret not in said
