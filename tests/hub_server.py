"""A small server with the Hub's own HTTP interface, on loopback: as far as its client uses it here."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import yaml

USER, TOKEN = "me", "hf_a_token_for_tests"
LFS = (".safetensors", ".png")
NAME = r"(?P<repo>[\w.-]+/[\w.-]+)"


@dataclass
class Repository:
    """Commits, each {path: content}, and the branches that point at them."""

    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, files, branch):
        text = json.dumps([{path: git_oid(content) for path, content in files.items()}, len(self.commits), branch])
        oid = hashlib.sha1(text.encode()).hexdigest()
        self.commits[oid], self.branches[branch] = files, oid
        return oid

    def resolve(self, revision):
        oid = self.branches.get(revision, revision)
        return oid if oid in self.commits else None


def git_oid(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Hub:
    """The repositories, the uploaded large files, and what was asked."""

    def __init__(self):
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.endpoint = ""


class Refused(Exception):
    def __init__(self, status, code="", message=""):
        self.status, self.headers = status, {"X-Error-Code": code, "X-Error-Message": message}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_):
        pass

    def serve(self):
        path = urlsplit(self.path).path
        self.hub.requests.append((self.command, path))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b"".join(iter(self.chunk, b""))
        try:
            for method, pattern, action in ROUTES:
                found = re.fullmatch(pattern, path)
                if found and self.command in method:
                    return action(self, body, **{name: unquote(value) for name, value in found.groupdict().items()})
            raise Refused(404, "EntryNotFound", path)
        except Refused as refused:
            self.answer(b"{}", refused.status, refused.headers)

    do_GET = do_POST = do_PUT = do_HEAD = serve

    def chunk(self):
        content = self.rfile.read(int(self.rfile.readline(), 16))
        self.rfile.readline()
        return content

    def answer(self, content, status=200, headers=None):
        if not isinstance(content, bytes):
            content, headers = json.dumps(content).encode(), {"Content-Type": "application/json", **(headers or {})}
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def has_token(self):
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def may_write(self):
        if not self.has_token():
            raise Refused(401, message="Invalid username or password.")

    def repository(self, name, write=False):
        """As on the Hub, a private repository and none at all look the same to a stranger."""
        found = self.hub.repositories.get(name)
        if found is None or (found.private and not self.has_token()):
            raise Refused(404 if self.has_token() else 401, "RepoNotFound", "Repository not found")
        if write:
            self.may_write()
            if not name.startswith(f"{USER}/"):
                raise Refused(403, message="You don't have the rights")
        return found

    def files(self, repository, revision):
        oid = repository.resolve(revision)
        if oid is None:
            raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return oid, repository.commits[oid]

    def create(self, body):
        self.may_write()
        wanted = json.loads(body)
        owner = wanted.get("organization") or USER
        name = f"{owner}/{wanted['name']}"
        if owner != USER:
            raise Refused(403, message="You don't have the rights")
        url = {"url": f"{self.hub.endpoint}/{name}", "name": name}
        if name in self.hub.repositories:
            return self.answer({**url, "error": "You already created this model repo"}, 409)
        private = bool(wanted.get("private") or wanted.get("visibility") == "private")
        self.hub.repositories[name] = Repository(private)
        self.hub.repositories[name].commit({".gitattributes": b"*.safetensors filter=lfs\n"}, "main")
        self.answer(url)

    def whoami(self, body):
        self.may_write()
        self.answer({"name": USER, "type": "user", "orgs": []})

    def validate_yaml(self, body):
        content = json.loads(body)["content"]
        front = re.match(r"---\n(.*?)\n---\n", content, re.DOTALL)
        try:
            data = yaml.safe_load(front.group(1)) if front else {}
            errors = [] if isinstance(data, dict) else [{"message": "metadata must be an object"}]
        except yaml.YAMLError as error:
            errors = [{"message": str(error)}]
        self.answer({"errors": errors, "warnings": []}, 400 if errors else 200)

    def branch(self, body, repo, branch):
        repository = self.repository(repo, write=True)
        if branch in repository.branches:
            return self.answer({"error": "Reference already exists"}, 409)
        repository.branches[branch] = repository.branches["main"]
        self.answer({})

    def preupload(self, body, repo, revision):
        _, present = self.files(self.repository(repo, write=True), revision)
        modes = []
        for wanted in json.loads(body)["files"]:
            path = wanted["path"]
            mode = "lfs" if path.endswith(LFS) else "regular"
            oid = git_oid(present[path]) if path in present and mode == "regular" else None
            modes.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self.answer({"files": modes})

    def lfs_batch(self, body, repo):
        self.repository(repo, write=True)
        objects = []
        for wanted in json.loads(body)["objects"]:
            entry = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in self.hub.objects:
                entry["actions"] = {"upload": {"href": f"{self.hub.endpoint}/lfs/{wanted['oid']}"}}
            objects.append(entry)
        self.answer({"transfer": "basic", "objects": objects})

    def lfs_put(self, body, oid):
        if hashlib.sha256(body).hexdigest() != oid:
            raise Refused(400, message="wrong content")
        self.hub.objects[oid] = body
        self.answer(b"")

    def commit(self, body, repo, revision):
        repository = self.repository(repo, write=True)
        _, present = self.files(repository, revision)
        files = dict(present)
        for line in body.decode().splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
        oid = repository.commit(files, revision)
        self.answer({"success": True, "commitOid": oid, "commitUrl": f"{self.hub.endpoint}/{repo}/commit/{oid}"})

    def info(self, body, repo, revision="main"):
        repository = self.repository(repo)
        oid, files = self.files(repository, revision)
        siblings = [{"rfilename": path} for path in sorted(files)]
        found = {"_id": repo, "id": repo, "sha": oid, "private": repository.private, "siblings": siblings, "tags": []}
        front = re.match(rb"---\n(.*?)\n---\n", files.get("README.md", b""), re.DOTALL)
        if front:
            found["cardData"] = yaml.safe_load(front.group(1))
        self.answer(found)

    def tree(self, body, repo, revision):
        _, files = self.files(self.repository(repo), revision)
        entries = []
        for path, content in sorted(files.items()):
            entry = {"type": "file", "path": path, "size": len(content), "oid": git_oid(content)}
            if path.endswith(LFS):
                digest = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 130}
            entries.append(entry)
        self.answer(entries)

    def file(self, body, repo, revision, path):
        oid, files = self.files(self.repository(repo), revision)
        if path not in files:
            return self.answer(b"", 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": oid})
        content = files[path]
        tag = hashlib.sha256(content).hexdigest() if path.endswith(LFS) else git_oid(content)
        self.answer(content, headers={"X-Repo-Commit": oid, "ETag": f'"{tag}"'})


ROUTES = (
    ("POST", "/api/repos/create", Handler.create),
    ("GET", "/api/whoami-v2", Handler.whoami),
    ("POST", "/api/validate-yaml", Handler.validate_yaml),
    ("POST", rf"/api/models/{NAME}/branch/(?P<branch>[^/]+)", Handler.branch),
    ("POST", rf"/api/models/{NAME}/preupload/(?P<revision>[^/]+)", Handler.preupload),
    ("POST", rf"/api/models/{NAME}/commit/(?P<revision>[^/]+)", Handler.commit),
    ("POST", rf"/{NAME}\.git/info/lfs/objects/batch", Handler.lfs_batch),
    ("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})", Handler.lfs_put),
    ("GET", rf"/api/models/{NAME}", Handler.info),
    ("GET", rf"/api/models/{NAME}/revision/(?P<revision>[^/]+)", Handler.info),
    ("GET", rf"/api/models/{NAME}/tree/(?P<revision>[^/]+)", Handler.tree),
    ("GET HEAD", rf"/{NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", Handler.file),
)


@contextmanager
def hub_server():
    """Run a server in a thread; yields the `Hub`, whose `endpoint` is its address."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("BoundHandler", (Handler,), {"hub": hub}))
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
