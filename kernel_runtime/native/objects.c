/* objects.c: memfds, deleted files, files under /dev/shm and anonymous shared memory: contents
 * copied aside at the freeze, made anew at the wake. See memory.h. */
#include "fds.h"
#include "memory.h"
#include "objects.h"

#include <sys/sysinfo.h>
#include <sys/vfs.h>

#ifndef SEEK_DATA
#define SEEK_DATA 3
#define SEEK_HOLE 4
#endif
#ifndef F_GET_SEALS
#define F_ADD_SEALS 1033
#define F_GET_SEALS 1034
#endif
#define PUNCH_HOLE_KEEP_SIZE 3 /* FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE */
#define SEAL_SEAL 1            /* F_SEAL_SEAL */
#define HUGETLBFS 0x958458f6
#define SHM "/dev/shm/"
#define COPY_STEP ((uint64_t)8 << 20)

/* --- describing ------------------------------------------------------------------------------ */

struct tt_object *tt_object_find(struct tt_state *state, uint64_t dev, uint64_t ino) {
  struct tt_object *o = state->objects;
  while (o && (o->dev != dev || o->ino != ino)) o = o->next;
  return o;
}

struct tt_object *tt_object_add(struct tt_state *state, enum tt_object_kind kind, uint64_t dev,
                                uint64_t ino, struct tt_text path) {
  struct tt_object *o = tt_alloc(&state->arena, sizeof *o);
  if (!o) return 0;
  if (tt_text_ends(path, " (deleted)")) path.end -= sizeof " (deleted)" - 1;
  o->kind = kind;
  o->dev = dev;
  o->ino = ino;
  o->mode = 0600;
  o->seals = -1;
  o->made = -1;
  o->path = tt_copy_text(&state->arena, path.at, (size_t)(path.end - path.at));
  if (!o->path) return 0;
  o->next = state->objects;
  state->objects = o;
  return o;
}

int tt_object_renamed(struct tt_state *state, struct tt_text *path, uint64_t ino) {
  char entries[4096], name[sizeof SHM + 256] = SHM;
  struct tt_text rest = *path;
  if (!tt_text_skip(&rest, SHM)) return 0;
  int directory = tt_open(SHM, O_RDONLY | O_DIRECTORY), found = 0;
  long n = directory;
  while (!found && n >= 0 && (n = SC(SYS_getdents64, directory, entries, sizeof entries)) > 0)
    for (long at = 0; at < n && !found;) {
      uint64_t inode;
      uint16_t length;
      memcpy(&inode, entries + at, 8);
      memcpy(&length, entries + at + 16, 2); /* struct linux_dirent64: ino, off, reclen, type, name */
      size_t size = strlen(entries + at + 19);
      if (inode == ino && size <= 255) {
        memcpy(name + sizeof SHM - 1, entries + at + 19, size + 1);
        found = 1;
      }
      at += length;
    }
  tt_close(directory);
  if (!found) return 0;
  size_t size = strlen(name);
  char *kept = tt_copy_text(&state->arena, name, size);
  if (!kept) return -ENOMEM;
  *path = (struct tt_text){kept, kept + size};
  return 1;
}

static void leave_out(struct tt_state *state, struct tt_object *o) {
  struct tt_note note = {{0}, 0};
  o->left_out = 1;
  tt_note_number(&note, o->size);
  tt_note(&note, " bytes: contents not kept, larger than what may be copied aside");
  tt_report(&state->report, "memory", o->path, note.text);
}

static int is_zero(const char *at, size_t n) {
  const uint64_t *word = (const uint64_t *)at;
  for (size_t i = 0; i < n / 8; i++)
    if (word[i]) return 0;
  return 1;
}

/* Copy [offset, offset+size) of the open file. */
static int copy_run(struct tt_state *state, struct tt_object *o, int fd, uint64_t offset,
                    uint64_t size) {
  while (size) {
    uint64_t step = size < COPY_STEP ? size : COPY_STEP;
    char *to = tt_extent_add(state, &o->contents, offset, step);
    if (!to) {
      leave_out(state, o);
      return 0;
    }
    for (uint64_t got = 0; got < step;) {
      long n = SC(SYS_pread64, fd, to + got, step - got, offset + got);
      if (n < 0) return (int)n;
      if (n == 0) break; /* shorter by now: the rest is zero, as it was mapped */
      got += (uint64_t)n;
    }
    offset += step;
    size -= step;
  }
  return 0;
}

/* Copy all data of an open file, not its holes. Leaves its offset where it was. */
int tt_object_copy(struct tt_state *state, struct tt_object *o, int fd) {
  struct stat st;
  uint64_t started = tt_now_ns();
  long r = SC(SYS_fstat, fd, &st);
  if (r) return (int)r;
  o->whole = 1;
  o->size = (uint64_t)st.st_size;
  o->mode = st.st_mode & 07777;
  o->seals = (int)SC(SYS_fcntl, fd, F_GET_SEALS);
  long before = SC(SYS_lseek, fd, 0, SEEK_CUR), data, hole = 0;
  while (!r && (data = SC(SYS_lseek, fd, hole, SEEK_DATA)) >= 0) {
    hole = SC(SYS_lseek, fd, data, SEEK_HOLE);
    if (hole < 0) break;
    r = copy_run(state, o, fd, (uint64_t)data, (uint64_t)(hole - data));
  }
  SC(SYS_lseek, fd, before, SEEK_SET);
  state->aside_ns += tt_now_ns() - started;
  return (int)r;
}

/* Copy what is mapped of an object that no descriptor is open on. Pages that nobody has touched are
 * left alone where mincore(2) can tell: as long as nothing is swapped out, a page that is not in
 * memory is not there. */
int tt_object_copy_mapped(struct tt_state *state, struct tt_object *o, const struct tt_map *m) {
  uint64_t started = tt_now_ns(), size = m->end - m->start;
  struct sysinfo info;
  unsigned char there[256];
  int sure = SC(SYS_sysinfo, &info) == 0 && info.totalswap == info.freeswap;
  if (o->left_out || !(m->prot & PROT_READ)) return 0;
  if (!sure && size > state->aside_left) {
    leave_out(state, o);
    return 0;
  }
  for (uint64_t at = 0; at < size; at += sizeof there * tt_page) {
    uint64_t step = size - at < sizeof there * tt_page ? size - at : sizeof there * tt_page;
    if (sure && SC(SYS_mincore, m->start + at, step, there)) sure = 0;
    for (uint64_t page = 0; page < step / tt_page; page++) {
      const char *from = (const char *)m->start + at + page * tt_page;
      if ((sure && !(there[page] & 1)) || is_zero(from, tt_page)) continue;
      char *to = tt_extent_add(state, &o->contents, m->offset + at + page * tt_page, tt_page);
      if (!to) {
        leave_out(state, o);
        return 0;
      }
      memcpy(to, from, tt_page);
    }
  }
  state->aside_ns += tt_now_ns() - started;
  return 0;
}

/* A descriptor to read the object by: the given one, or another opening of it. Closing that would
 * drop the process's locks, but nobody locks what he cannot name. */
static int copy_by(struct tt_state *state, struct tt_object *o, const struct tt_desc *desc) {
  char path[40];
  if ((desc->flags & O_ACCMODE) != O_WRONLY) return tt_object_copy(state, o, desc->fd);
  tt_text_path(path, "/proc/self/fd/", (uint64_t)desc->fd, "");
  int fd = tt_open(path, O_RDONLY);
  if (fd < 0) {
    leave_out(state, o);
    return 0;
  }
  int error = tt_object_copy(state, o, fd);
  tt_close(fd);
  return error;
}

int tt_object_of_fd(struct tt_state *state, struct tt_desc *desc, const struct stat *st) {
  struct tt_text path = {desc->path, desc->path + strlen(desc->path)}, rest = path;
  enum tt_object_kind kind;
  struct statfs fs;
  if (st->st_nlink == 0)
    kind = tt_text_skip(&rest, "/memfd:") ? TT_OBJECT_MEMFD : TT_OBJECT_DELETED;
  else if (tt_text_skip(&rest, SHM))
    kind = TT_OBJECT_SHM;
  else
    return 0;
  if (SC(SYS_fstatfs, desc->fd, &fs) == 0 && (uint32_t)fs.f_type == HUGETLBFS) {
    desc->kind = TT_KIND_DEAD;
    tt_report_fd(state, "memory", desc->fd, "huge page file: not kept");
    return 0;
  }
  desc->kind = TT_KIND_OBJECT;
  desc->u.object = tt_object_find(state, st->st_dev, st->st_ino);
  if (desc->u.object) return 0;
  struct tt_object *o = tt_object_add(state, kind, st->st_dev, st->st_ino, path);
  if (!o) return -ENOMEM;
  desc->u.object = o;
  return copy_by(state, o, desc);
}

/* --- waking ------------------------------------------------------------------------------- */

static int make_named(const struct tt_object *o) {
  return (int)SC(SYS_openat, AT_FDCWD, o->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, o->mode);
}

/* A file without a name where it was; memory where that is not possible. */
static int make_deleted(const struct tt_object *o) {
  char folder[4096];
  size_t n = strlen(o->path);
  while (n > 1 && o->path[n - 1] != '/') n--;
  if (n && n < sizeof folder) {
    memcpy(folder, o->path, n);
    folder[n] = 0;
    int fd = (int)SC(SYS_openat, AT_FDCWD, folder, O_TMPFILE | O_RDWR | O_CLOEXEC, o->mode);
    if (fd >= 0) return fd;
  }
  return (int)SC(SYS_memfd_create, "deleted", 1);
}

static int make_memfd(const struct tt_object *o) {
  struct tt_text path = {o->path, o->path + strlen(o->path)};
  tt_text_skip(&path, "/memfd:");
  int sealable = o->seals >= 0 && !(o->seals & SEAL_SEAL);
  return (int)SC(SYS_memfd_create, path.at, 1 | (sealable || o->seals > SEAL_SEAL ? 2 : 0));
}

static int write_all(int fd, const struct tt_extents *contents) {
  for (const struct tt_extent *e = contents->first; e; e = e->next)
    for (uint64_t done = 0; done < e->size;) {
      long n = SC(SYS_pwrite64, fd, e->data + done, e->size - done, e->offset + done);
      if (n <= 0) return n ? (int)n : -ENOSPC;
      done += (uint64_t)n;
    }
  return 0;
}

static int make_anonymous(struct tt_object *o) {
  long m = SC(SYS_mmap, 0, o->size, PROT_READ | PROT_WRITE,
              MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (tt_failed(m)) return (int)m;
  o->made_at = (char *)m;
  for (const struct tt_extent *e = o->contents.first; e; e = e->next)
    memcpy(o->made_at + e->offset, e->data, e->size);
  return 0;
}

static int make(struct tt_state *state, struct tt_object *o) {
  if (o->kind == TT_OBJECT_ANONYMOUS) return make_anonymous(o);
  int fd = o->kind == TT_OBJECT_SHM     ? make_named(o)
           : o->kind == TT_OBJECT_MEMFD ? make_memfd(o)
                                        : make_deleted(o);
  if (fd >= 0) fd = tt_fds_park(state, fd);
  if (fd < 0) return fd;
  o->made = fd;
  SC(SYS_fchmod, fd, o->mode);
  /* what another timeline left in it; not by truncating, as somebody may have it mapped */
  if (o->kind == TT_OBJECT_SHM) SC(SYS_fallocate, fd, PUNCH_HOLE_KEEP_SIZE, 0, o->size);
  long r = SC(SYS_ftruncate, fd, o->size);
  return r ? (int)r : write_all(fd, &o->contents);
}

int tt_objects_make(struct tt_state *state) {
  for (struct tt_object *o = state->objects; o; o = o->next) {
    int error = make(state, o);
    if (error == -EMFILE || error == -ENFILE || error == -ENOMEM || error == -ENOSPC) return error;
    if (!error) continue;
    struct tt_note note = {{0}, 0};
    tt_note(&note, "not made again, ");
    tt_note_error(&note, error);
    tt_report(&state->report, "memory", o->path, note.text);
  }
  return 0;
}

void tt_objects_close(struct tt_state *state) {
  for (struct tt_object *o = state->objects; o; o = o->next) {
    /* seals forbid what was done until now */
    if (o->made >= 0 && o->seals > 0) SC(SYS_fcntl, o->made, F_ADD_SEALS, o->seals);
    tt_close(o->made);
    o->made = -1;
    if (o->made_at) SC(SYS_munmap, o->made_at, o->size);
    o->made_at = 0;
  }
}
