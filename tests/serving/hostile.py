"""Requests that nobody should send: mutated images, zip files, names, paths, forms and JSON."""

import json
from urllib.parse import quote

from hypothesis import strategies as st

from tests.serving.services import image, zipped

PATHS = ("/classify", "/inbox")
GETS = ("/classes", "/summary", "/versions", "/images/{}", "/jobs/{}", "/versions/{}/bundle",
        "/page/{}", "/{}")  # fmt: skip
POSTS = ("/inbox/learn", "/inbox/remove", "/group", "/forget", "/rename", "/move", "/undo", "/redo",
         "/versions/{}/serve", "/classify", "/inbox")  # fmt: skip
NAMES = st.one_of(
    st.sampled_from(
        ["../../outside.png", "..\\..\\outside.png", "/etc/passwd", "C:\\outside.png", "CON",
         "nul.png", "a/aux/b.png", "a\0b.png", "\u202egnp.exe", "<script>alert(1)</script>.png",
         "a" * 5000 + ".png", "x.zip", "..", ".", "",
         "file:///etc/passwd", "http://localhost/a.png", "%2e%2e%2foutside.png", "red/1.png"]
    ),
    st.text(max_size=30),
)  # fmt: skip
IMAGES = [
    image("red", 0, 12, kind) for kind in ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF")
]


@st.composite
def mutated(draw, source):
    """A file of which some parts are replaced or cut out."""
    content = bytearray(draw(source))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(content)))
        length = draw(st.sampled_from([0, 1, 20, len(content)]))
        content[start : start + length] = draw(st.binary(max_size=20))
    return bytes(content)


FILES = mutated(st.sampled_from(IMAGES)) | st.binary(max_size=200)
ZIPS = mutated(st.just(zipped({"a/b.png": IMAGES[0], "../c.png": IMAGES[1]})))
UPLOADS = st.lists(
    st.tuples(
        st.just("files"),
        st.tuples(NAMES, FILES) | st.tuples(st.sampled_from(["a.zip", "B.ZIP"]), ZIPS),
    ),
    max_size=4,
)
VALUES = st.recursive(
    st.none() | st.integers() | st.floats() | st.text() | st.just("red"),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
FIELDS = ("name", "old", "new", "into", "names", "images")
OBJECTS = st.dictionaries(st.sampled_from(FIELDS), VALUES)
BODIES = st.binary() | (VALUES | OBJECTS).map(json.dumps).map(str.encode)
PARTS = (
    st.text(max_size=12)
    | st.integers(-1, 10**20).map(str)
    | st.sampled_from(["%2e%2e%2f", "..%00", "1", "model"])
)


@st.composite
def requests(draw):
    """Arguments of a client's ``request``."""
    kind = draw(st.sampled_from(["upload", "get", "post"]))
    if kind == "upload":
        path = draw(st.sampled_from(PATHS))
        return {"method": "POST", "url": path, "files": draw(UPLOADS)}
    part = quote(draw(PARTS), safe="%.")
    if kind == "get":
        return {"method": "GET", "url": draw(st.sampled_from(GETS)).format(part)}
    path = draw(st.sampled_from(POSTS)).format(part)
    method = draw(st.sampled_from(["POST", "PUT", "DELETE", "OPTIONS"]))
    return {"method": method, "url": path, "content": draw(BODIES)}


def assert_refused_well(http, request):
    """An answer, or one sentence with its status; never a fault of the service."""
    answer = http.request(**request)
    said = (request, answer.text)
    assert answer.status_code < 500 or answer.status_code in (503, 507), said
    if answer.status_code >= 400:
        ((key, sentence),) = answer.json().items()
        assert key == "error", said
        assert 0 < len(sentence) < 1000, said
        assert sentence.isprintable(), said
        assert "Traceback" not in sentence, said
