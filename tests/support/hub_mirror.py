"""A Hugging Face Hub on a loopback port that serves folders: the few calls that the hub's libraries make.

    python hub_mirror.py FOLDER        # FOLDER/datasets/owner/name/..., FOLDER/models/owner/name/...

Prints its address. Any commit that is asked for is the folder's content.
"""

import hashlib
import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

API = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision|tree|paths-info)/([^/]+)(?:/(.*))?)?")
FILE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


class Mirror(BaseHTTPRequestHandler):
    root = Path()
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if results := API.fullmatch(path):
            kind, repo, call, commit, inner = results.groups()
            folder = self.root / kind / repo
            if not folder.is_dir():
                self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            elif call == "tree":
                recursive = "recursive=true" in self.path.lower()
                place = folder / (inner or "")
                if not place.is_dir():
                    self.answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})
                    return
                self.answer_json(
                    [entry(item, folder) for item in sorted(place.glob("**/*" if recursive else "*"))]
                )
            else:
                self.answer_json(information(folder, repo, commit or "main"))
        elif results := FILE.fullmatch(path):
            kind, repo, commit, name = results.groups()
            file = self.root / ("datasets" if kind else "models") / repo / name
            if not file.is_file():
                self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
                return
            content = file.read_bytes()
            self.answer(200, content, {"X-Repo-Commit": commit, "ETag": f'"{blob(content)}"'})
        else:
            self.answer(404, b"{}", {})

    do_HEAD = do_GET  # noqa: N815 - the library's name

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        result = API.fullmatch(unquote(urlsplit(self.path).path))
        assert result is not None
        folder = self.root / result[1] / result[2]
        if self.headers.get("Content-Type", "").startswith("application/json"):
            paths = json.loads(body)["paths"]
        else:
            paths = [
                unquote(part.partition("=")[2].replace("+", " ")) for part in body.split("&") if "paths" in part
            ]
        paths = [paths] if isinstance(paths, str) else paths
        self.answer_json([entry(folder / path, folder) for path in paths if (folder / path).exists()])

    def answer_json(self, content: Any) -> None:
        self.answer(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def information(folder: Path, repo: str, commit: str) -> dict[str, Any]:
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    siblings = [
        {
            "rfilename": file.relative_to(folder).as_posix(),
            "size": file.stat().st_size,
            "blobId": blob(file.read_bytes()),
        }
        for file in files
    ]
    license_of = re.search("^license: (.+)$", (folder / "README.md").read_text(), re.MULTILINE)
    card = {"license": license_of[1]} if license_of else {}
    return {
        "_id": "1", "id": repo, "sha": commit, "siblings": siblings, "tags": [], "cardData": card,
        "private": False, "downloads": 0, "likes": 0, "gated": False, "disabled": False,
        "lastModified": "2026-01-01T00:00:00.000Z", "createdAt": "2026-01-01T00:00:00.000Z",
    }  # fmt: skip


def entry(path: Path, folder: Path) -> dict[str, Any]:
    name = path.relative_to(folder).as_posix()
    if path.is_dir():
        return {"type": "directory", "oid": "0" * 40, "size": 0, "path": name}
    return {"type": "file", "oid": blob(path.read_bytes()), "size": path.stat().st_size, "path": name}


def blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


if __name__ == "__main__":
    Mirror.root = Path(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)  # noqa: T201
    server.serve_forever()
