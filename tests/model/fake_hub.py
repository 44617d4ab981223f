"""A server that answers as the Hugging Face hub does, as far as models are pushed and fetched."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_of_the_test"


@dataclass
class FakeHub:
    """The repositories, by name: files by name; and what was asked."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    address: str = ""

    def commit(self, name: str) -> str:
        return hashlib.sha1(
            repr(sorted(self.repositories[name].items())).encode()
        ).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    hub: FakeHub

    def log_message(self, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.hub.asked.append(f"{self.command} {path}")
        if result := re.fullmatch(
            r"/api/models/([\w.-]+/[\w.-]+)(?:/revision/([\w.]+))?", path
        ):
            self._about(result[1], result[2])
        elif result := re.fullmatch(r"/api/models/([\w.-]+/[\w.-]+)/tree/\w+", path):
            self._tree(result[1])
        elif result := re.fullmatch(r"/([\w.-]+/[\w.-]+)/resolve/(\w+)/(.+)", path):
            self._file(*result.groups())
        else:
            self._json(404, {"error": "not found"})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self.hub.asked.append(f"{self.command} {self.path}")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/validate-yaml":
            return self._json(200, {"errors": [], "warnings": []})
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._json(401, {"error": "Invalid username or password."})
        if self.path == "/api/repos/create":
            options = json.loads(body)
            if options.get("organization"):
                name = f"{options['organization']}/{options['name']}"
            else:
                name = options["name"]
            fresh = name not in self.hub.repositories
            self.hub.repositories.setdefault(name, {".gitattributes": b""})
            return self._json(
                200 if fresh else 409,
                {"url": f"{self.hub.address}/{name}", "name": name},
            )
        result = re.fullmatch(
            r"/api/models/([\w.-]+/[\w.-]+)/(preupload|commit)/main", self.path
        )
        assert result, self.path
        if result[2] == "preupload":
            paths = [file["path"] for file in json.loads(body)["files"]]
            files = [
                {"path": path, "uploadMode": "regular", "shouldIgnore": False}
                for path in paths
            ]
            return self._json(200, {"files": files})
        return self._commit(result[1], [json.loads(line) for line in body.splitlines()])

    def _commit(self, name: str, lines: list[dict[str, Any]]) -> None:
        files = self.hub.repositories[name]
        for line in lines:
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(
                    line["value"]["content"]
                )
            elif line["key"] == "deletedFile":
                del files[line["value"]["path"]]
        commit = self.hub.commit(name)
        url = f"{self.hub.address}/{name}/commit/{commit}"
        self._json(200, {"success": True, "commitOid": commit, "commitUrl": url})

    def _about(self, name: str, revision: str | None) -> None:
        files = self.hub.repositories.get(name)
        if files is None:
            return self._json(401, {"error": "Repository not found"}, "RepoNotFound")
        if revision not in (None, "main", self.hub.commit(name)):
            return self._json(404, {"error": "Invalid rev id"}, "RevisionNotFound")
        siblings = [
            {"rfilename": file, "size": len(content)} for file, content in files.items()
        ]
        about = {
            "id": name,
            "modelId": name,
            "sha": self.hub.commit(name),
            "siblings": siblings,
            "private": False,
        }
        return self._json(200, {**about, "tags": [], "downloads": 0})

    def _tree(self, name: str) -> None:
        files = []
        for file, content in self.hub.repositories[name].items():
            oid = hashlib.sha1(content).hexdigest()
            files.append(
                {"type": "file", "path": file, "size": len(content), "oid": oid}
            )
        self._json(200, files)

    def _file(self, name: str, revision: str, file: str) -> None:
        content = self.hub.repositories[name][file]
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", self.hub.commit(name))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def _json(self, status: int, content: Any, error: str | None = None) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        if error is not None:
            self.send_header("X-Error-Code", error)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """Serve a hub without models on a port of this machine."""
    hub = FakeHub()
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub})
    )
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
