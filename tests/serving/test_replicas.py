"""Read-only replicas with LitServe: what one answers, and the command, where LitServe is installed."""

import base64
import json
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest

from cifnet_pl.__main__ import main
from tests.command_line import command, environment
from tests.serving.services import photo, saved

pytest.importorskip("litserve", reason="LitServe is not installed: pip install 'cifnet_pl[replicas]'")

TOKEN = "correct-horse-battery"


def test_a_replica_answers_as_the_model_does(tmp_path):
    from fastapi import HTTPException

    from cifnet_pl.serving.replicas import Photo, Replica

    api = Replica(str(saved(tmp_path / "b")), max_batch_size=4, batch_timeout=0.01)
    api.setup("cpu")
    sent = [Photo(image=base64.b64encode(photo(name, 60)).decode()) for name in ("red", "blue")]
    found = [api.encode_response(one) for one in api.unbatch(api.predict(api.batch([*map(api.decode_request, sent)])))]
    assert found[0].classes[0].name == "red"
    assert [one.known for one in found] == [True, False]
    for bad in ("!", base64.b64encode(b"no photo").decode()):
        with pytest.raises(HTTPException) as refusal:
            api.decode_request(Photo(image=bad))
        assert refusal.value.status_code == 422


@pytest.mark.parametrize(
    ("asked", "blue_is_known", "answers"), [((0.05, None), False, None), ((0.01, 0.6), True, ["red"])]
)
def test_it_promises_what_it_was_asked_for(asked, blue_is_known, answers, tmp_path):
    """With 24 stored samples a p-value is 0.04 or more."""
    from cifnet_pl.serving.replicas import Replica

    api = Replica(str(saved(tmp_path / "b")), asked)
    api.setup("cpu")
    red, blue = map(api.encode_response, api.predict([photo("red", 60), photo("blue", 60)]))
    assert (blue.known, red.answers) == (blue_is_known, answers)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--model", "nowhere"], "there is no model at nowhere"),
        (["--model", ".", "--count", "0"], "expected 1 to 256"),
        (["--model", ".", "--device", "tpu"], "tpu"),
        (["--model", ".", "--unknown", "0"], "--unknown is 0, expected a share between 0 and 1, or null"),
        (["--model", ".", "--coverage", "1.5"], "--coverage is 1.5"),
        (["--model", ".", "--token", "short"], "16 or more plain characters"),
        (["--model", ".", "--token_file", "nowhere"], "cannot read --token_file nowhere"),
    ],
)
def test_what_makes_no_sense_is_refused(options, sentence, capsys):
    assert main(["replicas", *options]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.soak
def test_the_command(tmp_path):
    """Two processes answer on the loopback whoever knows the token."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = command("replicas", "--model", str(saved(tmp_path / "b")), "--port", str(port), "--device", "cpu")
    words += ["--token", TOKEN, "--unknown", "null"]
    output = tmp_path / "output"
    with output.open("w") as file:
        process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, env=environment())
    content = json.dumps({"image": base64.b64encode(photo("green", 60)).decode()}).encode()
    address, kind = f"http://127.0.0.1:{port}/classify", {"Content-Type": "application/json"}
    request = urllib.request.Request(address, content, {**kind, "Authorization": f"Bearer {TOKEN}"})
    try:
        until = time.monotonic() + 250
        while True:
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    found = json.loads(answer.read())
                break
            except OSError:
                time.sleep(0.5)
            assert time.monotonic() < until, output.read_text()
            assert process.poll() is None, output.read_text()
        assert (found["classes"][0]["name"], found["known"]) == ("green", None)
        for headers, status in (
            ({}, 401),
            ({"Authorization": f"Bearer {TOKEN}", "Origin": "http://evil.example"}, 403),
        ):
            with pytest.raises(urllib.error.HTTPError) as refusal:
                urllib.request.urlopen(urllib.request.Request(address, content, {**kind, **headers}), timeout=30)
            assert refusal.value.code == status
    finally:
        process.send_signal(2)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
