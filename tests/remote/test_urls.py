"""What a URL and the environment become in obstore. Nothing here leaves this machine."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest

from jupyter_timetravel.remote import bucket
from jupyter_timetravel.remote.bucket import Bucket
from jupyter_timetravel.remote.errors import RemoteUnreachable

SERVICE = {
    "private_key": "private",
    "private_key_id": "id",
    "client_email": "somebody@example.org",
    "disable_oauth": True,
    "gcs_base_url": "http://127.0.0.1:1",
}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AZURE_STORAGE_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(SERVICE))


@pytest.fixture
def azure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "someone")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")


@pytest.mark.parametrize(
    ("url", "kind", "config"),
    [
        ("gs://place/some/path", "GCSStore", {"bucket": "place"}),
        ("az://place/some/path", "AzureStore", {"container_name": "place"}),
        ("azure://place/some/path", "AzureStore", {"container_name": "place"}),
        (
            "s3://place/some/path",
            "S3Store",
            {"bucket": "place", "checksum_algorithm": "SHA256"},
        ),
    ],
)
def test_bucket_path_and_options(
    url: str, kind: str, config: dict[str, str], google: None, azure: None
) -> None:
    store: Any = Bucket(url)._store
    assert type(store).__name__ == kind
    assert store.config == config and store.prefix == "some/path"
    assert store.client_options == {"timeout": "600s", "connect_timeout": "10s"}
    assert store.retry_config["max_retries"] == 5
    assert store.retry_config["retry_timeout"] == datetime.timedelta(seconds=60)


def test_an_s3_endpoint_on_this_machine_may_be_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    store: Any = Bucket("s3://place/x")._store
    assert store.config["endpoint"] == "http://127.0.0.1:1"
    assert store.client_options["allow_http"] in (True, "true")


@pytest.mark.parametrize(
    ("url", "address", "allow"),
    [
        ("s3://place/x", "AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP"),
        ("gs://place/x", "GOOGLE_BASE_URL", "GOOGLE_ALLOW_HTTP"),
        ("az://place/x", "AZURE_STORAGE_ENDPOINT", "AZURE_ALLOW_HTTP"),
    ],
)
def test_elsewhere_http_has_to_be_allowed(
    url: str,
    address: str,
    allow: str,
    google: None,
    azure: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(address, "http://elsewhere.example.org")
    with pytest.raises(RemoteUnreachable, match=f"{allow}=true"):
        Bucket(url)  # keys would go over the net as they are
    monkeypatch.setenv(allow, "true")
    monkeypatch.setenv(address, "http://127.0.0.2:1")  # nobody is there
    monkeypatch.setitem(bucket._RETRY, "max_retries", 0)
    with pytest.raises(RemoteUnreachable, match="error sending request"):
        Bucket(url).put("x", b"1")


def test_where_a_google_request_goes(google: None) -> None:
    """The account's key is read from the environment, and nothing of it is told."""
    with pytest.raises(RemoteUnreachable) as caught:
        Bucket("gs://place/some/path").put("objects/ab", b"1")
    assert "PUT http://127.0.0.1:1/place/some%2Fpath%2Fobjects%2Fab" in str(caught.value)
    assert "private" not in str(caught.value)


def test_where_an_azure_request_goes(azure: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(RemoteUnreachable) as caught:
        Bucket("az://place/some/path").put("objects/ab", b"1")
    assert "PUT http://127.0.0.1:1/place/some/path/objects/ab" in str(caught.value)
    assert "c2VjcmV0" not in str(caught.value)


def test_without_an_account_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RemoteUnreachable, match="AZURE_STORAGE_ACCOUNT_NAME"):
        Bucket("az://place/x")


@pytest.mark.parametrize(
    "url", ["https://place.s3.amazonaws.com/x", "memory:///x", "s3://key:secret@place/x", "/x", ""]
)
def test_what_is_no_url_of_object_storage(url: str) -> None:
    with pytest.raises(RemoteUnreachable, match="Give s3://") as caught:
        Bucket(url)
    assert "secret" not in str(caught.value)
