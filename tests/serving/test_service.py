"""The service over HTTP, in this process: ask, teach, look, change; who may; what is refused and
how.
"""

import threading
import zipfile
from io import BytesIO
from unittest.mock import Mock

import pytest
from PIL import Image

import cifnet_pl
from cifnet_pl.heads import LogisticHead
from cifnet_pl.model import export
from cifnet_pl.serving import gate
from cifnet_pl.serving import service as teaching
from cifnet_pl.serving.answering import ServiceOptions
from cifnet_pl.serving.gate import HEADERS, Access, Limits
from cifnet_pl.serving.messages import DISK_FULL, RequestError
from cifnet_pl.serving.service import QUEUED_CHANGES, Service
from cifnet_pl.serving.workspace import Workspace
from cifnet_pl.utilities.errors import CheckpointError
from tests.serving.services import (
    SIDE,
    assert_same_model,
    becomes,
    client,
    counts,
    image,
    images,
    kept,
    model,
    teach,
    tree,
    zipped,
)


def names_of(answer):
    return [one["classes"][0]["name"] for one in answer.json()["images"]]


def ended(http, job):
    """A change once it has ended."""
    return becomes(
        lambda: (
            (now := http.get(f"/jobs/{job['job']}").json())["state"]
            in ("done", "refused")
            and now
        )
    )


def taught(http, name="blue", count=10, **params):
    answer = teach(http, images(name, count), name, **params)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
def logistic(tmp_path):
    """A service of a model that tells no novelty, leaves nothing out and takes in nothing more."""
    made = model(head=LogisticHead(3 * SIDE**2))
    service = Service(Workspace(tmp_path / "w", made), made)
    yield service
    service.close()


# ---------------------------------------------------------------------- ask


def test_answers_are_the_models_own(http, tmp_path):
    """Through HTTP, the same numbers as the model gives for the files."""
    own = model()
    for i, name in enumerate(["red", "green", "red"]):
        (tmp_path / f"{i}.png").write_bytes(image(name, 50 + i))
    files = [
        ("files", (f"{i}.png", (tmp_path / f"{i}.png").read_bytes())) for i in range(3)
    ]
    found = http.post("/classify", files=files).json()
    assert found["version"] == 1
    for answer, prediction in zip(
        found["images"],
        own.classify(tmp_path / f"{i}.png" for i in range(3)),
        strict=True,
    ):
        assert answer["file"] == prediction.file.name
        assert [one["name"] for one in answer["classes"]] == list(prediction.classes)
        shares = [one["probability"] for one in answer["classes"]]
        assert shares == pytest.approx(prediction.probabilities, abs=1e-6)


def test_unknown_images_and_prediction_sets(http):
    """A unknown image is called so until it is taught; known ones get the set of classes that they
    may be.
    """
    sent = [*images("red", 1, 60), *images("blue", 1, 60)]
    red, blue = http.post("/classify", files=sent).json()["images"]
    assert red["known"]
    assert red["prediction_set"] == ["red"]
    assert not blue["known"]
    assert blue["novelty"] > red["novelty"]
    assert blue["p_value"] < 0.05 < red["p_value"]
    taught(http)
    assert [
        one["known"] for one in http.post("/classify", files=sent).json()["images"]
    ] == [True, True]


def test_a_model_that_can_promise_nothing_says_nothing(logistic):
    scored = logistic.answering.submit(image("red", 1)).result(60)
    answer = logistic.inbox.answer(scored, "a", 1)
    assert answer.known is None
    assert answer.novelty is None
    assert answer.p_value is None
    assert answer.prediction_set is None


def test_an_unreadable_image_does_not_stop_the_others(http):
    sent = {"a.png": image("red", 1), "<b>.png": b"no", "c.png": image("green", 1)}
    files = [("files", one) for one in sent.items()]
    first, bad, last = http.post("/classify", files=files).json()["images"]
    assert (first["classes"][0]["name"], last["classes"][0]["name"]) == ("red", "green")
    assert bad["file"] == "<b>.png"
    assert bad["classes"] == []
    assert bad["unreadable"] == "no image of a known format"


# ---------------------------------------------------------------------- teach


def test_taught_as_the_command_line_teaches(http, tmp_path):
    """The same weights as ``extend`` gives for the same images."""
    lesson = taught(http)
    assert lesson["version"] == 2
    assert lesson["learned"] == {"blue": 10}
    assert lesson["held_out_images"] == 2
    assert lesson["old_accuracy_before"] == 100.0
    folder = tmp_path / "photos" / "blue"
    folder.mkdir(parents=True)
    for _, (name, content) in images("blue", 10):
        (folder / name).write_bytes(content)
    own = cifnet_pl.extend(model(), tmp_path / "photos").model
    assert_same_model(
        own, cifnet_pl.load(tmp_path / "w" / "versions" / "000002"), atol=1e-9
    )
    assert (
        names_of(http.post("/classify", files=images("blue", 3, 500))) == ["blue"] * 3
    )


def test_a_trial_changes_nothing(http, tmp_path):
    before = tree(tmp_path / "w" / "versions"), http.get("/versions").json()
    lesson = taught(http, dry_run="true")
    assert (lesson["version"], lesson["learned"]) == (None, {"blue": 10})
    assert (tree(tmp_path / "w" / "versions"), http.get("/versions").json()) == before
    assert [len(http.get("/classes").json()), http.get("/inbox").json()["waiting"]] == [
        2,
        10,
    ]


def test_class_folders_in_a_zip_file_and_an_image_counts_once(http):
    files = {
        f"{name}/{i}": content
        for name in ("blue", "red")
        for i, (_, (_, content)) in enumerate(images(name, 5))
    }
    assert teach(http, [("files", ("photos.zip", zipped(files)))]).json()[
        "learned"
    ] == {"blue": 5, "red": 5}
    assert taught(http, count=7)["learned"] == {"blue": 2}
    assert counts(http) == {"red": 17, "green": 12, "blue": 7}
    assert http.post("/inbox", files=images("blue", 7)).json() == {
        "images": [],
        "known": 7,
        "unreadable": [],
        "learned_elsewhere": [],
    }


def test_learning_does_not_block_answers_and_others_wait_with_their_place(
    tmp_path, monkeypatch
):
    """While an update cannot end, images are answered, and two more changes say how many come
    before them.
    """
    begun = threading.Event()
    go_on = threading.Event()
    learn = teaching.learn

    def slow(*args, **kwargs):
        begun.set()
        assert go_on.wait(120)
        return learn(*args, **kwargs)

    monkeypatch.setattr(teaching, "learn", slow)
    with client(tmp_path / "w") as http:
        jobs = [teach(http, images("blue", 5), "blue", wait="false")]
        jobs += [
            http.post("/rename?wait=false", json={"old": "red", "new": new})
            for new in ("a", "b")
        ]
        assert [job.status_code for job in jobs] == [202] * 3
        assert begun.wait(60)
        now = [http.get(f"/jobs/{job.json()['job']}").json() for job in jobs]
        assert [(job["state"], job["place"]) for job in now] == [
            ("at work", 0),
            ("waiting", 1),
            ("waiting", 2),
        ]
        answer = http.post("/classify", files=images("red", 2))
        assert (answer.json()["version"], names_of(answer)) == (1, ["red"] * 2)
        go_on.set()
        now = [ended(http, job.json()) for job in jobs]
        assert [(job["state"], job["status"]) for job in now] == [
            ("done", 200),
            ("done", 200),
            ("refused", 404),
        ]
        assert now[0]["update"]["learned"] == {"blue": 5}
        assert http.get("/versions").json()["current"] == 3


# ---------------------------------------------------------------------- change


def test_purged_images_and_versions_are_gone(tmp_path):
    """Images of forgotten classes first, then all; what remains goes on, also after a new start."""
    with client(tmp_path / "w") as http:
        taught(http, "blue", 4)
        taught(http, "yellow", 3)
        assert http.post("/forget", json={"name": "blue"}).json()["exact"] is True
        assert len(tree(tmp_path / "w" / "images")) == 7
        assert (
            http.post("/purge", json={}).json()["message"]
            == "deleted 4 photos and 3 other versions for good"
        )
        assert [path.name for path in (tmp_path / "w" / "versions").iterdir()] == [
            "000004"
        ]
        assert http.post("/undo").status_code == 409
        assert [len(files) for files in kept(http).values()] == [0, 0, 3]
        assert http.post("/purge", json={"images": "all"}).status_code == 200
        assert tree(tmp_path / "w" / "images") == set()
    with client(tmp_path / "w") as http:
        taught(
            http, "yellow", 5
        )  # three of them once more: an image of the model's own memory counts once
        assert [len(files) for files in kept(http).values()] == [0, 0, 2]


def test_forgotten_exactly_where_all_images_are_kept(http, tmp_path):
    """A class that was taught here leaves no trace: the model is the one before, to rounding."""
    taught(http)
    changed = http.post("/forget", json={"name": "blue"}).json()
    assert (changed["exact"], changed["version"]) == (True, 3)
    assert_same_model(model(), cifnet_pl.load(tmp_path / "w" / "versions" / "000003"))
    changed = http.post("/forget", json={"name": "red"}).json()
    assert (changed["exact"], "still count" in changed["message"]) == (False, True)
    assert http.post("/forget", json={"name": "green"}).status_code == 422
    assert list(counts(http)) == ["green"]


def refused(http, path, content):
    """The end of a change that is refused."""
    return ended(http, http.post(f"{path}?wait=false", json=content).json())


def test_what_may_be_a_mistake_is_done_where_it_is_asked_for_anyway(http):
    """A name that is nearly another, of an update and of a class; an image as two classes: once by
    mistake, once not.
    """
    assert teach(http, images("red", 1, 300), " RED").status_code == 409
    (one,) = http.get("/inbox").json()["images"]
    learn = {"json": {"names": {one["image"]: " RED"}}}
    assert http.post("/inbox/learn?anyway=true", **learn).json()["learned"] == {
        "RED": 1
    }
    taught(http, "navy", 1)
    job = refused(http, "/rename", {"old": "navy", "new": "Green "})
    assert job["status"] == 409
    assert job["may_be_asked_for"]
    assert job["instead"] == {"Green": "green"}
    assert (
        http.post(
            "/rename?anyway=true", json={"old": "navy", "new": "Green "}
        ).status_code
        == 200
    )
    assert list(counts(http)) == ["red", "green", "RED", "Green"]


def test_renamed_classes_keep_their_images(http):
    taught(http, count=4)
    assert (
        http.post("/rename", json={"old": "blue", "new": "<img src=x>"}).json()[
            "version"
        ]
        == 3
    )
    assert [counts(http)["<img src=x>"], len(kept(http)["<img src=x>"])] == [4, 4]
    image = http.get(f"/images/{kept(http)['<img src=x>'][0]}")
    assert image.headers["content-type"] == "image/png"
    assert Image.open(BytesIO(image.content)).size == (24, 24)
    for old, new, status in (
        ("x", "y", 404),
        ("red", "green", 409),
        ("red", "../x", 422),
        ("red", "", 422),
        ("red", "red ", 422),
    ):
        answer = http.post("/rename", json={"old": old, "new": new})
        assert (answer.status_code, set(answer.json())) == (status, {"error"})


def test_two_classes_become_one(http, tmp_path):
    """The model is the one that learned all images as one class, and undo takes it back; images
    must be kept for it.
    """
    taught(http, "blue", 6)
    teach(http, images("blue", 4, 300), "Blue", anyway="true")
    job = refused(http, "/rename", {"old": "Blue", "new": "blue"})
    assert (job["may_be_asked_for"], job["instead"]) == (False, {"blue": "blue"})
    assert (
        http.post("/move", json={"name": "Blue", "into": "blue"}).json()["message"]
        == "joined 'Blue' to 'blue'"
    )
    assert [counts(http)["blue"], len(kept(http)["blue"])] == [10, 10]
    http.post("/undo")
    assert len(counts(http)) == 4
    http.post("/forget", json={"name": "Blue"})
    teach(http, images("blue", 4, 300), "blue")
    versions = tmp_path / "w" / "versions"
    assert_same_model(
        cifnet_pl.load(versions / "000006"), cifnet_pl.load(versions / "000004")
    )
    job = refused(http, "/move", {"name": "red", "into": "green"})
    assert job["status"] == 409
    assert "not all of its photos" in job["error"]


def test_a_class_is_split_and_a_wrong_image_is_moved(http, tmp_path):
    """The model is the one that was taught so at once; what may be a mistake is asked about; undo
    takes it back.
    """
    both = [*images("blue", 6), *images("yellow", 4)]
    teach(http, both, "both")
    groups = http.post("/group", json={"images": kept(http)["both"]}).json()
    assert [len(one["images"]) for one in groups] == [6, 4]
    asked = {"name": "both", "into": "yellow", "images": groups[1]["images"]}
    assert http.post("/move", json={**asked, "into": "Red"}).status_code == 409
    assert http.post("/move", json={**asked, "images": ["x"]}).status_code == 422
    assert [
        http.post("/move", json={**asked, "into": into}).status_code
        for into in ("both", "../x", " ")
    ] == [422] * 3
    assert http.post("/move", json={**asked, "name": "neither"}).status_code == 404
    assert (
        http.post("/move", json=asked).json()["message"]
        == "moved 4 photos of 'both' to 'yellow'"
    )
    http.post("/move", json={"name": "both", "into": "blue"})
    assert counts(http) == {"red": 12, "green": 12, "yellow": 4, "blue": 6}
    assert [len(files) for files in kept(http).values()] == [0, 0, 4, 6]
    http.post("/versions/1/serve")
    names = {
        one["image"]: one["file"].split("-")[0]
        for one in http.get("/inbox").json()["images"]
    }
    assert http.post("/inbox/learn", json={"names": names}).json()["learned"] == {
        "blue": 6,
        "yellow": 4,
    }
    versions = tmp_path / "w" / "versions"
    assert_same_model(
        cifnet_pl.load(versions / "000005"), cifnet_pl.load(versions / "000004")
    )
    http.post("/versions/2/serve")
    assert "both" in counts(http)


def test_downloads(http, tmp_path, monkeypatch):
    taught(http)
    (tmp_path / "bundle.zip").write_bytes(http.get("/versions/2/bundle").content)
    assert cifnet_pl.load(tmp_path / "bundle.zip").class_names == [
        "red",
        "green",
        "blue",
    ]
    with zipfile.ZipFile(tmp_path / "bundle.zip", "a") as archive:
        archive.writestr("../config.json", b"")
    with pytest.raises(CheckpointError, match="cannot read"):
        cifnet_pl.load(tmp_path / "bundle.zip")
    exported = Mock(side_effect=lambda model: (b"graph", model.class_names))
    monkeypatch.setattr(export, "onnx_bytes", exported)
    assert http.get("/versions/2/onnx").content == b"graph"
    assert exported.call_args.args[0].class_names == ["red", "green", "blue"]
    assert tree(tmp_path / "w" / "incoming") == set()


def test_uncertain_images_and_the_nearest_image(http):
    """Images of another colour are found, but the only one of a class; an answer shows the most
    similar kept image.
    """
    for name, other in (("blue", "yellow"), ("yellow", "blue")):
        wrong = [("files", ("wrong.png", image(other, 900)))]
        teach(http, [*images(name, 20), *wrong], name)
    taught(http, "brown", 1)
    found = http.get("/audit").json()
    assert (found["images"], found["not_judged"]) == (42, ["brown"])
    label_errors = {(one["label"], one["predicted"]) for one in found["label_errors"]}
    assert label_errors == {("blue", "yellow"), ("yellow", "blue")}
    nearest = becomes(
        lambda: http.post("/classify", files=images("blue", 1)).json()["images"][0][
            "nearest"
        ]
    )
    assert http.get(f"/images/{nearest}").content == image("blue", 100)


def test_a_full_disk_refuses_the_change_and_answers_go_on(http, monkeypatch):
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr("cifnet_pl.utilities.files.os.replace", full)
    answer = http.post("/rename", json={"old": "red", "new": "a"})
    sentence = DISK_FULL
    assert (answer.status_code, answer.json()["error"]) == (507, sentence)
    assert names_of(http.post("/classify", files=images("red", 1))) == ["red"]
    monkeypatch.undo()
    assert http.post("/rename", json={"old": "red", "new": "a"}).json()["version"] == 2


def test_token(tmp_path):
    with client(tmp_path / "w", Access(token="a" * 20)) as http:
        good = {"Authorization": f"Bearer {'a' * 20}"}
        lower = {
            "Authorization": f"bearer {'a' * 20}"
        }  # the scheme's case does not matter (RFC 9110)
        assert http.get("/classes", headers=lower).status_code == 200
        for path in ("/classes", "/summary", "/versions", "/images/x", "/jobs/x"):
            assert http.get(path).status_code == 401, path
            assert http.get(path, headers=good).status_code != 401
        assert http.post("/classify", files=images("red", 1)).status_code == 401
        assert [
            http.get(path).status_code
            for path in ("/", "/docs", "/page/page.js", "/health")
        ] == [200] * 4
        wrong = {"Authorization": "Bearer x"}
        assert http.get("/classes", headers=wrong).status_code == 401
        assert http.get("/classes", headers=good).status_code == 200


def test_the_page_of_the_api_lists_routes_parameters_and_answers(http):
    page = http.get("/docs").text
    says = [
        "one image or many",
        "Number of images it was learned from",
        "Kept images that were judged",
    ]
    for said in (
        "POST /classify",
        "GET /health",
        "<code>anyway</code>",
        "<code>new</code>",
        *says,
    ):
        assert said in page


def test_no_cookie_no_cross_origin_and_a_strict_policy(http):
    for path in (
        "/",
        "/docs",
        "/classes",
        "/nothing",
        "/page/main.js",
        "/openapi.json",
    ):
        answer = http.get(path)
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
        assert "set-cookie" not in answer.headers
        assert "access-control-allow-origin" not in answer.headers


def test_read_only(tmp_path):
    with client(tmp_path / "w", options=ServiceOptions(read_only=True)) as http:
        answers = [http.post(path) for path in ("/undo", "/redo", "/versions/1/serve")]
        answers += [
            http.post("/forget", json={"name": "red"}),
            http.post("/rename", json={"old": "red", "new": "a"}),
        ]
        answers += [
            http.post("/purge", json={}),
            http.post("/move", json={"name": "red", "into": "green"}),
        ]
        answers += [
            http.post("/inbox", files=images("blue", 1)),
            http.post("/inbox/learn", json={"names": {"a": "b"}}),
            http.post("/inbox/names", json={"names": {"a": "b"}}),
            http.post("/days", json={"asked": 1}),
        ]
        answers += [http.post("/inbox/remove", json={"images": ["a"]})]
        assert {answer.status_code for answer in answers} == {403}
        asked = {"/classify", "/group"}  # every other POST changes something
        posts = [
            path
            for path, kinds in http.get("/openapi.json").json()["paths"].items()
            if "post" in kinds
        ]
        assert set(posts) - asked == {
            one.request.url.path.replace("/1/", "/{number}/") for one in answers
        }
        assert names_of(http.post("/classify", files=images("red", 1))) == ["red"]
    assert tree(tmp_path / "w" / "incoming") == set()


def test_limits(http, monkeypatch):
    limits = Limits(body_bytes=20_000, image_bytes=5_000, images=3)
    monkeypatch.setattr(gate, "LIMITS", limits)
    large = http.post("/classify", files=[("files", ("a.png", bytes(30_000)))])
    one = http.post("/classify", files=[("files", ("a.png", bytes(6_000)))])
    many = http.post("/classify", files=[("files", ("a.png", b"x"))] * 4)
    assert [answer.status_code for answer in (large, one, many)] == [413] * 3
    assert all(set(answer.json()) == {"error"} for answer in (large, one, many))


def test_a_fault_or_a_full_queue_stops_nothing(http):
    """A fault is a refusal; a queue that is full refuses more, and empties."""
    service = http.app.app.state.service
    go_on = threading.Event()
    wait = Mock(side_effect=lambda: go_on.wait(60), __name__="wait")
    failed = service.submit(Mock(side_effect=ZeroDivisionError, __name__="fail"))
    failed.end.result(60)
    assert (failed.status, "log" in failed.error) == (500, True)
    jobs = [service.submit(wait) for _ in range(QUEUED_CHANGES)]
    with pytest.raises(RequestError, match="changes are waiting already") as refusal:
        service.submit(wait)
    assert refusal.value.status == 503
    go_on.set()
    assert all(job.end.result(60) is None for job in jobs)
    assert http.post("/rename", json={"old": "red", "new": "a"}).status_code == 200


def test_heads_that_cannot_take_more_say_so(logistic):
    """The head's own reason, as a conflict."""
    arrived = logistic.inbox.receive(
        [(f"{i}.png", BytesIO(image("red", i))) for i in (400, 401)]
    ).images
    job = logistic.submit(logistic.learn, dict.fromkeys(arrived, "red"))
    job.end.result(60)
    assert job.status == 409
    assert "cannot add images to class 'red'" in job.error


# ---------------------------------------------------------------------- where nothing, or
# something, is known at first


def test_the_first_classes_are_taught_and_taken_back(tmp_path):
    """A model of no class answers with none, learns the first ones, goes on after a new start, and
    forgets them.
    """
    for turn in range(2):
        with client(tmp_path / "w", begun=model(())) as http:
            if not turn:
                (answer,) = http.post("/classify", files=images("red", 1)).json()[
                    "images"
                ]
                assert (answer["classes"], answer["known"]) == ([], None)
                assert http.get("/summary").json()["classes"] == 0
                assert (
                    http.get("/versions/1/bundle").status_code
                    == http.get("/audit").status_code
                    == 409
                )
                files = {
                    f"{name}/{i}.png": image(name, i)
                    for name in ("red", "green")
                    for i in range(6)
                }
                assert teach(http, [("files", ("a.zip", zipped(files)))]).json()[
                    "learned"
                ] == {"red": 6, "green": 6}
            assert (
                names_of(http.post("/classify", files=images("green", 3, 500)))
                == ["green"] * 3
            )
            assert http.post("/undo").json()["version"] == 1
            assert counts(http) == {}
            assert http.post("/redo").json()["version"] == 2


def test_the_images_of_fit_are_examples_and_are_forgotten(tmp_path):
    """Those of the folder that the model learned, by their content; each other one stays
    outside.
    """
    folder = tmp_path / "photos"
    for name in ("red", "green"):
        (folder / name).mkdir(parents=True)
        for i in range(4):
            (folder / name / f"{i}.png").write_bytes(image(name, i))
    begun = cifnet_pl.extend(model(()), folder).model
    (folder / "red" / "new.png").write_bytes(image("red", 9))
    with client(tmp_path / "w", begun=begun, images=folder) as http:
        assert [len(files) for files in kept(http).values()] == [4, 4]
        nearest = becomes(
            lambda: http.post("/classify", files=images("red", 1, 0)).json()["images"][
                0
            ]["nearest"]
        )
        assert http.get(f"/images/{nearest}").content == image("red", 0)
        assert sorted(http.get("/audit").json()["not_judged"]) == [
            "green",
            "red",
        ]  # four near-duplicates each
        assert http.post("/forget", json={"name": "green"}).json()["exact"] is True
    with client(tmp_path / "w", begun=begun, images=folder) as http:
        assert [len(files) for files in kept(http).values()] == [4]
    assert len(list(folder.rglob("*.png"))) == 9
