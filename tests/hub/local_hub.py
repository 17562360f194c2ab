"""A server on the loopback device that speaks as much of the Hugging Face hub as one commit and one snapshot need.

The client on the other side is the real `huggingface_hub`; what it sends is stored, and given back byte for byte.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class LocalHub(ThreadingHTTPServer):
    """Repositories by name, each a dictionary of files."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.commits: list[dict[str, Any]] = []
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> LocalHub:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: LocalHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        self.server.requests.append(f"POST {path}")
        if self.headers.get("Authorization") != "Bearer hf_test":
            self._json({"error": "Invalid credentials in Authorization header"}, 401)
        elif path == "/api/validate-yaml":
            header = json.loads(body)["content"].split("---\n")[1]
            errors = [] if isinstance(yaml.safe_load(header), dict) else [{"message": "no metadata"}]
            self._json({"errors": errors, "warnings": []})
        elif path == "/api/repos/create":
            asked = json.loads(body)
            name = "/".join(part for part in (asked.get("organization"), asked["name"]) if part)
            self.server.repositories.setdefault(name, {})
            self._json({"url": f"{self.server.url}/{name}", "name": name})
        elif path.endswith("/preupload/main"):
            files = [
                {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                for one in json.loads(body)["files"]
            ]
            self._json({"files": files})
        elif path.endswith("/commit/main"):
            self._commit(path.removeprefix("/api/models/").removesuffix("/commit/main"), body)
        else:
            self._json({"error": "not here"}, 404)

    def _commit(self, name: str, body: bytes) -> None:
        for line in body.splitlines():
            part = json.loads(line)
            if part["key"] == "header":
                self.server.commits.append(part["value"])
            elif part["key"] == "file":
                content = base64.b64decode(part["value"]["content"])
                self.server.repositories[name][part["value"]["path"]] = content
        url = f"{self.server.url}/{name}/commit/{COMMIT}"
        self._json({"success": True, "commitOid": COMMIT, "commitUrl": url, "hookOutput": ""})

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        self.server.requests.append(f"{self.command} {path}")
        for name, files in self.server.repositories.items():
            if path.startswith(f"/api/models/{name}/tree/"):
                tree = [
                    {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                    for file, content in files.items()
                ]
                self._json(tree)
                return
            if path in (f"/api/models/{name}", f"/api/models/{name}/revision/main"):
                self._json({"id": name, "sha": COMMIT, "siblings": [{"rfilename": file} for file in files]})
                return
            for revision in ("main", COMMIT):
                file = path.removeprefix(f"/{name}/resolve/{revision}/")
                if file != path and file in files:
                    etag = {"ETag": f'"{hashlib.sha1(files[file]).hexdigest()}"', "X-Repo-Commit": COMMIT}
                    self._send(files[file], 200, "application/octet-stream", etag, with_body)
                    return
        self._json({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})

    def _json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._send(json.dumps(value).encode(), status, "application/json", headers or {}, self.command != "HEAD")

    def _send(self, content: bytes, status: int, kind: str, headers: dict[str, str], with_body: bool) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(content)
