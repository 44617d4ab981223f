"""The service over HTTP, in this process: ask, teach, change; who may; what is refused."""

import gc
import json
import os
import threading
import weakref
from hashlib import sha256
from io import BytesIO
from unittest.mock import Mock

import pytest
from PIL import Image

import cifnet_pl
from cifnet_pl.heads import LogisticHead
from cifnet_pl.model import classifier, export
from cifnet_pl.serving import gate
from cifnet_pl.serving import service as teaching
from cifnet_pl.serving.answering import ServiceOptions
from cifnet_pl.serving.gate import HEADERS, Access, Limits
from cifnet_pl.serving.service import REMEMBERED_CHANGES
from tests.serving.services import (
    PATIENCE,
    assert_same_model,
    becomes,
    changed,
    class_folders,
    client,
    counts,
    image,
    images,
    kept,
    model,
    teach,
    tree,
    version_of,
    zipped,
)


def names_of(answer):
    return [one["classes"][0]["name"] for one in answer.json()["images"]]


def ended(http, job):
    """A change once it has ended."""

    def look():
        now = http.get(f"/jobs/{job['job']}").json()
        return now["state"] in ("done", "refused") and now

    return becomes(look)


def taught(http, name="blue", count=10, **params):
    answer = teach(http, images(name, count), name, **params)
    assert answer.status_code == 200, answer.text
    return answer.json()


# ---------------------------------------------------------------------- ask


def test_answers_are_the_models_own(http, tmp_path):
    """The same numbers as from files; an unreadable image does not stop the others."""
    paths = []
    for i, name in enumerate(["red", "green", "red"]):
        paths.append(tmp_path / f"{i}.png")
        paths[i].write_bytes(image(name, 50 + i))
    files = [("files", (path.name, path.read_bytes())) for path in paths]
    files.insert(1, ("files", ("<b>.png", b"no")))
    found = http.post("/classify", files=files).json()
    assert found["version"] == 1
    bad = found["images"].pop(1)
    assert (bad["file"], bad["classes"]) == ("<b>.png", [])
    assert bad["unreadable"] == "no image of a known format"
    for answer, own in zip(found["images"], model().classify(paths), strict=True):
        assert answer["file"] == own.file.name
        assert [one["name"] for one in answer["classes"]] == list(own.classes)
        shares = [one["probability"] for one in answer["classes"]]
        assert shares == pytest.approx(own.probabilities, abs=1e-6)


def test_unknown_images_and_prediction_sets(http):
    """An unknown image is called so until it is taught; known ones get a set."""
    sent = [*images("red", 1, 60), *images("blue", 1, 60)]
    red, blue = http.post("/classify", files=sent).json()["images"]
    assert (red["known"], blue["known"]) == (True, False)
    assert red["prediction_set"] == ["red"]
    assert blue["novelty"] > red["novelty"]
    assert blue["p_value"] < 0.05 < red["p_value"]
    taught(http)
    answers = http.post("/classify", files=sent).json()["images"]
    assert all(one["known"] for one in answers)


def test_a_head_that_can_neither_promise_nor_take_more_says_so(tmp_path):
    """Its answers have no novelty; its reason is a conflict."""
    with client(tmp_path / "w", begun=model(head=LogisticHead)) as http:
        (answer,) = http.post("/classify", files=images("red", 1)).json()["images"]
        promises = ("known", "novelty", "p_value", "prediction_set")
        assert [answer[name] for name in promises] == [None] * 4
        refused = teach(http, images("red", 1, 400), "red")
        assert refused.status_code == 409
        assert "cannot add images to class" in refused.json()["error"]


# ---------------------------------------------------------------------- teach


def test_taught_as_the_command_line_teaches(http, tmp_path):
    """The same weights as ``extend`` gives for the same images."""
    lesson = taught(http)
    assert (lesson["version"], lesson["learned"]) == (2, {"blue": 10})
    assert (lesson["new_images"], lesson["old_accuracy_before"]) == (10, 100.0)
    folder = tmp_path / "photos" / "blue"
    folder.mkdir(parents=True)
    for _, (name, content) in images("blue", 10):
        (folder / name).write_bytes(content)
    own = cifnet_pl.extend(model(), tmp_path / "photos").model
    served = version_of(tmp_path, 2)
    assert_same_model(own, served, atol=1e-9)
    event = http.get("/summary").json()["history"][-1]
    assert (event["kind"], event["class_names"]) == ("extend", ["blue"])
    assert event["parents"] == [model().identity]
    assert event["date"]
    answer = http.post("/classify", files=images("blue", 3, 500))
    assert names_of(answer) == ["blue"] * 3


def test_a_trial_changes_nothing(http, tmp_path):
    before = tree(tmp_path / "w" / "versions"), http.get("/versions").json()
    lesson = taught(http, dry_run="true")
    assert (lesson["version"], lesson["learned"]) == (None, {"blue": 10})
    assert (tree(tmp_path / "w" / "versions"), http.get("/versions").json()) == before
    assert len(counts(http)) == 2
    assert http.get("/inbox").json()["waiting"] == 10


def test_learning_blocks_no_answers_and_others_wait_in_their_place(http, watch):
    """Two more changes say how many come before them."""
    begun = threading.Event()
    go_on = threading.Event()

    def wait(*_, **options):
        begun.set()
        assert go_on.wait(PATIENCE)

    watch(teaching, "learn", wait)
    jobs = [teach(http, images("blue", 5), "blue", wait="false")]
    for new in ("a", "b"):
        jobs.append(http.post("/rename?wait=false", json={"old": "red", "new": new}))
    assert [job.status_code for job in jobs] == [202] * 3
    assert begun.wait(PATIENCE)
    now = [http.get(f"/jobs/{job.json()['job']}").json() for job in jobs]
    assert [job["state"] for job in now] == ["at work", "waiting", "waiting"]
    assert [job["place"] for job in now] == [0, 1, 2]
    assert (now[0]["done"], now[0]["total"]) == (5, 5)
    answer = http.post("/classify", files=images("red", 2))
    assert (answer.json()["version"], names_of(answer)) == (1, ["red"] * 2)
    go_on.set()
    now = [ended(http, job.json()) for job in jobs]
    assert [job["state"] for job in now] == ["done", "done", "refused"]
    assert [job["status"] for job in now] == [200, 200, 404]
    assert now[0]["update"]["learned"] == {"blue": 5}
    assert http.get("/versions").json()["current"] == 3


def test_a_lesson_tells_how_far_it_is(http, watch):
    service = http.app.app.state.service

    def ask(_):
        (job,) = service._jobs
        now = http.get(f"/jobs/{job}").json()
        return now["action"], now["done"], now["total"]

    seen = watch(service.inbox, "embeddings", ask)
    taught(http, "blue", 20)
    assert seen == [("learn", done, 20) for done in (0, 8, 16, 20)]


# ---------------------------------------------------------------------- change


def test_purged_images_and_versions_are_gone(tmp_path):
    """Images of forgotten classes first, then all; what remains goes on, also after a new start."""
    folder = tmp_path / "w"
    with client(folder) as http:
        taught(http, "blue", 4)
        taught(http, "yellow", 3)
        assert changed(http, "/forget", name="blue")["exact"] is True
        (gone, _) = http.post("/inbox", files=images("pink", 2)).json()["images"]
        http.post("/inbox/remove", json={"images": [gone]})
        counted = http.get("/purge").json()
        assert counted == {"learned": 4, "taken_away": 1, "versions": 3}
        said = changed(http, "/purge")["message"]
        assert said == "deleted 5 photos and 3 other versions for good"
        assert len(tree(folder / "images")) == 3 + 1
        assert [path.name for path in (folder / "versions").iterdir()] == ["000004"]
        assert http.post("/undo").status_code == 409
        assert [len(files) for files in kept(http).values()] == [0, 0, 3]
        changed(http, "/purge", images="all")
        assert len(tree(folder / "images")) == 1  # it waits
    with client(folder) as http:
        taught(http, "yellow", 5)  # three of them once more: an image counts once
        assert [len(files) for files in kept(http).values()] == [0, 0, 2]


def test_photos_of_a_class_that_was_forgotten_before_are_not_denied(http):
    changed(http, "/forget", name="red")
    taught(http, "red", 5)
    forgot = changed(http, "/forget", name="red")
    assert (forgot["exact"], "still count" in forgot["message"]) == (True, True)


def test_forgotten_exactly_where_all_images_are_kept(http, tmp_path):
    """A class that was taught here leaves no trace: the model is the one before, to rounding."""
    taught(http)
    forgot = changed(http, "/forget", name="blue")
    assert (forgot["exact"], forgot["version"]) == (True, 3)
    assert_same_model(model(), version_of(tmp_path, 3))
    forgot = changed(http, "/forget", name="red")
    assert (forgot["exact"], "still count" in forgot["message"]) == (False, True)
    assert http.post("/forget", json={"name": "green"}).status_code == 422
    assert list(counts(http)) == ["green"]
    lesson = teach(http, images("pink", 2), "pink").json()
    assert any("removed" in warning for warning in lesson["warnings"])


def refused(http, **names):
    """The end of a rename that is refused."""
    return ended(http, http.post("/rename?wait=false", json=names).json())


REFUSED_NAMES = [("x", "y", 404), ("red", "green", 409)]
REFUSED_NAMES += [("red", name, 422) for name in ("../x", "", "red ", "\ud800")]


def test_renamed_classes_keep_their_images(http):
    name = "<img src=x>"
    taught(http, count=4)
    assert changed(http, "/rename", old="blue", new=name)["version"] == 3
    assert [counts(http)[name], len(kept(http)[name])] == [4, 4]
    image = http.get(f"/images/{kept(http)[name][0]}")
    assert image.headers["content-type"] == "image/png"
    assert Image.open(BytesIO(image.content)).size == (24, 24)
    for old, new, status in REFUSED_NAMES:
        content = json.dumps({"old": old, "new": new})
        headers = {"content-type": "application/json"}
        answer = http.post("/rename", content=content, headers=headers)
        assert (answer.status_code, set(answer.json())) == (status, {"error"})
    # What may be a mistake is done where it is asked for anyway.
    job = refused(http, old=name, new="Green ")
    assert (job["status"], job["may_be_asked_for"]) == (409, True)
    assert job["instead"] == {"Green": "green"}
    changed(http, "/rename?anyway=true", old=name, new="Green ")
    assert list(counts(http)) == ["red", "green", "Green"]


def test_two_classes_become_one(http, tmp_path):
    """As if learned as one class, and undo takes it back; images must be kept for it."""
    taught(http, "blue", 6)
    assert teach(http, images("blue", 4, 300), " Blue").status_code == 409
    names = {one["image"]: " Blue" for one in http.get("/inbox").json()["images"]}
    learned = changed(http, "/inbox/learn?anyway=true", names=names)["learned"]
    assert learned == {"Blue": 4}
    job = refused(http, old="Blue", new="blue")
    assert (job["may_be_asked_for"], job["instead"]) == (False, {"blue": "blue"})
    said = changed(http, "/move", name="Blue", into="blue")["message"]
    assert said == "joined 'Blue' to 'blue'"
    forgot, joined = version_of(tmp_path, 4).history[-2:]
    assert (forgot.kind, joined.kind) == ("forget", "join")
    assert joined.parents == forgot.parents != []
    assert [counts(http)["blue"], len(kept(http)["blue"])] == [10, 10]
    http.post("/undo")
    assert len(counts(http)) == 4
    changed(http, "/forget", name="Blue")
    teach(http, images("blue", 4, 300), "blue")
    assert_same_model(version_of(tmp_path, 6), version_of(tmp_path, 4))
    refusal = http.post("/move", json={"name": "red", "into": "green"})
    assert refusal.status_code == 409
    assert "not all of its photos" in refusal.json()["error"]


def test_a_class_is_split_and_a_wrong_image_is_moved(http, tmp_path):
    """As if taught so at once; mistakes are asked about; undo takes it back."""
    teach(http, [*images("blue", 6), *images("yellow", 4)], "both")
    yellow = []
    for _, (_, content) in images("yellow", 4):
        yellow.append(f"{sha256(content).hexdigest()}.png")
    for group in changed(http, "/group", images=kept(http)["both"]):
        assert set(group["images"]) <= set(yellow) or not {*yellow} & {*group["images"]}
    asked = {"name": "both", "into": "yellow", "images": yellow}
    wrong = [{"into": "Red"}, {"name": "neither"}, {"images": ["x"]}]
    wrong += [{"into": into} for into in ("both", "../x", " ")]
    statuses = [http.post("/move", json=asked | one).status_code for one in wrong]
    assert statuses == [409, 404, 422, 422, 422, 422]
    said = changed(http, "/move", **asked)["message"]
    assert said == "moved 4 photos of 'both' to 'yellow'"
    changed(http, "/move", name="both", into="blue")
    assert counts(http) == {"red": 12, "green": 12, "yellow": 4, "blue": 6}
    assert [len(files) for files in kept(http).values()] == [0, 0, 4, 6]
    changed(http, "/versions/1/serve")
    waiting = http.get("/inbox").json()["images"]
    names = {one["image"]: one["file"].split("-")[0] for one in waiting}
    lesson = changed(http, "/inbox/learn", names=names)
    assert lesson["learned"] == {"blue": 6, "yellow": 4}
    assert_same_model(version_of(tmp_path, 5), version_of(tmp_path, 4))
    changed(http, "/versions/2/serve")
    assert "both" in counts(http)
    late = http.post("/undo", json={"version": 5})  # someone else went to version 2
    assert (late.status_code, http.get("/versions").json()["current"]) == (409, 2)
    assert "version 2 came after it" in late.json()["error"]


def test_downloads(tmp_path, monkeypatch):
    """A service may have any name."""
    exported = Mock(return_value=export.Export(b"graph", export.ExportCheck(0.0)))
    monkeypatch.setattr(classifier, "onnx_bytes", exported)
    zip_file = tmp_path / "bundle.zip"
    with client(tmp_path / "w", options=ServiceOptions(name="Früchte 🍎")) as http:
        taught(http)
        for file in (tmp_path / "w" / "versions").rglob("*.*"):
            os.utime(file, (0, 0))  # as files of reproducible builds are dated
        zip_file.write_bytes(http.get("/versions/2/bundle").content)
        assert http.get("/versions/2/onnx").content == b"graph"
        assert tree(tmp_path / "w" / "incoming") == set()
    assert cifnet_pl.load(zip_file).class_names == ["red", "green", "blue"]
    names = exported.call_args.args[1]["class_names"]
    assert json.loads(names) == ["red", "green", "blue"]


def test_doubtful_images(http):
    """Images of another colour are found, but the only one of a class."""
    for name, other in (("blue", "yellow"), ("yellow", "blue")):
        wrong = [("files", ("wrong.png", image(other, 900)))]
        teach(http, [*images(name, 20), *wrong], name)
    taught(http, "brown", 1)
    found = http.get("/audit").json()
    assert (found["images"], found["not_judged"]) == (42, ["brown"])
    label_errors = {(one["label"], one["predicted"]) for one in found["label_errors"]}
    assert label_errors == {("blue", "yellow"), ("yellow", "blue")}


def test_token(tmp_path):
    token = "a" * 20
    with client(tmp_path / "w", Access(token=token)) as http:
        for path in ("/classes", "/summary", "/versions", "/images/x", "/jobs/x"):
            for kind in ("Bearer", "bearer"):  # its case does not matter (RFC 9110)
                good = {"Authorization": f"{kind} {token}"}
                assert http.get(path, headers=good).status_code != 401
            for wrong in ({}, {"Authorization": "Bearer x"}):
                assert http.get(path, headers=wrong).status_code == 401, path
        assert http.post("/classify", files=images("red", 1)).status_code == 401
        for path in ("/", "/docs", "/page/page.js", "/health"):
            assert http.get(path).status_code == 200


def test_no_cookie_no_cross_origin_and_a_strict_policy(http):
    for path in ("/", "/classes", "/nothing", "/page/main.js", "/openapi.json"):
        headers = http.get(path).headers
        assert headers.items() >= HEADERS.items()
        assert not {"set-cookie", "access-control-allow-origin"} & set(headers)


def test_read_only(tmp_path):
    """It answers; every POST that changes something is refused."""
    with client(tmp_path / "w", options=ServiceOptions(read_only=True)) as http:
        answers = set()
        for path, kinds in http.get("/openapi.json").json()["paths"].items():
            if "post" in kinds and path not in ("/classify", "/group"):
                answers.add(http.post(path.replace("{number}", "1")).status_code)
        assert answers == {403}
        assert names_of(http.post("/classify", files=images("red", 1))) == ["red"]
    assert tree(tmp_path / "w" / "incoming") == set()


def test_limits(http, monkeypatch):
    assert http.post("/group", json={"images": ["a"] * 2001}).status_code == 413
    limits = Limits(body_bytes=20_000, json_bytes=9_000, image_bytes=5_000, images=3)
    monkeypatch.setattr(gate, "LIMITS", limits)
    answers = [
        http.post("/classify", files=[("files", ("a.png", bytes(30_000)))]),
        http.post("/classify", files=[("files", ("a.png", b"x"))] * 4),
        http.post("/forget", json={"name": "x" * 10_000}),
        http.post("/forget", files=[("files", ("a.png", bytes(10_000)))]),
    ]
    for answer in answers:
        assert (answer.status_code, set(answer.json())) == (413, {"error"})
    large = http.post("/classify", files=[("files", ("a.png", bytes(6_000)))]).json()
    assert "larger than" in large["images"][0]["unreadable"]


def test_a_fault_stops_nothing(http, caplog):
    """The next changes are made; the oldest jobs and earlier models are forgotten."""
    caplog.set_level("ERROR", "cifnet_pl.serving")  # pytest keeps what is logged
    service = http.app.app.state.service
    changed(http, "/rename", old="red", new="a")
    service.answering.submit(image("red", 50)).result()
    replaced = weakref.ref(service.answering.served.model)
    failed = service.submit("fail", Mock(side_effect=ZeroDivisionError))
    failed.end.result()
    assert (failed.status, "log" in failed.error) == (500, True)
    for _ in range(REMEMBERED_CHANGES + 1):
        service.submit("nothing", Mock(return_value=None)).end.result()
    assert http.get(f"/jobs/{failed.job}").status_code == 404
    assert changed(http, "/rename", old="a", new="b")["version"] == 3
    assert becomes(lambda: gc.collect() >= 0 and replaced() is None)


# ---------------------------------------------------------------------- where nothing, or
# something, is known at first


def test_the_first_classes_are_taught_and_taken_back(tmp_path):
    """A model of no class answers with none, learns the first ones, and forgets them."""
    with client(tmp_path / "w", begun=model(())) as http:
        (answer,) = http.post("/classify", files=images("red", 1)).json()["images"]
        assert (answer["classes"], answer["known"]) == ([], None)
        assert http.get("/summary").json()["classes"] == 0
        for path in ("/versions/1/bundle", "/audit"):
            assert http.get(path).status_code == 409
        files = {}
        for name in ("red", "green"):
            for i in range(6):
                files[f"{name}/{i}.png"] = image(name, i)
        lesson = teach(http, [("files", ("a.zip", zipped(files)))]).json()
        assert lesson["learned"] == {"red": 6, "green": 6}
    with client(tmp_path / "w", begun=model(())) as http:
        answer = http.post("/classify", files=images("green", 3, 500))
        assert names_of(answer) == ["green"] * 3
        assert http.post("/undo").json()["version"] == 1
        assert counts(http) == {}
        assert http.post("/redo").json()["version"] == 2


def test_the_images_of_fit_are_examples_and_are_forgotten(tmp_path):
    """Those that the model learned, by their content; others stay outside."""
    learned = {name: [image(name, i) for i in range(4)] for name in ("red", "green")}
    folder = class_folders(tmp_path / "photos", **learned)
    begun = cifnet_pl.extend(model(()), folder).model
    (folder / "red" / "new.png").write_bytes(image("red", 9))
    with client(tmp_path / "w", begun=begun, images=folder) as http:
        assert [len(files) for files in kept(http).values()] == [4, 4]
        # Four near-duplicates each.
        assert sorted(http.get("/audit").json()["not_judged"]) == ["green", "red"]
        assert changed(http, "/forget", name="green")["exact"] is True
    with client(tmp_path / "w", begun=begun, images=folder) as http:
        assert [len(files) for files in kept(http).values()] == [4]
    assert len(list(folder.rglob("*.png"))) == 9
