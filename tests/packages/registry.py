"""A registry for npm on a port of this machine, with the tarballs of a folder. What it does not have, does not exist.

    with registry.serving(FOLDER) as url: ...                 # npm install --registry URL NAME
"""
import base64
import contextlib
import hashlib
import http.server
import json
import pathlib
import tarfile
import threading
import urllib.parse


def about(tarball, url):
    """What the registry says of a package with one version (https://github.com/npm/registry/blob/main/docs/responses/package-metadata.md)."""
    with tarfile.open(tarball) as archive:
        manifest = json.load(archive.extractfile("package/package.json"))
    integrity = base64.b64encode(hashlib.sha512(tarball.read_bytes()).digest()).decode()
    version = manifest | {"dist": {"tarball": f"{url}/-/{tarball.name}", "integrity": f"sha512-{integrity}"}}
    return manifest["name"], {"name": manifest["name"], "dist-tags": {"latest": manifest["version"]}, "versions": {manifest["version"]: version}}


@contextlib.contextmanager
def serving(folder):
    files = {file.name: file for file in pathlib.Path(folder).glob("*.tgz")}

    class Registry(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            path = urllib.parse.unquote(self.path).lstrip("/")
            body = None
            if path.startswith("-/") and path[2:] in files:
                body = files[path[2:]].read_bytes()
            elif path in known:
                body = json.dumps(known[path]).encode()
            self.send_response(200 if body else 404)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    url = f"http://127.0.0.1:{server.server_port}"
    known = dict(about(file, url) for file in files.values())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield url
    finally:
        server.shutdown()
        server.server_close()
