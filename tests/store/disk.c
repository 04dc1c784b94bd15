/* Preloaded into a process that writes a store: notes what it does to the disk, in order, or lets
 * the disk be full from the n-th use on.
 *
 * DISK_ROOT   only paths below it count
 * DISK_LOG    where the notes go: records of  op (1 byte), offset (8), three lengths (4 each), then
 *             the first path, the second path, the data
 * DISK_FULL   n: the n-th operation in DISK_ROOT/store that may need room, and all after it, fail
 *             with ENOSPC; room that a truncated file gives back is good for one operation a page
 * DISK_COUNT  a file that gets the number of such operations at the end
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static const char *root;
static int log_fd = -1;
static long full_at, used;

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void begin(void) {
  root = getenv("DISK_ROOT");
  const char *path = getenv("DISK_LOG");
  if (path) log_fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const char *full = getenv("DISK_FULL");
  full_at = full ? atol(full) : 0;
}

__attribute__((destructor)) static void end(void) {
  const char *path = getenv("DISK_COUNT");
  if (!path) return;
  char text[32];
  int fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  int length = snprintf(text, sizeof text, "%ld", used);
  if (syscall(SYS_write, fd, text, length) < 0) _exit(9);
}

static int counts(const char *path) {
  size_t length = root ? strlen(root) : 0;
  return root && !strncmp(path, root, length) && (path[length] == '/' || !path[length]) &&
         !strstr(path, " (deleted)") && !strstr(path, "-shm");
}

static const char *path_of(int fd, char *out) {
  char link[40];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, out, PATH_MAX - 1);
  out[length < 0 ? 0 : length] = 0;
  return out;
}

static const char *absolute(int dir, const char *path, char *out) {
  if (*path == '/') {
    snprintf(out, PATH_MAX, "%s", path);
    return out;
  }
  char base[PATH_MAX];
  if (dir == AT_FDCWD) {
    if (!getcwd(base, sizeof base)) base[0] = 0;
  } else
    path_of(dir, base);
  if (snprintf(out, PATH_MAX, "%s/%s", base, path) >= PATH_MAX) out[0] = 0;
  return out;
}

static void note(char op, const char *a, const char *b, int64_t offset, const void *data, size_t n) {
  if (log_fd < 0) return;
  uint32_t lengths[3] = {strlen(a), strlen(b), n};
  struct iovec parts[] = {{&op, 1},           {&offset, 8},           {lengths, 12},
                          {(void *)a, lengths[0]}, {(void *)b, lengths[1]}, {(void *)data, n}};
  if (syscall(SYS_writev, log_fd, parts, 6) < 0) _exit(9);
}

/* Whether an operation that may need room has none. */
static int full(const char *path) {
  if (!counts(path) || strncmp(path + strlen(root), "/store", 6)) return 0;
  used++;
  if (!full_at || used < full_at) return 0;
  errno = ENOSPC;
  return 1;
}

#define LOCKED pthread_mutex_lock(&lock)
#define UNLOCKED pthread_mutex_unlock(&lock)

static int opened(int dir, const char *path, int flags, mode_t mode) {
  char name[PATH_MAX];
  struct stat st;
  LOCKED;
  absolute(dir, path, name);
  int fresh = (flags & O_CREAT) && counts(name) && syscall(SYS_newfstatat, dir, path, &st, 0) < 0;
  int fd = -1;
  if (!fresh || !full(name)) fd = syscall(SYS_openat, dir, path, flags, mode);
  int error = errno;
  if (fd >= 0 && counts(name)) {
    if (fresh) note('c', name, "", 0, 0, 0);
    if (flags & O_TRUNC) note('t', name, "", 0, 0, 0);
  }
  UNLOCKED;
  errno = error;
  return fd;
}

#define OPEN(name)                                       \
  int name(const char *path, int flags, ...) {           \
    va_list more;                                        \
    va_start(more, flags);                               \
    mode_t mode = va_arg(more, mode_t);                  \
    va_end(more);                                        \
    return opened(AT_FDCWD, path, flags, mode);          \
  }
#define OPENAT(name)                                     \
  int name(int dir, const char *path, int flags, ...) {  \
    va_list more;                                        \
    va_start(more, flags);                               \
    mode_t mode = va_arg(more, mode_t);                  \
    va_end(more);                                        \
    return opened(dir, path, flags, mode);               \
  }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

static ssize_t written(int fd, const void *data, size_t n, int64_t at) {
  char name[PATH_MAX];
  LOCKED;
  path_of(fd, name);
  int mine = counts(name);
  int64_t offset = at;
  if (mine && at < 0) {
    struct stat st;
    int appends = syscall(SYS_fcntl, fd, F_GETFL) & O_APPEND;
    offset = appends && !fstat(fd, &st) ? st.st_size : lseek(fd, 0, SEEK_CUR);
  }
  ssize_t done = -1;
  if (!mine || !full(name))
    done = at < 0 ? syscall(SYS_write, fd, data, n) : syscall(SYS_pwrite64, fd, data, n, at);
  int error = errno;
  if (mine && done > 0) note('w', name, "", offset, data, done);
  UNLOCKED;
  errno = error;
  return done;
}

ssize_t write(int fd, const void *data, size_t n) { return written(fd, data, n, -1); }
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) { return written(fd, data, n, at); }
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at) { return written(fd, data, n, at); }

static int truncated(int fd, int64_t length) {
  char name[PATH_MAX];
  LOCKED;
  path_of(fd, name);
  struct stat st;
  int64_t before = fstat(fd, &st) ? 0 : st.st_blocks * 512;
  int done = syscall(SYS_ftruncate, fd, length), error = errno;
  if (!done && counts(name)) {
    note('t', name, "", length, 0, 0);
    if (full_at && used >= full_at && before > length) full_at = used + (before - length) / 4096;
  }
  UNLOCKED;
  errno = error;
  return done;
}

int ftruncate(int fd, off_t length) { return truncated(fd, length); }
int ftruncate64(int fd, off64_t length) { return truncated(fd, length); }

int truncate(const char *path, off_t length) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  int done = fd < 0 ? -1 : truncated(fd, length), error = errno;
  if (fd >= 0) close(fd);
  errno = error;
  return done;
}
int truncate64(const char *path, off64_t length) { return truncate(path, length); }

static int reserved(int fd, int64_t offset, int64_t length) {
  char name[PATH_MAX];
  LOCKED;
  path_of(fd, name);
  int error = full(name) ? ENOSPC : syscall(SYS_fallocate, fd, 0, offset, length) ? errno : 0;
  if (!error && counts(name)) note('t', name, "", offset + length, 0, 0);
  UNLOCKED;
  return error;
}
int posix_fallocate(int fd, off_t at, off_t length) { return reserved(fd, at, length); }
int posix_fallocate64(int fd, off64_t at, off64_t length) { return reserved(fd, at, length); }

static int synced(int fd, char op, long call) {
  char name[PATH_MAX];
  LOCKED;
  path_of(fd, name);
  int done = full(name) ? -1 : syscall(call, fd), error = errno;
  if (!done && counts(name)) note(op, name, "", 0, 0, 0);
  UNLOCKED;
  errno = error;
  return done;
}

int fsync(int fd) { return synced(fd, 's', SYS_fsync); }
int fdatasync(int fd) { return synced(fd, 's', SYS_fdatasync); }
int syncfs(int fd) { return synced(fd, 'S', SYS_syncfs); }

/* Operations on names. Those that may need room for a directory can fail; deleting cannot. */
#define TWO(op, needs_room, dir_a, a, dir_b, b, call)           \
  char one[PATH_MAX], two[PATH_MAX];                            \
  LOCKED;                                                       \
  absolute(dir_a, a, one);                                      \
  absolute(dir_b, b, two);                                      \
  int done = needs_room && full(two) ? -1 : (call), error = errno; \
  if (!done && counts(two)) note(op, one, two, 0, 0, 0);        \
  UNLOCKED;                                                     \
  errno = error;                                                \
  return done;

int rename(const char *a, const char *b) {
  TWO('r', 1, AT_FDCWD, a, AT_FDCWD, b, syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, 0))
}
int renameat(int da, const char *a, int db, const char *b) {
  TWO('r', 1, da, a, db, b, syscall(SYS_renameat2, da, a, db, b, 0))
}
int link(const char *a, const char *b) {
  TWO('l', 1, AT_FDCWD, a, AT_FDCWD, b, syscall(SYS_linkat, AT_FDCWD, a, AT_FDCWD, b, 0))
}
int linkat(int da, const char *a, int db, const char *b, int flags) {
  TWO('l', 1, da, a, db, b, syscall(SYS_linkat, da, a, db, b, flags))
}
int unlink(const char *a) {
  TWO('u', 0, AT_FDCWD, a, AT_FDCWD, a, syscall(SYS_unlinkat, AT_FDCWD, a, 0))
}
int unlinkat(int da, const char *a, int flags) {
  TWO('u', 0, da, a, da, a, syscall(SYS_unlinkat, da, a, flags))
}
int mkdir(const char *a, mode_t mode) {
  TWO('d', 1, AT_FDCWD, a, AT_FDCWD, a, syscall(SYS_mkdirat, AT_FDCWD, a, mode))
}
int mkdirat(int da, const char *a, mode_t mode) {
  TWO('d', 1, da, a, da, a, syscall(SYS_mkdirat, da, a, mode))
}
