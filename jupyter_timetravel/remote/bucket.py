"""The remote store as files by name: the only place that knows the library obstore.

A put is all or nothing, and what was put is seen by everybody at once (S3, Google Cloud Storage and
Azure promise that, a directory on one machine does). Names are relative to the URL.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from jupyter_timetravel.remote.errors import RemoteUnavailable, RemoteUnreachable
from kernel_runtime.store.reflinks import sync_filesystem

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PARALLEL: Final = 8
"""Objects that travel at once; of each, one is in memory."""

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_ENDPOINTS: Final = {
    "AWS": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "AZURE": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    "GOOGLE": ("GOOGLE_BASE_URL",),
}
_PROVIDERS: Final = {
    **dict.fromkeys(("s3", "s3a"), "AWS"),
    **dict.fromkeys(("az", "azure", "adl", "abfs", "abfss"), "AZURE"),
    "gs": "GOOGLE",
}
_RETRY: Final = {"max_retries": 5, "retry_timeout": timedelta(seconds=60)}
_CLIENT: Final = {"timeout": "600s", "connect_timeout": "10s"}
_MESSAGE: Final = re.compile(r"<Code>([^<]+)</Code>(?:.*?<Message>([^<]+)</Message>)?", re.DOTALL)
_CREDENTIALS: Final = (
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "InvalidToken",
    "ExpiredToken",
    "InvalidClientTokenId",
    "AuthFailure",
)
_OF_CREDENTIALS: Final = (
    "token",
    "redential",
    "Account must be specified",
    "Invalid Access Key",
    " 401 ",
    " 403 ",
    "service account file",
)
_MEND_CREDENTIALS: Final = (
    "See that the credentials in the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
    "GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME and its key) are those of somebody "
    "who may do this."
)
_OF_CLOCK: Final = ("RequestTimeTooSkewed", "RequestExpired", "date header too old")
_MEND_CLOCK: Final = "See that this machine's clock is right: requests are signed with the time."
_MEND_BUCKET: Final = "Make the bucket first, and see that its name and region are right."
_MEND_NETWORK: Final = (
    "See that the network works and that the address is right (AWS_ENDPOINT_URL, "
    "AZURE_STORAGE_ENDPOINT or GOOGLE_BASE_URL, where it is not the provider's own); then do the "
    "same again: what was sent or fetched already is not lost."
)
_MEND_URL: Final = (
    "Give s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH or file:///DIRECTORY."
)

_T = TypeVar("_T")


class Gone(Exception):
    """There is no object of that name."""


@dataclass(frozen=True)
class Entry:
    """An object as a listing has it. mark: changes when the object does; None if not told."""

    name: str
    size: int
    mark: str | None
    modified: datetime


class Bucket:
    """One remote store. Methods are thread safe and raise RemoteUnreachable."""

    def __init__(self, url: str, *, make: bool = False) -> None:
        """make: make the directory of a ``file://`` URL. Raises RemoteUnavailable."""
        self.url = url
        parts = urllib.parse.urlsplit(url)
        shown = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")
        self.shown = urllib.parse.urlunsplit(shown)
        """The URL without what may be secret in it."""
        self._directory: Path | None = None
        if parts.scheme == "file":
            self._directory = Path(urllib.parse.unquote(parts.path))
        if parts.scheme in ("memory", "http", "https", "") or parts.netloc != shown.netloc:
            raise RemoteUnreachable(self.shown, "that is no URL of object storage", _MEND_URL)
        try:
            import obstore
            from obstore import store
        except ImportError as error:
            raise RemoteUnavailable(error) from error
        self._library = obstore
        with self._telling():
            self._store: ObjectStore = self._opened(store, parts.scheme, make)

    def _opened(self, store: Any, scheme: str, make: bool) -> ObjectStore:
        if self._directory is not None:
            if make:
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            elif not self._directory.is_dir():
                raise FileNotFoundError(f"there is no directory {self._directory}")
            found: ObjectStore = store.LocalStore(self._directory)
            return found
        options: dict[str, Any] = {"retry_config": _RETRY, "client_options": {**_CLIENT}}
        provider = _PROVIDERS.get(scheme, "")
        endpoint = next(filter(None, map(os.environ.get, _ENDPOINTS.get(provider, ()))), "")
        is_here = urllib.parse.urlsplit(endpoint).hostname in _LOOPBACK
        allow = f"{provider}_ALLOW_HTTP"
        if is_here or os.environ.get(allow, "").lower() in ("1", "true"):
            options["client_options"]["allow_http"] = True  # ours hide the environment's
        elif endpoint.lower().startswith("http:"):
            mend = f"Give an address with https, or set {allow}=true."
            raise RemoteUnreachable(self.shown, f"{endpoint} is read by everybody on the way", mend)
        if provider == "AWS":
            config = {"aws_checksum_algorithm": "SHA256"}  # the server compares what it got
            if endpoint:
                config["aws_endpoint"] = endpoint
            options["config"] = config
        found = store.from_url(self.url, **options)
        return found

    # -- one object ---------------------------------------------------------------------------

    def put(self, name: str, data: bytes) -> str | None:
        """Write an object, in the place of one that may be there. Returns its mark."""
        with self._telling():
            mark: str | None = self._library.put(self._store, name, data, use_multipart=False)[
                "e_tag"
            ]
        return mark

    def get(self, name: str) -> bytes:
        """Its bytes. Raises Gone."""
        with self._telling(name):
            return self._library.get(self._store, name).bytes().to_bytes()

    def delete(self, names: Sequence[str]) -> None:
        """Delete; what is not there is no error."""
        for at in range(0, len(names), 1000):
            try:
                with self._telling("these"):
                    self._library.delete(self._store, list(names[at : at + 1000]))
            except Gone:
                for name in names[at : at + 1000]:
                    self._delete_one(name)

    def _delete_one(self, name: str) -> None:
        try:
            with self._telling(name):
                self._library.delete(self._store, name)
        except Gone:
            pass

    # -- many ---------------------------------------------------------------------------------

    def list(self, folder: str) -> Iterator[Entry]:
        """All objects below a folder, in no order."""
        with self._telling():
            for chunk in self._library.list(self._store, folder):
                for one in chunk:
                    yield Entry(one["path"], one["size"], one["e_tag"], one["last_modified"])

    def settle(self) -> None:
        """What was put outlives a power cut from now on: object storage promises that by itself."""
        if self._directory is not None:
            fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                sync_filesystem(fd)
            finally:
                os.close(fd)

    # -- inside -------------------------------------------------------------------------------

    @contextmanager
    def _telling(self, name: str = "") -> Iterator[None]:
        """Turn the library's errors into ours. name: of an object that may not be there."""
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            text = str(error).split("\n\nDebug source")[0]
            found = _MESSAGE.search(text)
            code = found[1] if found else ""
            cause = f"{code}: {found[2] or ''}" if found else text
            if code == "NoSuchBucket" or "ContainerNotFound" in text:
                raise RemoteUnreachable(self.shown, cause, _MEND_BUCKET) from error
            if isinstance(error, FileNotFoundError) and name:
                raise Gone(name) from error
            mend = _MEND_NETWORK
            if any(word in text for word in _OF_CLOCK):
                mend = _MEND_CLOCK
            elif isinstance(error, (PermissionDeniedError, UnauthenticatedError, PermissionError)):
                mend = _MEND_CREDENTIALS if self._directory is None else "See that it is yours."
            elif code in _CREDENTIALS or any(word in text for word in _OF_CREDENTIALS):
                mend = _MEND_CREDENTIALS
            elif isinstance(error, FileNotFoundError) and self._directory is not None:
                mend = "Give a directory that something was pushed to."
            elif isinstance(error, ValueError) or "recognise URL" in text or "must be spec" in text:
                mend = _MEND_URL
            elif self._directory is not None:
                mend = "See that the directory is yours, and that its disk is not full."
            raise RemoteUnreachable(self.shown, cause, mend) from error


def in_parallel(work: Callable[[_T], None], items: Sequence[_T]) -> None:
    """Do it for all, PARALLEL at once. The first error ends it, once what has begun is done."""
    with ThreadPoolExecutor(PARALLEL, thread_name_prefix="remote") as pool:
        running = {pool.submit(work, item) for item in items}
        try:
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        for future in done:
            if future.exception() is not None:
                pool.shutdown(wait=False, cancel_futures=True)
        for future in done:
            future.result()
