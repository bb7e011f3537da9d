"""A server on loopback that speaks as much of the Hub's API as pulling takes, and can be told to misbehave."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repo:
    """What is served, and how it fails."""

    files: dict[str, bytes]
    large: frozenset[str] = frozenset()
    """Files that are stored as LFS objects, with a SHA-256."""
    gated: bool = False
    absent: frozenset[str] = frozenset()
    """Listed, and answered with 404."""
    damaged: frozenset[str] = frozenset()
    """Served with one byte changed, under the right hash."""
    cut: dict[str, list[int]] = field(default_factory=dict)
    """File -> after how many bytes the line drops, one entry for each answer that is cut."""
    token: str | None = None
    """The only token that opens it."""
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Method, path and range of every request."""


def etag(repo: Repo, name: str) -> str:
    content = repo.files[name]
    if name in repo.large:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def sibling(repo: Repo, name: str) -> dict[str, Any]:
    size = len(repo.files[name])
    out: dict[str, Any] = {"rfilename": name, "size": size, "blobId": etag(repo, name)}
    if name in repo.large:
        out["blobId"] = hashlib.sha1(etag(repo, name).encode()).hexdigest()  # of the pointer, not of the content
        out["lfs"] = {"sha256": etag(repo, name), "size": size, "pointerSize": 130}
    return out


@contextmanager
def serving(repos: dict[str, Repo]) -> Iterator[str]:
    """Serve repositories by name; gives the endpoint."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def refuse(self, status: int, code: str, body: bool) -> None:
            content = json.dumps({"error": code}).encode()
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body:
                self.wfile.write(content)

        def answer(self, body: bool) -> None:
            api = re.fullmatch(r"/api/models/((?:[^/]+/)?[^/?]+)(?:/revision/([^/?]+))?(?:\?.*)?", self.path)
            file = re.fullmatch(r"/((?:[^/]+/)?[^/]+)/resolve/([^/]+)/(.+)", self.path)
            found = api or file
            repo = repos.get(found[1]) if found else None
            if found is None or repo is None:
                self.refuse(404, "RepoNotFound", body)
                return
            repo.asked.append((self.command, self.path, self.headers.get("Range")))
            if repo.gated or (repo.token and self.headers.get("Authorization") != f"Bearer {repo.token}"):
                self.refuse(403 if repo.gated else 401, "GatedRepo" if repo.gated else "RepoNotFound", body)
            elif (found[2] or "main") not in ("main", COMMIT):
                self.refuse(404, "RevisionNotFound", body)
            elif api:
                content = json.dumps(
                    {
                        "id": api[1],
                        "modelId": api[1],
                        "sha": COMMIT,
                        "private": False,
                        "downloads": 0,
                        "likes": 0,
                        "tags": [],
                        "siblings": [sibling(repo, n) for n in repo.files],
                    }
                ).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if body:
                    self.wfile.write(content)
            else:
                assert file is not None
                self.send_file(repo, file[3], body)

        def send_file(self, repo: Repo, name: str, body: bool) -> None:
            if name not in repo.files or name in repo.absent:
                self.refuse(404, "EntryNotFound", body)
                return
            content = repo.files[name]
            if name in repo.damaged:
                content = content[:-1] + bytes([content[-1] ^ 1])
            start = 0
            if (asked := self.headers.get("Range")) and (match := re.fullmatch(r"bytes=(\d+)-", asked)):
                start = int(match[1])
            part = content[start:]
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{etag(repo, name)}"')
            if name in repo.large:
                self.send_header("X-Linked-ETag", f'"{etag(repo, name)}"')
                self.send_header("X-Linked-Size", str(len(content)))
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            if not body:
                return
            if repo.cut.get(name):
                self.wfile.write(part[: repo.cut[name].pop(0)])
                self.wfile.flush()
                self.close_connection = True
                self.connection.close()
                return
            self.wfile.write(part)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
