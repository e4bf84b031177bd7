"""Backs a log up to S3 as moto's server speaks it, behind a proxy that strikes, and restores it.

argv: folder of the packages that streamd needs, log, folder to work in. Prints a line of JSON for each way of striking.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

SITE_PACKAGES, LOG, WORK = sys.argv[1:]
# What this environment has comes first: its s3fs and botocore belong together.
sys.path.append(SITE_PACKAGES)
os.environ.update(AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="sesame", AWS_DEFAULT_REGION="us-east-1")

import boto3  # noqa: E402
import fsspec.config  # noqa: E402
from moto.server import ThreadedMotoServer  # noqa: E402

from streamd.errors import StoreError  # noqa: E402
from streamd.store import manifests  # noqa: E402
from streamd.store.archive import Archive  # noqa: E402
from streamd.store.deleted_keys import DeletedSearch  # noqa: E402
from streamd.store.file_set import object_names  # noqa: E402
from streamd.store.objects import Store  # noqa: E402
from streamd.store.restore import choose, restore  # noqa: E402
from streamd.store.sweep import sweep_store  # noqa: E402
from streamd.store.upload import upload  # noqa: E402
from streamd.table.export.exporter import Exporter  # noqa: E402
from streamd.table.export.parquet_tables import ParquetTables  # noqa: E402
from streamd.telemetry.heartbeat import Heartbeat  # noqa: E402
from tests.builders import ManualClock  # noqa: E402
from tests.store.changelogs import TwinChangelog  # noqa: E402

HALF_BYTES = 3_000
"""Bytes after which a half upload breaks off: within the rows of the test's log."""
HANG_SECONDS = 3


class Proxy(threading.Thread):
    """Passes connections on to a port, but strikes every third: mode "500" answers so, "half" breaks off, "hang" is silent;
    "away" refuses all. "guard" refuses every connection that is not signed with the key `accepted`."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.upstream, self.mode, self.count, self.accepted = port, "", 0, ""
        self.open = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def run(self):
        while True:
            client, _ = self.listener.accept()
            self.count += 1
            self.open.append(client)
            strikes = self.mode in ("away", "guard") or self.count % 3 == 0
            threading.Thread(target=self.serve, args=(client, self.mode if strikes else ""), daemon=True).start()

    def serve(self, client, mode):
        if mode == "500":
            client.recv(1 << 16)
            client.sendall(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        if mode == "hang":
            time.sleep(HANG_SECONDS)
        if mode == "guard" and f"Credential={self.accepted}/".encode() not in client.recv(1 << 16, socket.MSG_PEEK):
            client.recv(1 << 16)
            client.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            mode = "away"
        if mode in ("500", "hang", "away"):
            client.close()
            return
        server = socket.create_connection(("127.0.0.1", self.upstream))
        most = HALF_BYTES if mode == "half" else 1 << 60
        threading.Thread(target=self.pump, args=(client, server, most), daemon=True).start()
        self.pump(server, client, 1 << 60)

    def rotate(self, key):
        """Let in those alone who have another key from now on."""
        self.accepted = key
        for client in self.open:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def pump(source, target, most):
        try:
            while most > 0 and (data := source.recv(1 << 16)):
                target.sendall(data[:most])
                most -= len(data)
        except OSError:
            pass
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def refused(url):
    begun = time.monotonic()
    try:
        upload(Path(LOG), Store(url, timeout_seconds=5))
    except StoreError as error:
        return {"error": str(error), "seconds": time.monotonic() - begun}
    return {}


def rotated():
    """A store whose key is another one, and later stands in the file of credentials too. Returns: the error between, and what
    is read after it."""
    file = Path(WORK) / "credentials"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        del os.environ[name]
    os.environ["AWS_SHARED_CREDENTIALS_FILE"] = str(file)

    def write(key):
        file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = sesame\n")

    write("first")
    proxy.mode, proxy.accepted = "guard", "first"
    store = Store("s3://bucket/rotated")
    store.put("a", b"1")
    proxy.rotate("second")
    error = ""
    try:
        store.get("a", 10)
    except StoreError as raised:
        error = str(raised)
    write("second")
    store.put("b", b"2")
    return [error, (store.get("a", 10) + store.get("b", 10)).decode()]


moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
moto.start()
port = moto.get_host_and_port()[1]
proxy = Proxy(port)
proxy.start()
os.environ["AWS_ENDPOINT_URL"] = proxy.address
fsspec.config.conf["s3"] = {"config_kwargs": {"read_timeout": 1, "connect_timeout": 3}}
boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}").create_bucket(Bucket="bucket")



def archived(url, data_dir, key):
    """Rounds of an archive on a store that fails now and then. Returns: what it said, the newest commit, how many
    manifests and objects that none names, and in how many places a key is."""
    changelog, clock = TwinChangelog(), ManualClock()
    store = Store(url)
    archive = Archive(data_dir, store, changelog, manifest_seconds=600, clock=clock, beat=Heartbeat(data_dir, "archive"),
                      bootstrap_seconds=100)
    errors = []
    for _ in range(4):
        clock.advance(601)
        archive.step()
        errors.append(archive.error)
    names = manifests.names(store)
    needed = {o for name in names for o in object_names(manifests.read(store, name).files)}
    places = len(list(DeletedSearch([key]).in_store(store)))
    return [errors[-1], manifests.commit_of(names[-1])[1], len(names), len(set(store.sizes("objects")) - needed), places]


def exported(url, data_dir):
    """An export to a store that fails now and then, begun again after an error. Returns: the event ids in the files of the table. The
    last export refuses files that the manifest does not name."""
    errors, done = [], False
    while not done:
        try:
            exporter = Exporter(data_dir, ParquetTables(Store(url, timeout_seconds=10)), 100)
            try:
                while exporter.step(whole=False) is not None:
                    pass
                done = True
            finally:
                exporter.close()
        except StoreError as error:
            errors.append(str(error))
            assert len(errors) < 20, errors
    tables = ParquetTables(Store(url))
    return sorted(i for _, table in tables.read_columns(["event"]) for i in table["event"].to_pylist())


said = {}
for proxy.mode in ("", "500", "half", "hang"):
    store = Store(f"s3://bucket/log-{proxy.mode}")
    first = upload(Path(LOG), store)
    again = upload(Path(LOG), store)
    restore(store, choose(store), Path(WORK) / f"back-{proxy.mode}")
    swept = sweep_store(store, 1)
    left = len(store.sizes("objects"))
    said[proxy.mode] = [first.objects, len(object_names(first.manifest.files)), left, again.objects, *swept]
proxy.mode = "away"
said["away"] = refused("s3://bucket/away")
proxy.mode = ""
said["missing"] = refused("s3://no-such-bucket/log")
for proxy.mode in ("", "500", "half", "hang"):
    said[f"archive {proxy.mode}"] = archived(f"s3://bucket/archive-{proxy.mode}", Path(LOG), "n:31")
for proxy.mode in ("", "500", "half"):
    said[f"export {proxy.mode}"] = exported(f"s3://bucket/export-{proxy.mode}", Path(LOG))
proxy.mode = "away"
away = Store("s3://bucket/archive-", timeout_seconds=5)
archive = Archive(Path(LOG), away, None, manifest_seconds=600, clock=ManualClock(), beat=Heartbeat(Path(LOG), "archive"))
archive.step()
said["archive away"] = archive.error
said["rotated"] = rotated()
print(json.dumps(said), flush=True)
# The event loop of s3fs keeps connections open, which would hold up the exit.
os._exit(0)
