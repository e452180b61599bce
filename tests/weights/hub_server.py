"""A Hugging Face hub on this machine: the few routes that huggingface_hub asks when it downloads a repository."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"
Repositories = Mapping[str, Mapping[str, bytes]]


@contextmanager
def hub_of(repositories: Repositories) -> Iterator[tuple[str, list[str]]]:
    """Serve {owner/name: {file: content}}; gives the endpoint and the list of paths that were asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(with_body=True)

        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def answer(self, with_body: bool) -> None:
            path = urlparse(self.path).path
            asked.append(path)
            status, headers, body = route(repositories, path)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, format: str, *values: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()


def route(repositories: Repositories, path: str) -> tuple[int, dict[str, str], bytes]:
    parts = path.strip("/").split("/")
    api = parts[:2] == ["api", "models"]
    name = "/".join(parts[2:4] if api else parts[:2])
    if name not in repositories:
        return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
    files = repositories[name]
    if api:
        return api_route(name, files, parts[4:])
    if parts[2] == "resolve" and (content := files.get("/".join(parts[4:]))) is not None:
        return 200, {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT}, content
    return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, b"{}"


def api_route(name: str, files: Mapping[str, bytes], rest: list[str]) -> tuple[int, dict[str, str], bytes]:
    if len(rest) > 1 and rest[1] not in ("main", COMMIT):
        return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
    if rest[:1] == ["tree"]:
        tree = [entry(file, content) for file, content in files.items()]
        return 200, {"Content-Type": "application/json"}, json.dumps(tree).encode()
    info = {"_id": "1", "id": name, "sha": COMMIT, "siblings": [{"rfilename": file} for file in files]}
    return 200, {"Content-Type": "application/json"}, json.dumps(info).encode()


def entry(file: str, content: bytes) -> dict[str, object]:
    return {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
