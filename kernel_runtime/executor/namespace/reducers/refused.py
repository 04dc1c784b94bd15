"""What cannot be kept by any means, with the reason in the user's words.

By type, subclasses included. What is not named here and cannot be pickled is refused by its own
library's words.
"""

from __future__ import annotations

import contextvars
import types
from collections.abc import Callable
from typing import Any, Final

from kernel_runtime.executor.namespace.registry import Context, NotKept, reducer

_QUERY: Final = "cannot be kept: keep the query that makes it"
_ELSEWHERE: Final = "its other end has gone on and cannot be taken back"

REASONS: Final[dict[str | type, str]] = {
    types.GeneratorType: "a generator cannot be kept: it stands in the middle of running code",
    types.CoroutineType: "a coroutine cannot be kept: it stands in the middle of running code",
    types.AsyncGeneratorType: (
        "an asynchronous generator cannot be kept: it stands in the middle of running code"
    ),
    types.FrameType: "a frame cannot be kept: it is running code",
    types.TracebackType: "a traceback cannot be kept: it holds running code",
    "_asyncio.FutureIter": "an awaited future cannot be kept: it stands in running code",
    "builtins.async_generator_asend": "an asynchronous generator's step cannot be kept",
    "builtins.coroutine_wrapper": "a coroutine cannot be kept: it stands in running code",
    "threading.Thread": "a thread cannot be kept: it stands in the middle of running code",
    "socket.socket": f"a socket cannot be kept: {_ELSEWHERE}",
    "_socket.socket": f"a socket cannot be kept: {_ELSEWHERE}",
    "_ssl._SSLSocket": f"a TLS connection cannot be kept: {_ELSEWHERE}",
    "_ssl._SSLContext": "a TLS context cannot be kept: nothing shows the keys that it holds",
    "http.client.HTTPConnection": f"a connection cannot be kept: {_ELSEWHERE}",
    "smtplib.SMTP": f"a connection cannot be kept: {_ELSEWHERE}",
    "ftplib.FTP": f"a connection cannot be kept: {_ELSEWHERE}",
    "imaplib.IMAP4": f"a connection cannot be kept: {_ELSEWHERE}",
    "socketserver.BaseServer": "a server cannot be kept: its socket belongs to the old process",
    "selectors._BaseSelectorImpl": "a selector cannot be kept: it watches the old process's files",
    "select.epoll": "an epoll object cannot be kept: it watches the old process's files",
    "select.poll": "a poll object cannot be kept: it watches the old process's files",
    "subprocess.Popen": "a child process cannot be kept: it belongs to the old process",
    "asyncio.subprocess.Process": "a child process cannot be kept: it belongs to the old process",
    "asyncio.transports.BaseTransport": f"a transport cannot be kept: {_ELSEWHERE}",
    "asyncio.streams.StreamReader": f"a stream cannot be kept: {_ELSEWHERE}",
    "asyncio.streams.StreamWriter": f"a stream cannot be kept: {_ELSEWHERE}",
    "asyncio.events.Handle": "a scheduled call cannot be kept: it belongs to the old loop",
    "multiprocessing.process.BaseProcess": "a child process cannot be kept",
    "multiprocessing.pool.Pool": "a pool cannot be kept: its processes belong to the old one",
    "multiprocessing.managers.BaseManager": "a manager cannot be kept: its process is gone",
    "multiprocessing.managers.BaseProxy": "a manager's object cannot be kept: its process is gone",
    "multiprocessing.queues.Queue": "a queue between processes cannot be kept",
    "multiprocessing.queues.SimpleQueue": "a queue between processes cannot be kept",
    "multiprocessing.connection._ConnectionBase": f"a connection cannot be kept: {_ELSEWHERE}",
    "multiprocessing.synchronize.SemLock": "a lock between processes cannot be kept",
    "multiprocessing.synchronize.Condition": "a condition between processes cannot be kept",
    "multiprocessing.synchronize.Event": "an event between processes cannot be kept",
    "multiprocessing.sharedctypes.SynchronizedBase": "memory between processes cannot be kept",
    "multiprocessing.shared_memory.SharedMemory": "memory between processes cannot be kept",
    "multiprocessing.shared_memory.ShareableList": "memory between processes cannot be kept",
    "posix.ScandirIterator": "a directory listing (os.scandir) cannot be kept",
    "posix.DirEntry": "an entry of os.scandir cannot be kept: keep its path",
    "contextlib._BaseExitStack": "an ExitStack cannot be kept: what it is to close is elsewhere",
    "contextlib._GeneratorContextManagerBase": (
        "a context manager that is a generator cannot be kept: it stands in running code"
    ),
    "_ctypes.CFuncPtr": "a C function pointer cannot be kept: its address is the old process's",
    "_ctypes._Pointer": "a C pointer cannot be kept: its address is the old process's",
    "ctypes.CDLL": "a C library cannot be kept: its addresses are the old process's",
    contextvars.Context: "a Context cannot be kept: libraries keep what is running in it",
    contextvars.Token: "a Token cannot be kept: it belongs to a change that was made before",
    "_csv.reader": "a csv reader cannot be kept: it stands in the middle of its text",
    "_csv.writer": "a csv writer cannot be kept: nothing shows what it writes to",
    "zlib.Compress": "a compressor cannot be kept: nothing shows how far it is",
    "zlib.Decompress": "a decompressor cannot be kept: nothing shows how far it is",
    "_bz2.BZ2Compressor": "a compressor cannot be kept: nothing shows how far it is",
    "_bz2.BZ2Decompressor": "a decompressor cannot be kept: nothing shows how far it is",
    "_lzma.LZMACompressor": "a compressor cannot be kept: nothing shows how far it is",
    "_lzma.LZMADecompressor": "a decompressor cannot be kept: nothing shows how far it is",
    "_hashlib.HASH": "a digest in the making cannot be kept: nothing shows how far it is",
    "_hashlib.HMAC": "a digest in the making cannot be kept: nothing shows how far it is",
    "_blake2.blake2b": "a digest in the making cannot be kept: nothing shows how far it is",
    "_blake2.blake2s": "a digest in the making cannot be kept: nothing shows how far it is",
    "zipfile.ZipFile": "an open archive cannot be kept: it may be in the middle of writing",
    "tarfile.TarFile": "an open archive cannot be kept: it may be in the middle of writing",
    "sqlite3.Cursor": "a cursor cannot be kept: it stands in the middle of a query",
    "sqlite3.Blob": "an open blob cannot be kept: it belongs to the old connection",
    "duckdb._relation.DuckDBPyRelation": f"a duckdb relation {_QUERY}",
    "duckdb.duckdb.DuckDBPyRelation": f"a duckdb relation {_QUERY}",
    "_sre.SRE_Scanner": "a search that is going on (re.finditer) cannot be kept",
    "decimal.ContextManager": "a context manager that is open cannot be kept",
    "h5py._hl.base.HLObject": "an object of an open HDF5 file cannot be kept: open it again",
    "h5py.h5.ObjectID": "an object of an open HDF5 file cannot be kept: open it again",
    "sqlalchemy.engine.base.Engine": "a database engine cannot be kept: make it again",
    "sqlalchemy.engine.base.Connection": f"a database connection cannot be kept: {_ELSEWHERE}",
    "sqlalchemy.orm.session.Session": f"a database session cannot be kept: {_ELSEWHERE}",
    "psycopg2.extensions.connection": f"a database connection cannot be kept: {_ELSEWHERE}",
    "psycopg.BaseConnection": f"a database connection cannot be kept: {_ELSEWHERE}",
    "pymongo.synchronous.mongo_client.MongoClient": (
        f"a database connection cannot be kept: {_ELSEWHERE}"
    ),
    "redis.connection.AbstractConnection": f"a database connection cannot be kept: {_ELSEWHERE}",
    "botocore.client.BaseClient": "a client of a web service cannot be kept: make it again",
    "boto3.resources.base.ServiceResource": (
        "a client of a web service cannot be kept: make it again"
    ),
    "httpx.BaseTransport": f"a connection cannot be kept: {_ELSEWHERE}",
    "httpx._client.BaseClient": "an HTTP client cannot be kept: make it again",
    "aiohttp.client.ClientSession": "an HTTP client cannot be kept: make it again",
    "zmq.sugar.socket.Socket": f"a socket cannot be kept: {_ELSEWHERE}",
    "zmq.backend.cython._zmq.Socket": f"a socket cannot be kept: {_ELSEWHERE}",
    "zmq.sugar.context.Context": "a ZeroMQ context cannot be kept: make it again",
    "ipywidgets.widgets.widget.Widget": (
        "a widget cannot be kept: the page's half of it belongs to the old process"
    ),
    "comm.base_comm.BaseComm": (
        "a comm cannot be kept: the page's half of it belongs to the old process"
    ),
    "IPython.core.display_functions.DisplayHandle": (
        "a display handle cannot be kept: its output belongs to the old process"
    ),
    "tqdm.std.tqdm": "a progress bar cannot be kept: its output belongs to the old process",
    "rich.console.Console": "a rich Console cannot be kept: it writes to the old process's output",
    "rich.progress.Progress": "a rich Progress cannot be kept: it runs in a thread",
    "rich.live.Live": "a rich Live display cannot be kept: it runs in a thread",
    "dask.distributed.Client": f"a cluster's client cannot be kept: {_ELSEWHERE}",
    "distributed.client.Client": f"a cluster's client cannot be kept: {_ELSEWHERE}",
    "pyspark.sql.session.SparkSession": f"a Spark session cannot be kept: {_ELSEWHERE}",
    "pyspark.core.context.SparkContext": f"a Spark session cannot be kept: {_ELSEWHERE}",
}


def _is_only_read(archive: Any) -> bool:
    file = archive.fp if hasattr(archive, "fp") else archive.fileobj
    return file is None or (archive.mode == "r" and not hasattr(file, "comptype"))


_HARMLESS: Final[dict[str, Callable[[Any], bool]]] = {
    "subprocess.Popen": lambda obj: obj.returncode is not None,
    "zipfile.ZipFile": _is_only_read,
    "tarfile.TarFile": lambda obj: obj.closed or _is_only_read(obj),
}
"""When one of these is nothing but its attributes: a process that has ended, a closed archive, one
that is only read. ``comptype``: of a stream that tarfile unpacks by itself, which stands midway."""


@reducer(*REASONS)
def refuse(obj: Any, context: Context) -> Any:
    for cls in type(obj).__mro__:
        name = f"{cls.__module__}.{cls.__qualname__}"
        reason = REASONS.get(cls) or REASONS.get(name)
        if name in _HARMLESS and _HARMLESS[name](obj):
            return NotImplemented
        if reason is not None:
            raise NotKept(reason)
    return NotImplemented
