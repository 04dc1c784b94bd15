"""The clients of Azure and Google against endpoints on the loopback, set up as docs/remote.md says.

Azure's is its own emulator, azurite (an npm package; TT_AZURITE names its command azurite-blob).
Google's is moto's S3 server: of the XML interface, which the library uses, both have the requests.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from email.utils import formatdate
from typing import Any

import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from obstore.store import AzureStore, GCSStore
from werkzeug.serving import make_server

from tests.exchange.world import World
from tests.remote.conftest import Command, Remote, sessions
from tests.waiting import PATIENCE

AZURITE = os.environ.get("TT_AZURITE") or shutil.which("azurite-blob") or ""
ACCOUNT = "devstoreaccount1"  # of every azurite; its key is in Microsoft's documentation
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
PLACE = "timelines"
S3_KEY = (
    "AWS4-HMAC-SHA256 Credential=someone/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, "
    "Signature=0"
)


def made_container(url: str) -> None:
    """Make a container, signed by hand: the library makes none."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2020-10-02"}
    signed = "".join(f"{name}:{value}\n" for name, value in headers.items())
    text = f"PUT{12 * chr(10)}{signed}/{ACCOUNT}/{ACCOUNT}/{PLACE}\nrestype:container"
    code = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(code).decode()}"
    address = f"{url}/{PLACE}?restype=container"
    request = urllib.request.Request(address, method="PUT", headers=headers)
    urllib.request.urlopen(request, timeout=PATIENCE).close()


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    if not AZURITE:
        pytest.skip("Azure's emulator is not here: TT_AZURITE names no azurite-blob")
    log = tmp_path_factory.mktemp("azurite") / "log"
    words = ["--blobHost", "127.0.0.1", "--blobPort", "0", "--disableTelemetry"]
    with log.open("wb") as out:
        server = subprocess.Popen(
            [AZURITE, *words, "--inMemoryPersistence"], stdout=out, stderr=subprocess.STDOUT
        )
    try:
        end = time.monotonic() + PATIENCE
        while not (found := re.search(r"listens on (http://[\d.:]+)", log.read_text())):
            assert server.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        url = f"{found[1]}/{ACCOUNT}"
        made_container(url)
        env = {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": url,
        }
        config: Any = {"account_name": ACCOUNT, "account_key": KEY, "endpoint": url}
        store = AzureStore(PLACE, prefix="x", config=config, client_options={"allow_http": True})
        yield Remote(f"az://{PLACE}/x", store, env)
    finally:
        server.kill()
        server.wait(PATIENCE)


@pytest.fixture(scope="module")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    app = DomainDispatcherApplication(create_backend_app)

    def signed(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        environ["HTTP_AUTHORIZATION"] = S3_KEY  # it was "Bearer ", and is not looked at
        answer: Iterable[bytes] = app(environ, start)
        return answer

    server = make_server("127.0.0.1", 0, signed, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.port}"
    place = "google"  # moto decodes no "%2D"
    request = urllib.request.Request(f"{url}/{place}", method="PUT")
    urllib.request.urlopen(request, timeout=PATIENCE).close()
    account = tmp_path_factory.mktemp("google") / "account.json"
    nobody = {"disable_oauth": True, "private_key": "", "private_key_id": "", "client_email": ""}
    account.write_text(json.dumps(nobody))
    config: Any = {"service_account": str(account), "base_url": url}
    store = GCSStore(place, prefix="x", config=config, client_options={"allow_http": True})
    env = {"GOOGLE_SERVICE_ACCOUNT": str(account), "GOOGLE_BASE_URL": url}
    yield Remote(f"gs://{place}/x", store, env)
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("name", ["azure", "google"])
def test_to_a_provider_and_back(
    name: str, request: pytest.FixtureRequest, world: World, first: Command, mine: Command
) -> None:
    remote: Remote = request.getfixturevalue(name)
    url, env = remote.url, remote.env
    assert "1 checkpoint" in first("push", url, world.notebook, "one", **env)
    before = remote.names("objects")
    told = first("push", url, **env)
    sent = re.search(r"(\d+) objects? sent", told)
    assert sent and int(sent[1]) == len({*remote.names("objects")} - {*before}), told
    assert "all there already" in first("push", url, **env)
    (ref,) = remote.names("refs")
    (found,) = json.loads(first("remote", "list", url, "--json", **env))["timelines"]
    (known,) = sessions(first)
    assert (found["id"], found["checkpoints"]) == (known["id"], known["checkpoints"])

    # as after a push that was cut short
    gone = remote.names("objects")[::2]
    for one in [*gone, ref]:
        remote.remove(one)
    assert "has no timeline" in mine("pull", url, status=1, **env)
    sent = re.search(r"(\d+) objects? sent", first("push", url, **env))
    assert sent and int(sent[1]) <= len(gone) + 1, "the list says when it was made"

    lost = f"objects/{world.namespace[:2]}/{world.namespace}"
    whole = remote.read(lost)
    remote.write(lost, whole[:-1] + bytes([whole[-1] ^ 1]))  # the same size
    told = mine("pull", url, status=1, **env)
    assert "variables" in told and sessions(mine) == [], told
    first("push", url, **env)
    assert remote.read(lost) == whole, "its mark was another one"
    assert "pulled 6" in mine("pull", url, **env)
    mine("check")

    remote.write("objects/notes", b"somebody else's")
    first("remote", "prune", url, "--yes", "--older-than", "0h", **env)
    assert "pulled 6" in mine("pull", url, **env)
    first("remote", "delete", url, known["id"], "--yes", **env)
    first("remote", "prune", url, "--yes", "--older-than", "0h", **env)
    assert remote.names() == ["objects/notes"]
    remote.remove("objects/notes")


@pytest.mark.parametrize("name", ["azure", "google"])
def test_what_a_provider_refuses_is_told(
    name: str, request: pytest.FixtureRequest, first: Command
) -> None:
    remote: Remote = request.getfixturevalue(name)
    nowhere = remote.url.replace("://", "://no", 1)
    for words in (("push",), ("pull",), ("remote", "list")):
        told = first(*words, nowhere, status=1, **remote.env)
        assert "Make the bucket first" in told, told
    if name == "azure":
        told = first(
            "push", remote.url, status=1, **{**remote.env, "AZURE_STORAGE_ACCOUNT_KEY": "c2VjcmV0"}
        )
        assert "credentials in the environment" in told and "c2VjcmV0" not in told, told
