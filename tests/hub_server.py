"""A hub on this machine: the endpoints that huggingface_hub speaks to, over repositories held in memory.

Every request is recorded, so that tests can count them. Switches make it unreachable, slow, or echo what it was sent.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote, urlsplit

Files = dict[str, bytes]
LARGE = (".safetensors", ".bin")


@dataclass
class Repository:
    """Branches and the files of every commit."""

    private: bool = False
    gated: bool = False
    commits: dict[str, Files] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    pull_requests: int = 0

    def commit(self, files: Files, branch: str = "main") -> str:
        digest = hashlib.sha1(repr((len(self.commits), sorted(files.items()))).encode(), usedforsecurity=False).hexdigest()
        self.commits[digest] = files
        self.branches[branch] = digest
        return digest

    def resolve(self, revision: str) -> str | None:
        return self.branches.get(revision) or (revision if revision in self.commits else None)


class HubServer(ThreadingHTTPServer):
    """Runs in a thread of its own while it is entered."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, Repository] = {}
        self.uploads: Files = {}
        self.requests: list[str] = []
        self.tokens: list[str] = []
        self.valid_token = "hf_valid_token"
        self.fail_with: int | None = None
        self.echo = False
        self.bytes_per_second: int | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, repo_id: str, files: Files, **options: Any) -> Repository:
        """A repository whose branch ``main`` holds the files."""
        repository = self.repositories[repo_id] = Repository(**options)
        repository.commit(files)
        return repository

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:
        """Silent."""

    def do_HEAD(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def _serve(self) -> None:
        self.body = self._body()
        self.server.requests.append(f"{self.command} {self.path}")
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        self.server.tokens.append(token)
        if self.server.fail_with is not None:
            said = f"you sent {token}" if self.server.echo else "no"
            self._answer(self.server.fail_with, {"error": said}, {"X-Error-Message": said})
        elif token and token != self.server.valid_token:
            wrong = "Invalid credentials in Authorization header"
            self._answer(401, {"error": wrong}, {"X-Error-Message": wrong})
        else:
            self._route([unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")], bool(token))

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while length := int(self.rfile.readline(), 16):
            body += self.rfile.read(length)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _route(self, parts: list[str], known: bool) -> None:
        match parts:
            case [owner, name, "resolve", revision, *path]:
                self._file(f"{owner}/{name}", revision, "/".join(path), known)
            case ["api", "repos", "create"]:
                self._create(known)
            case ["api", "validate-yaml"]:
                self._answer(200, {"errors": [], "warnings": []})
            case ["lfs", oid]:
                self.server.uploads[oid] = self.body
                self._answer(200, {})
            case [owner, name, "info", "lfs", "objects", "batch"]:
                self._batch()
            case ["api", "models", owner, name, *rest]:
                repository = self._repository(f"{owner}/{name}", known)
                if repository is not None:
                    self._api(repository, f"{owner}/{name}", rest)
            case _:
                self._answer(404, {"error": "unknown"})

    def _repository(self, repo_id: str, known: bool) -> Repository | None:
        repository = self.server.repositories.get(repo_id)
        if repository is None or (repository.private and not known):
            self._answer(401, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
            return None
        return repository

    def _file(self, repo_id: str, revision: str, path: str, known: bool) -> None:
        repository = self._repository(repo_id, known)
        if repository is None:
            return
        if repository.gated and not known:
            self._answer(403, {"error": "gated"}, {"X-Error-Code": "GatedRepo"})
            return
        commit = repository.resolve(revision)
        if commit is None:
            self._answer(404, {"error": "no revision"}, {"X-Error-Code": "RevisionNotFound"})
            return
        content = repository.commits[commit].get(path)
        if content is None:
            self._answer(404, {"error": "no entry"}, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        etag = hashlib.sha256(content).hexdigest()
        self._send(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": commit})

    def _create(self, known: bool) -> None:
        if not known:
            self._answer(401, {"error": "no token"})
            return
        wanted = json.loads(self.body)
        repo_id = f"{wanted.get('organization') or 'me'}/{wanted['name']}"
        there = repo_id in self.server.repositories
        if not there:
            self.server.add(repo_id, {".gitattributes": b""}, private=wanted.get("visibility") == "private")
        self._answer(409 if there else 200, {"url": f"{self.server.endpoint}/{repo_id}", "error": "exists"})

    def _batch(self) -> None:
        objects = [
            {"oid": wanted["oid"], "size": wanted["size"], "actions": {"upload": {"href": self._upload(wanted["oid"])}}}
            for wanted in json.loads(self.body)["objects"]
        ]
        self._answer(200, {"transfer": "basic", "objects": objects})

    def _upload(self, oid: str) -> str:
        return f"{self.server.endpoint}/lfs/{oid}"

    def _api(self, repository: Repository, repo_id: str, rest: list[str]) -> None:
        match rest:
            case ["preupload", _]:
                files = [
                    {"path": f["path"], "uploadMode": "lfs" if f["path"].endswith(LARGE) else "regular", "shouldIgnore": False}
                    for f in json.loads(self.body)["files"]
                ]
                self._answer(200, {"files": files})
            case ["branch", branch]:
                repository.branches.setdefault(branch, repository.branches["main"])
                self._answer(200, {})
            case ["tree", revision, *folder]:
                self._tree(repository, revision, "".join(f"{part}/" for part in folder))
            case ["commit", branch]:
                self._commit(repository, repo_id, branch)
            case _:
                self._answer(404, {"error": "unknown"})

    def _tree(self, repository: Repository, revision: str, folder: str) -> None:
        """All files, or those below a folder (``recursive`` is not looked at there)."""
        commit = repository.resolve(revision)
        if commit is None:
            self._answer(404, {"error": "no revision"}, {"X-Error-Code": "RevisionNotFound"})
            return
        tree = [
            {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha256(content).hexdigest()}
            for path, content in repository.commits[commit].items()
            if path.startswith(folder)
        ]
        if tree or not folder:
            self._answer(200, tree)
        else:
            self._answer(404, {"error": "no folder"}, {"X-Error-Code": "EntryNotFound"})

    def _commit(self, repository: Repository, repo_id: str, branch: str) -> None:
        base = repository.resolve(branch)
        files = dict(repository.commits[base]) if base else {}
        for line in self.body.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            match operation["key"]:
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.server.uploads[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        answer = {"commitUrl": f"{self.server.endpoint}/{repo_id}/commit/x"}
        if "create_pr=1" in self.path:
            repository.pull_requests += 1
            branch = f"refs/pr/{repository.pull_requests}"
            answer["pullRequestUrl"] = f"{self.server.endpoint}/{repo_id}/discussions/{repository.pull_requests}"
        self._answer(200, answer | {"commitOid": repository.commit(files, branch)})

    def _answer(self, status: int, document: Any, headers: dict[str, str] | None = None) -> None:
        self._send(status, json.dumps(document).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        rate = self.server.bytes_per_second
        step = len(content) if rate is None else max(rate // 50, 1)
        for start in range(0, len(content), max(step, 1)):
            try:
                self.wfile.write(content[start : start + step])
            except OSError:
                return  # the reader was killed
            if rate is not None:
                time.sleep(0.02)
