"""Remotes of both kinds that are tested, a real S3 endpoint and a directory, and stores to move."""

from __future__ import annotations

import json
import logging
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import obstore
import pytest
from moto.server import ThreadedMotoServer
from obstore.store import LocalStore, ObjectStore, S3Store

from tests.conftest import open_up
from tests.exchange import world as worlds
from tests.exchange.conftest import call
from tests.exchange.world import World

Command = Callable[..., str]
BUCKET = "timelines"


@dataclass
class Remote:
    """A place to push to, and a way to look into it and to damage it past our code."""

    url: str
    store: ObjectStore
    env: dict[str, str]

    def names(self, folder: str = "") -> list[str]:
        """All objects below a folder."""
        return sorted(one["path"] for chunk in obstore.list(self.store, folder) for one in chunk)

    def read(self, name: str) -> bytes:
        return obstore.get(self.store, name).bytes().to_bytes()

    def write(self, name: str, data: bytes) -> None:
        obstore.put(self.store, name, data)

    def remove(self, name: str) -> None:
        obstore.delete(self.store, name)


@dataclass
class Endpoint:
    """An S3 server on the loopback."""

    url: str

    @property
    def env(self) -> dict[str, str]:
        """What a command needs to use it."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "someone",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }

    def bucket(self, name: str) -> None:
        """Make a bucket."""
        request = urllib.request.Request(f"{self.url}/{name}", method="PUT")
        urllib.request.urlopen(request, timeout=60).close()

    def check_access(self, *, after: str) -> None:
        """From now on ("0") or never ("inf") only those may do something whom the server knows."""
        url, headers = f"{self.url}/moto-api/reset-auth", {"Content-Type": "text/plain"}
        request = urllib.request.Request(url, data=after.encode(), headers=headers)
        urllib.request.urlopen(request, timeout=60).close()


@pytest.fixture(scope="session")
def endpoint() -> Iterator[Endpoint]:
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    made = Endpoint(f"http://127.0.0.1:{port}")
    made.bucket(BUCKET)
    yield made
    server.stop()


@pytest.fixture
def s3(endpoint: Endpoint, tmp_path: Path) -> Remote:
    prefix = tmp_path.name.replace("_", "-")
    store = S3Store(
        BUCKET,
        prefix=prefix,
        config={
            "aws_endpoint": endpoint.url,
            "aws_access_key_id": "someone",
            "aws_secret_access_key": "secret",
            "aws_region": "us-east-1",
        },
        client_options={"allow_http": True},
    )
    return Remote(f"s3://{BUCKET}/{prefix}", store, endpoint.env)


@pytest.fixture
def directory(tmp_path: Path) -> Remote:
    top = tmp_path / "remote dir"
    top.mkdir()
    return Remote(top.as_uri(), LocalStore(top), {})


@pytest.fixture(params=["s3", "directory"])
def remote(request: pytest.FixtureRequest) -> Remote:
    found: Remote = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """A session that ended, with files, an environment and variables."""
    with worlds.made() as made:
        yield made


@pytest.fixture
def other(world: World) -> Iterator[Path]:
    """An empty directory below the home for another store and notebook."""
    path = world.base / "other"
    path.mkdir()
    yield path
    open_up(path)
    shutil.rmtree(path)


@pytest.fixture
def first(world: World) -> Command:
    """The command line where the session was."""

    def run(*words: Any, **more: Any) -> str:
        more.setdefault("store", world.store)
        return call(*words, **{"JUPYTER_TIMETRAVEL_KEYS": world.keys, **more})

    return run


@pytest.fixture
def mine(world: World, other: Path) -> Command:
    """The command line of the same user on another machine."""

    def run(*words: Any, **more: Any) -> str:
        more.setdefault("store", other / "store")
        return call(*words, **{"JUPYTER_TIMETRAVEL_KEYS": world.keys, **more})

    return run


@pytest.fixture
def theirs(mine: Command, other: Path) -> Command:
    """The command line of somebody else."""

    def run(*words: Any, **more: Any) -> str:
        return mine(*words, **{"JUPYTER_TIMETRAVEL_KEYS": str(other / "keys"), **more})

    return run


def sessions(command: Command, store: Path | None = None) -> list[dict[str, Any]]:
    """What a store has: the command's own, or another one, which need not be there."""
    if store is not None and not (store / "timelines.sqlite").exists():
        return []
    more = {} if store is None else {"store": store}
    found: list[dict[str, Any]] = json.loads(command("sessions", "--json", **more))["sessions"]
    return found
