"""Images that wait: who keeps them, in which order they come, what takes them away and back."""

import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from hashlib import sha256
from io import BytesIO

import cifnet_pl
from cifnet_pl.serving.answering import ServiceOptions
from tests.serving.services import (
    becomes,
    class_folders,
    client,
    counts,
    image,
    images,
    model,
    teach,
    tree,
    version_of,
    zipped,
)


def sent(http, files):
    answer = http.post("/inbox", files=files)
    assert answer.status_code == 200, answer.text
    return answer.json()


def waiting(http):
    """The images that wait, once all of them are answered."""

    def look():
        now = http.get("/inbox?count=1000").json()
        return now["seen"] == now["waiting"] and now

    return becomes(look)


def learned(http, names, **options):
    return http.post("/inbox/learn", json={"names": names}, **options)


def test_images_wait_through_a_new_start_until_they_are_decided(tmp_path):
    """Undo lets them wait again, and so does a new start before and after; redo takes them."""
    with client(tmp_path / "w") as http:
        answer = sent(http, [*images("blue", 3), ("files", ("bad.png", b"no"))])
        assert (len(answer["images"]), answer["known"]) == (3, [])
        assert answer["unreadable"][0]["file"] == "bad.png"
        packed = {}
        for name in ("blue", "yellow"):
            for i in (100, 200):
                packed[f"{name}/{i}.png"] = image(name, i)
        new = sent(http, [("files", ("a.zip", zipped(packed)))])["images"]
        assert len(new) == 3  # one of them waits already
        again = sent(http, images("blue", 3))
        assert (again["images"], again["unreadable"]) == ([], [])
        known = {one["image"]: one["name"] for one in again["known"]}
        assert known == dict.fromkeys(answer["images"])  # they are not learned
    with client(tmp_path / "w") as http:
        found = waiting(http)
        assert (found["waiting"], found["in_folders"], found["version"]) == (6, 4, 1)
        names = {one["image"]: one["folder"] or "blue" for one in found["images"]}
        assert learned(http, names).json()["learned"] == {"blue": 4, "yellow": 2}
        assert learned(http, names).status_code == 409
        known = sent(http, images("blue", 3))["known"]
        assert [one["name"] for one in known] == ["blue"] * 3
    with client(tmp_path / "w") as http:
        for step, count in ((None, 0), ("/undo", 6), ("/redo", 0)):
            if step is not None:
                http.post(step)
            assert http.get("/inbox").json()["waiting"] == count
    assert tree(tmp_path / "w" / "incoming") == set()


def test_the_most_uncertain_come_first_and_each_version_answers_anew(http):
    """Unless new or sure ones are asked for."""
    sent(http, [*images("red", 2), *images("blue", 3), *images("green", 1)])
    before = waiting(http)
    found = before["images"]
    assert [one["known"] for one in found] == [False] * 3 + [True] * 3
    shares = [one["classes"][0]["probability"] for one in found[3:]]
    assert shares == sorted(shares)
    assert http.get("/inbox?first=2&count=2").json()["images"] == found[2:4]
    surest = http.get("/inbox?surest=true").json()["images"]
    assert [one["known"] for one in surest] == [True] * 3 + [False] * 3
    assert surest[0]["image"] == found[-1]["image"]
    (new,) = sent(http, images("red", 1, 500))["images"]
    waiting(http)
    newest = http.get(f"/inbox?count=1&after={before['newest']}").json()["images"]
    assert [one["image"] for one in newest] == [new]
    learned(http, {found[0]["image"]: "blue", found[1]["image"]: "blue"})
    after = waiting(http)
    assert (after["version"], after["waiting"]) == (2, 5)
    (last,) = [one for one in after["images"] if one["image"] == found[2]["image"]]
    assert last["classes"][0]["name"] == "blue"


def test_what_is_taken_away_comes_back_or_goes(tmp_path, monkeypatch):
    with client(tmp_path / "w") as http:
        first, second = sent(http, images("blue", 2))["images"]
        for path, content, left in (
            ("/inbox/remove", {"images": [first, second]}, 0),
            ("/inbox/remove?back=true", {"images": [second]}, 1),
            ("/inbox/names", {"names": {second: "navy"}}, 1),
        ):
            assert http.post(path, json=content).json() == {"waiting": left}
        (one,) = http.get("/inbox").json()["images"]
        assert (one["image"], one["name"]) == (second, "navy")
        assert tree(tmp_path / "w" / "images") == {first, second}
    monkeypatch.setattr("cifnet_pl.serving.workspace.KEPT_SECONDS", 0)  # a week later
    with client(tmp_path / "w") as http:
        assert tree(tmp_path / "w" / "images") == {second}
        inbox = http.app.app.state.service.inbox
        watched = [(name, BytesIO(content)) for _, (name, content) in images("blue", 2)]
        assert inbox.receive(watched, again=False).images == []
        assert tree(tmp_path / "w" / "images") == {second}
        assert http.get("/inbox").json()["waiting"] == 1
        # Whoever drops it again wants it.
        assert sent(http, images("blue", 2))["images"] == [first]


def test_classes_are_learned_in_the_order_in_which_their_images_came(http):
    [first] = sent(http, images("blue", 1))["images"]
    [second] = sent(http, images("yellow", 1))["images"]
    answer = learned(http, {second: "yellow", first: "blue"})
    assert list(answer.json()["learned"]) == ["blue", "yellow"]


def test_images_of_a_forgotten_class_can_be_taught_again(http):
    """They do not come back by themselves; brought again, they wait through undo."""
    teach(http, images("blue", 3), "blu")
    http.post("/forget", json={"name": "blu"})
    assert http.get("/inbox").json()["waiting"] == 0
    assert len(sent(http, images("blue", 3))["images"]) == 3
    assert len(sent(http, images("blue", 3))["known"]) == 3
    for still in (0, 3):
        assert http.post("/undo").status_code == 200
        assert http.get("/inbox").json()["waiting"] == still
    http.post("/versions/3/serve")
    names = {one["image"]: "blue" for one in waiting(http)["images"]}
    assert learned(http, names).json()["learned"] == {"blue": 3}
    assert http.get("/inbox").json()["waiting"] == 0


def test_an_image_that_is_learned_again_while_it_waits(tmp_path):
    """It waits since its class was forgotten, and that is undone: to learn it as another class may
    be a mistake. Where images are not kept, they go when they are learned.
    """
    folder = tmp_path / "w"
    options = ServiceOptions(keep_images=False)
    with client(folder, begun=model(()), options=options) as http:
        teach(http, images("red", 3), "red")
        teach(http, images("green", 3), "green")
        assert tree(folder / "images") == set()
        http.post("/forget", json={"name": "red"})
        names = dict.fromkeys(sent(http, images("red", 3))["images"], "pink")
        http.post("/undo")
        refused = learned(http, names)
        assert refused.status_code == 409
        assert "was learned as 'red' before" in refused.json()["error"]
        again = learned(http, dict.fromkeys(names, "red"))
        said = (again.status_code, again.json()["error"])
        assert said == (422, "3 photos sent, but all were learned before")
        pink = learned(http, names, params={"anyway": "true"}).json()
        assert pink["learned"] == {"pink": 3}
        assert http.get("/inbox").json()["waiting"] == 0


def test_groups_are_of_one_class_each(http):
    """Even with more classes than a fixed number of groups; known ones are suggested."""
    names = ["red", *(f"product {i}" for i in range(12))]
    sent(http, [one for name in names for one in images(name, 5)])
    found = waiting(http)["images"]
    class_of = {one["image"]: one["file"].rsplit("-", 1)[0] for one in found}
    groups = http.post("/group", json={"images": list(class_of)}).json()
    grouped = [one for one in groups if len(one["images"]) > 1]
    assert sum(len(one["images"]) for one in grouped) >= 0.5 * len(found)
    for group in grouped:
        (name,) = {class_of[one] for one in group["images"]}
        assert (group["suggestion"] == "red") == (name == "red")
    pair = sent(http, [*images("red", 1, 500), *images("green", 1, 500)])["images"]
    answers = http.post("/group", json={"images": pair}).json()
    # Two classes are as likely, so none is suggested.
    assert [one["suggestion"] for one in answers] == [None]
    assert http.post("/group", json={"images": ["0" * 64 + ".png"]}).json() == []


def test_an_image_that_goes_while_others_are_embedded_is_left_out(http, monkeypatch):
    """As undo does during an audit."""
    names = sent(http, images("blue", 3))["images"]
    inbox = http.app.app.state.service.inbox
    embed = inbox._embed

    def lose_one(wanted):
        embed(wanted)
        inbox.known.pop(names[0], None)

    monkeypatch.setattr(inbox, "_embed", lose_one)
    present, z = inbox.embeddings(names)
    assert (present, len(z)) == (names[1:], 2)


def test_eight_people_decide_at_once(http):
    """Each image is learned once, and none is lost; those who come late are told."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: sent(http, images("blue", 2, 100 * i)), range(8)))
        names = [one["image"] for one in waiting(http)["images"]]
        assert len(names) == 16
        parts = [dict.fromkeys(names[2 * i : 2 * i + 4], "blue") for i in range(8)]
        answers = list(pool.map(lambda part: learned(http, part), parts))
    assert {answer.status_code for answer in answers} <= {200, 409, 422}
    assert counts(http)["blue"] == 16


def test_images_chosen_among_others_do_not_say_how_the_others_do(http, tmp_path):
    """Those that were sent in a folder of their class do; and all of them, once nothing waits."""

    def chosen(names, **options):
        number = learned(http, names, **options).json()["version"]
        return len(version_of(tmp_path, number).calibration.chosen)

    packed = zipped({f"yellow/{i}.png": image("yellow", i) for i in range(3)})
    own = sent(http, [("files", ("a.zip", packed))])["images"]
    others = sent(http, images("blue", 4))["images"]
    assert chosen({others[0]: "blue", own[0]: "yellow"}) == 1
    anyway = {"anyway": True}
    assert chosen({others[1]: "blue", own[1]: "blue"}, params=anyway) == 3
    last = {others[2]: "blue", others[3]: "blue", own[2]: "yellow"}
    assert chosen(last) == 0


def test_typed_names_are_kept_until_they_are_learned_or_taken_back(tmp_path):
    """Through a new start and undo, for every browser; nothing is learned by it."""
    with client(tmp_path / "w") as http:
        first, second = sent(http, images("blue", 2))["images"]
        http.post("/inbox/names", json={"names": {first: "blue", second: "sea"}})
        http.post("/inbox/names", json={"names": {second: None}})
    with client(tmp_path / "w") as http:
        assert http.get("/inbox").json()["names"] == {first: "blue"}
        learned(http, {first: "blue"})
        assert http.get("/inbox").json()["names"] == {}
        http.post("/undo")
        assert http.get("/inbox").json()["names"] == {first: "blue"}


def test_images_that_wait_follow_the_name_of_their_class(http):
    """They make no second class of the old name with the next update; undo and redo take their
    names back and away, a name that was typed meanwhile stays.
    """
    teach(http, images("blue", 3), "blue")
    teach(http, images("pink", 3), "pink")
    new = sent(http, images("blue", 2, 500))["images"]
    http.post("/inbox/names", json={"names": dict.fromkeys(new, "blue")})

    def names():
        return list(http.get("/inbox").json()["names"].values())

    for path, content, after in (
        ("/rename", {"old": "blue", "new": "sea"}, ["sea", "sea"]),
        ("/move", {"name": "blue", "into": "pink"}, ["pink", "pink"]),
        ("/forget", {"name": "blue"}, []),
    ):
        assert http.post(path, json=content).status_code == 200
        assert names() == after
        http.post("/undo")
        assert names() == ["blue", "blue"]
        http.post("/redo")
        assert names() == after
        http.post("/undo")
    http.post("/redo")
    http.post("/inbox/names", json={"names": {new[0]: "late"}})
    http.post("/undo")
    assert names() == ["late", "blue"]


def test_photos_that_the_other_class_holds_already_only_leave_their_own(tmp_path):
    """Where it holds all of them, nothing is learned, and the names of waiting images follow."""
    blue = [image("blue", number) for number in range(6)]
    classes = {"red": [image("red", 1)], "blue": blue, "sea": blue[:3], "sky": blue[:3]}
    folder = class_folders(tmp_path / "photos", **classes)
    begun = cifnet_pl.extend(model(()), folder, duplicates="keep").model
    with client(tmp_path / "w", begun=begun, images=folder) as http:
        files = [f"{sha256(content).hexdigest()}.png" for content in blue[:3]]
        moved = {"name": "blue", "into": "sea", "images": files}
        assert http.post("/move", json=moved).json()["message"].startswith("moved 3")
        assert counts(http) == {"red": 1, "sky": 3, "sea": 3, "blue": 3}
        new = sent(http, images("blue", 2, 500))["images"]
        http.post("/inbox/names", json={"names": dict.fromkeys(new, "sky")})
        joined = http.post("/move", json={"name": "sky", "into": "sea"})
        assert joined.json()["message"] == "joined 'sky' to 'sea'"
        assert http.get("/inbox").json()["names"] == dict.fromkeys(new, "sea")
        assert counts(http) == {"red": 1, "sea": 3, "blue": 3}
        http.post("/undo")
        assert http.get("/inbox").json()["names"] == dict.fromkeys(new, "sky")


def test_a_workspace_of_the_version_before_goes_on_with_its_names(tmp_path):
    """In its journal names had no version, and each change wrote them anew."""
    with client(tmp_path / "w") as http:
        (file,) = sent(http, images("blue", 1))["images"]
        http.post("/inbox/names", json={"names": {file: "red"}})
    with closing(sqlite3.connect(tmp_path / "w" / "journal.sqlite")) as journal:
        journal.execute("ALTER TABLE inbox DROP COLUMN named")
        journal.execute("PRAGMA user_version = 4")
    with client(tmp_path / "w") as http:
        http.post("/rename", json={"old": "red", "new": "crimson"})
        assert http.get("/inbox").json()["names"] == {file: "crimson"}


def test_folders_are_names_unless_they_are_several_or_a_split(http):
    """Images that lie flat in a split are asked about; class folders in it have names."""
    paths = ("sea/a.png", "sky/a.png", "data/Testing/1.png", "data/VAL/sea/2.png")
    contents = [image("blue", number) for number in (1, 1, 2, 3)]
    sent(http, [("files", one) for one in zip(paths, contents, strict=True)])
    found = waiting(http)
    folders = {one["file"]: one["folders"] for one in found["images"]}
    several = ["sea", "sky"]
    assert folders == {paths[0]: several, paths[2]: [], paths[3]: ["sea"]}
    assert found["in_folders"] == 1


def test_a_learned_image_in_the_folder_of_another_class_is_told(http):
    teach(http, images("blue", 3), "green")
    (one,) = sent(http, [("files", ("red/0.png", image("blue", 100)))])["known"]
    assert (one["name"], one["folder"]) == ("green", "red")


def test_images_before_one_that_is_refused_wait(http):
    files = [*images("blue", 3), ("files", ("a.zip", b"no zip file"))]
    assert http.post("/inbox", files=files).status_code == 422
    assert http.get("/inbox").json()["waiting"] == 3


def test_no_image_is_embedded_twice_at_once(http, watch):
    """By the thread in the background, and by a lesson."""
    service = http.app.app.state.service

    def slow(content):
        time.sleep(0.05)
        return content

    embedded = watch(service.answering, "submit", slow)
    names = sent(http, images("blue", 20))["images"]
    assert service.inbox.embeddings(names)[0] == names
    assert len(embedded) == len(set(embedded)) == 20
