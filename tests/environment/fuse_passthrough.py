"""``fuse_passthrough.py SOURCE MOUNTPOINT``: what a home directory on a file server is like.

A filesystem in user space (fuse(4), version 7.31 of its protocol) that passes on what a plain
directory has: without extended attributes, without types in its listings, without exchanging of
names, without a word at close(2), refusing root; deleted files that are still open become
``.nfs…``. LATENCY is seconds per request. With LOCKS=silent it is asked for locks and answers only
when who asks is ended. Ends when it is unmounted.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
import time

HEADER = struct.Struct("=IIQQIIIHH")
OUT = struct.Struct("=IiQ")
ATTR = struct.Struct("=QQQQQQIIIIIIIIII")
SETATTR = struct.Struct("=IIQQQQQQIIIIIIII")
LATENCY = float(os.environ.get("LATENCY", "0"))
TRACE = os.environ.get("TRACE")
LOCKS_ARE_SILENT = os.environ.get("LOCKS") == "silent"
LOCKS = 1 << 1 | 1 << 10  # FUSE_POSIX_LOCKS, FUSE_FLOCK_LOCKS
NO_REPLY = object()


class Refused(Exception):
    """The errno to answer with."""


class Passthrough:
    def __init__(self, source: str, fd: int) -> None:
        self.fd = fd
        self.paths = {1: os.fsencode(source)}
        self.ids = {self.paths[1]: 1}
        self.next = 2
        self.open: dict[int, bytes] = {}  # descriptors that are held, by their first path
        self.silly: dict[bytes, set[int]] = {}

    def serve(self) -> None:
        while True:
            try:
                data = os.read(self.fd, 1 << 21)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                continue
            _, opcode, unique, node, uid, gid, *_ = HEADER.unpack_from(data)
            body = data[HEADER.size :]
            code, reply = 0, b""
            name = OPCODES.get(opcode)
            if LATENCY and name not in ("forget", "batch_forget", "release", "releasedir"):
                time.sleep(LATENCY)
            try:
                if name is None:
                    raise Refused(errno.ENOSYS)
                if uid == 0 and name not in ("init", "destroy", "forget", "batch_forget",
                                             "release", "releasedir", "interrupt"):  # fmt: skip
                    raise Refused(errno.EACCES)
                reply = getattr(self, name)(node, body, uid, gid)
            except Refused as refused:
                code = refused.args[0]
            except OSError as error:
                code = error.errno or errno.EIO
            if TRACE:
                print(name or opcode, self.paths.get(node), code, file=sys.stderr, flush=True)
            if reply is NO_REPLY:
                continue
            reply = b"" if code else reply
            os.write(self.fd, OUT.pack(OUT.size + len(reply), -code, unique) + reply)

    # -- nodes ------------------------------------------------------------------------------

    def path(self, node: int) -> bytes:
        try:
            return self.paths[node]
        except KeyError:
            raise Refused(errno.ESTALE) from None

    def below(self, node: int, body: bytes) -> bytes:
        return self.path(node) + b"/" + body.split(b"\0", 1)[0]

    def entry(self, path: bytes) -> bytes:
        st = os.lstat(path)
        node = self.ids.get(path)
        if node is None:
            node = self.ids[path] = self.next
            self.paths[node] = path
            self.next += 1
        return struct.pack("=QQQQII", node, 0, 1, 1, 0, 0) + self.attr(st)

    @staticmethod
    def attr(st: os.stat_result) -> bytes:
        seconds = [t // 10**9 for t in (st.st_atime_ns, st.st_mtime_ns, st.st_ctime_ns)]
        rest = [t % 10**9 for t in (st.st_atime_ns, st.st_mtime_ns, st.st_ctime_ns)]
        return ATTR.pack(
            st.st_ino, st.st_size, st.st_blocks, *seconds, *rest, st.st_mode, st.st_nlink,
            st.st_uid, st.st_gid, st.st_rdev, 4096, 0,
        )  # fmt: skip

    def moved(self, old: bytes, new: bytes) -> None:
        self.forgotten(new)
        for path in [p for p in self.ids if p == old or p.startswith(old + b"/")]:
            node = self.ids.pop(path)
            self.paths[node] = new + path[len(old) :]
            self.ids[self.paths[node]] = node

    def forgotten(self, path: bytes) -> None:
        node = self.ids.pop(path, None)
        if node is not None:
            del self.paths[node]

    # -- operations -------------------------------------------------------------------------

    def init(self, node: int, body: bytes, uid: int, gid: int) -> bytes:
        return struct.pack(
            "=IIIIHHIIHHI7I",
            7,
            31,
            1 << 17,
            1 << 5 | LOCKS * LOCKS_ARE_SILENT,
            12,
            9,
            1 << 17,
            1,
            0,
            0,
            *[0] * 8,
        )

    def destroy(self, node: int, body: bytes, uid: int, gid: int) -> bytes:
        return b""

    def forget(self, node: int, body: bytes, uid: int, gid: int) -> object:
        return NO_REPLY

    batch_forget = lock = forget

    def interrupt(self, node: int, body: bytes, uid: int, gid: int) -> object:
        """Who waits for an answer has been sent a signal."""
        (unique,) = struct.unpack_from("=Q", body)
        os.write(self.fd, OUT.pack(OUT.size, -errno.EINTR, unique))
        return NO_REPLY

    def lookup(self, node: int, body: bytes, uid: int, gid: int) -> bytes:
        return self.entry(self.below(node, body))

    def getattr(self, node: int, body: bytes, uid: int, gid: int) -> bytes:
        return struct.pack("=QII", 1, 0, 0) + self.attr(os.lstat(self.path(node)))

    def setattr(self, node: int, body: bytes, uid: int, gid: int) -> bytes:
        (valid, _, _, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, new_uid, new_gid,
         _) = SETATTR.unpack_from(body)  # fmt: skip
        path = self.path(node)
        if valid & 6:
            os.lchown(path, new_uid if valid & 2 else -1, new_gid if valid & 4 else -1)
        if valid & 1:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & 8:
            os.truncate(path, size)
        if valid & (16 | 32 | 128 | 256):
            st, now = os.lstat(path), time.time_ns()
            times = []
            for bit, now_bit, seconds, ns, old in (
                (16, 128, atime, atime_ns, st.st_atime_ns),
                (32, 256, mtime, mtime_ns, st.st_mtime_ns),
            ):
                given = seconds * 10**9 + ns if valid & bit else old
                times.append(now if valid & now_bit else given)
            os.utime(path, ns=(times[0], times[1]), follow_symlinks=False)
        return self.getattr(node, body, uid, gid)

    def readlink(self, node: int, body: bytes, uid: int, gid: int) -> bytes:
        return os.readlink(self.path(node))

    def made(self, path: bytes, uid: int, gid: int) -> bytes:
        os.lchown(path, uid, gid)
        return self.entry(path)

    def symlink(self, node: int, body: bytes, uid: int, gid: int) -> bytes:
        name, target = body.split(b"\0")[:2]
        os.symlink(target, self.path(node) + b"/" + name)
        return self.made(self.path(node) + b"/" + name, uid, gid)

    def mknod(self, node: int, body: bytes, uid: int, gid: int) -> bytes:
        mode, device, umask, _ = struct.unpack_from("=IIII", body)
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise Refused(errno.EPERM)
        path = self.below(node, body[16:])
        os.mknod(path, mode & ~umask, device)
        return self.made(path, uid, gid)

    def mkdir(self, node: int, body: bytes, uid: int, gid: int) -> bytes:
        mode, umask = struct.unpack_from("=II", body)
        path = self.below(node, body[8:])
        os.mkdir(path)
        os.chmod(path, mode & ~umask & 0o7777)
        return self.made(path, uid, gid)

    def unlink(self, node: int, body: bytes, uid: int, gid: int) -> bytes:
        path = self.below(node, body)
        held = {fd for fd, its in self.open.items() if its == path}
        if held:
            kept = self.path(node) + b"/.nfs" + os.urandom(12).hex().encode()
            os.rename(path, kept)
            self.moved(path, kept)
            self.silly[kept] = held
            self.open.update(dict.fromkeys(held, kept))
        else:
            os.unlink(path)
            self.forgotten(path)
        return b""

    def rmdir(self, node: int, body: bytes, uid: int, gid: int) -> bytes:
        path = self.below(node, body)
        os.rmdir(path)
        self.forgotten(path)
        return b""

    def rename(self, node: int, body: bytes, uid: int, gid: int, cut: int = 8) -> bytes:
        target = struct.unpack_from("=Q", body)[0]
        old, new = body[cut:].split(b"\0")[:2]
        old, new = self.path(node) + b"/" + old, self.path(target) + b"/" + new
        os.rename(old, new)
        self.moved(old, new)
        for fd, path in self.open.items():
            if path == old:
                self.open[fd] = new
        return b""

    def rename2(self, node: int, body: bytes, uid: int, gid: int) -> bytes:
        if struct.unpack_from("=QI", body)[1]:
            raise Refused(errno.EINVAL)
        return self.rename(node, body, uid, gid, 16)

    def link(self, node: int, body: bytes, uid: int, gid: int) -> bytes:
        old = self.path(struct.unpack_from("=Q", body)[0])
        path = self.below(node, body[8:])
        os.link(old, path, follow_symlinks=False)
        return self.entry(path)

    def _opened(self, path: bytes, flags: int, mode: int = 0) -> bytes:
        # the kernel reads before it writes part of a page
        if flags & os.O_ACCMODE == os.O_WRONLY:
            flags = flags & ~os.O_ACCMODE | os.O_RDWR
        fd = os.open(path, flags & ~(os.O_APPEND | os.O_NOFOLLOW), mode)
        self.open[fd] = path
        return struct.pack("=QII", fd, 0, 0)

    def open_(self, node: int, body: bytes, uid: int, gid: int) -> bytes:
        return self._opened(self.path(node), struct.unpack_from("=I", body)[0] & ~os.O_CREAT)

    def create(self, node: int, body: bytes, uid: int, gid: int) -> bytes:
        flags, mode, umask, _ = struct.unpack_from("=IIII", body)
        path = self.below(node, body[16:])
        opened = self._opened(path, flags | os.O_CREAT, mode & ~umask & 0o7777)
        return self.made(path, uid, gid) + opened

    def read(self, node: int, body: bytes, uid: int, gid: int) -> bytes:
        fd, offset, size = struct.unpack_from("=QQI", body)
        return os.pread(fd, size, offset)

    def write(self, node: int, body: bytes, uid: int, gid: int) -> bytes:
        fd, offset, size = struct.unpack_from("=QQI", body)
        return struct.pack("=II", os.pwrite(fd, body[40 : 40 + size], offset), 0)

    def statfs(self, node: int, body: bytes, uid: int, gid: int) -> bytes:
        st = os.statvfs(self.paths[1])
        return struct.pack(
            "=QQQQQIIII6I", st.f_blocks, st.f_bfree, st.f_bavail, st.f_files, st.f_ffree,
            st.f_bsize, 255, st.f_frsize, *[0] * 7,
        )  # fmt: skip

    def release(self, node: int, body: bytes, uid: int, gid: int) -> bytes:
        fd = struct.unpack_from("=Q", body)[0]
        path = self.open.pop(fd, b"")
        os.close(fd)
        if path in self.silly:
            self.silly[path].discard(fd)
            if not self.silly[path]:
                del self.silly[path]
                os.unlink(path)
                self.forgotten(path)
        return b""

    def nothing(self, node: int, body: bytes, uid: int, gid: int) -> bytes:
        return b""

    fsync = fsyncdir = access = releasedir = nothing

    def opendir(self, node: int, body: bytes, uid: int, gid: int) -> bytes:
        return struct.pack("=QII", 0, 0, 0)

    def readdir(self, node: int, body: bytes, uid: int, gid: int) -> bytes:
        _, offset, size = struct.unpack_from("=QQI", body)
        names = [b".", b"..", *sorted(os.listdir(self.path(node)))]
        found = b""
        for number, name in enumerate(names[offset:], offset + 1):
            record = struct.pack("=QQII", number + 100, number, len(name), 0) + name
            record += bytes(-len(record) % 8)
            if len(found) + len(record) > size:
                break
            found += record
        return found


OPCODES = {
    1: "lookup", 2: "forget", 3: "getattr", 4: "setattr", 5: "readlink", 6: "symlink", 8: "mknod",
    9: "mkdir", 10: "unlink", 11: "rmdir", 12: "rename", 13: "link", 14: "open_", 15: "read",
    16: "write", 17: "statfs", 18: "release", 20: "fsync", 26: "init", 27: "opendir",
    28: "readdir", 29: "releasedir", 30: "fsyncdir", 31: "lock", 32: "lock", 33: "lock",
    34: "access", 35: "create", 36: "interrupt", 38: "destroy", 42: "batch_forget", 45: "rename2",
}  # fmt: skip


def main() -> None:
    source, target = sys.argv[1:]
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"server:/home", os.fsencode(target), b"fuse", 0, options.encode()):
        sys.exit(os.strerror(ctypes.get_errno()))
    print("mounted", flush=True)
    Passthrough(source, fd).serve()


if __name__ == "__main__":
    main()
