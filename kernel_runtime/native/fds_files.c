/* fds_files.c: files, directories and whatever is opened again by its path; locks on them. */
#include "fds.h"
#include "memory.h"

#include <sys/file.h>

/* Flags of open(2) that describe the moment of opening, not the description. */
#define ONCE (O_CREAT | O_EXCL | O_TRUNC | O_NOCTTY)

static int ends_deleted(const char *path) {
  struct tt_text text = {path, path + strlen(path)};
  return tt_text_ends(text, " (deleted)");
}

int tt_file_describe(struct tt_state *state, struct tt_desc *desc, const struct stat *st) {
  desc->kind = TT_KIND_PATH;
  if (S_ISREG(st->st_mode) && !(desc->flags & O_PATH)) {
    int error = tt_object_of_fd(state, desc, st);
    if (desc->kind == TT_KIND_PATH) desc->u.size = st->st_size;
    return error || desc->kind == TT_KIND_DEAD ? error : tt_locks_describe(state, desc);
  }
  if (ends_deleted(desc->path)) {
    desc->kind = TT_KIND_DEAD;
    tt_report_fd(state, "file", desc->fd, desc->path);
  }
  return 0;
}

int tt_path_open(const struct tt_desc *desc, int at_once) {
  int flags = (desc->flags & ~ONCE) | O_NOCTTY; /* no terminal may become the controlling one */
  int extra = at_once ? O_NONBLOCK : 0;
  int fd = tt_open(desc->path, flags | extra);
  if (fd == -EPERM && flags & O_NOATIME) {
    flags &= ~O_NOATIME;
    fd = tt_open(desc->path, flags | extra);
  }
  if (fd < 0) return fd;
  if (extra & ~flags) SC(SYS_fcntl, fd, F_SETFL, flags);
  if (desc->offset > 0) SC(SYS_lseek, fd, desc->offset, SEEK_SET);
  return fd;
}

/* A file that no restore brings back may have been written, cut or replaced since: its offset then
 * means another place, and what is written goes to what is there now. */
static void report_changed(struct tt_state *state, const struct tt_desc *desc, int fd) {
  struct stat st;
  if (!S_ISREG(desc->mode) || desc->flags & O_PATH) return;
  if (SC(SYS_fstat, fd, &st) || !S_ISREG(st.st_mode) || st.st_size == desc->u.size) return;
  struct tt_note note = {{0}, 0};
  tt_note(&note, desc->path);
  tt_note(&note, st.st_ino == desc->ino && st.st_dev == desc->dev
                     ? ": is not as it was at the checkpoint ("
                     : ": another file is there now (");
  tt_note_number(&note, (uint64_t)st.st_size);
  tt_note(&note, " bytes, then ");
  tt_note_number(&note, (uint64_t)desc->u.size);
  tt_note(&note, "), opened again ");
  tt_note(&note, desc->flags & O_APPEND ? "to append to it" : "at its old offset");
  tt_report_fd(state, "file", desc->fd, note.text);
}

int tt_file_open(struct tt_state *state, struct tt_desc *desc) {
  int fd = tt_path_open(desc, 1);               /* there may be a FIFO by now where a file was */
  if (fd == -EAGAIN) fd = tt_path_open(desc, 0); /* a lease: time to give it up */
  if (fd >= 0) report_changed(state, desc, fd);
  return fd;
}

int tt_object_open(struct tt_state *state, struct tt_desc *desc) {
  char path[40];
  (void)state;
  if (desc->u.object->made < 0) return -ENOENT;
  tt_text_path(path, "/proc/self/fd/", (uint64_t)desc->u.object->made, "");
  int fd = tt_open(path, desc->flags & ~(ONCE | O_TMPFILE | O_NOFOLLOW));
  if (fd >= 0 && desc->offset > 0) SC(SYS_lseek, fd, desc->offset, SEEK_SET);
  return fd;
}

/* --- locks ---------------------------------------------------------------------------------- */

/* "1: POSIX  ADVISORY  WRITE 1234 fe:00:393 0 EOF" (proc(5), as in /proc/locks). */
static int add_lock(struct tt_state *state, struct tt_desc *desc, struct tt_text line) {
  tt_text_word(&line);
  struct tt_text kind = tt_text_word(&line);
  tt_text_word(&line);
  struct tt_text type = tt_text_word(&line);
  tt_text_word(&line);
  tt_text_word(&line);
  uint64_t start = tt_text_number(&line);
  struct tt_text last = tt_text_word(&line);
  int command = tt_text_is(kind, "POSIX") ? F_SETLK : tt_text_is(kind, "OFDLCK") ? F_OFD_SETLK : 0;
  if (!command && !tt_text_is(kind, "FLOCK")) {
    tt_report_fd(state, "lock", desc->fd, "a lease is not taken again");
    return 0;
  }
  struct tt_lock *lock = tt_alloc(&state->arena, sizeof *lock);
  if (!lock) return -ENOMEM;
  lock->command = command;
  lock->type = tt_text_is(type, "WRITE") ? F_WRLCK : F_RDLCK;
  lock->start = (int64_t)start;
  lock->length = tt_text_is(last, "EOF") ? 0 : (int64_t)(tt_text_number(&last) - start + 1);
  lock->next = desc->locks;
  desc->locks = lock;
  return 0;
}

int tt_locks_describe(struct tt_state *state, struct tt_desc *desc) {
  char path[48];
  tt_text_path(path, "/proc/self/fdinfo/", (uint64_t)desc->fd, "");
  int error = tt_slurp(state, path);
  if (error) return error;
  struct tt_text text = tt_slurped(state), line;
  while (!error && tt_text_line(&text, &line))
    if (tt_text_skip(&line, "lock:")) error = add_lock(state, desc, line);
  return error;
}

static long take_lock(int fd, const struct tt_lock *lock) {
  if (!lock->command)
    return SC(SYS_flock, fd, (lock->type == F_WRLCK ? LOCK_EX : LOCK_SH) | LOCK_NB);
  struct flock range;
  memset(&range, 0, sizeof range);
  range.l_type = lock->type;
  range.l_whence = SEEK_SET;
  range.l_start = lock->start;
  range.l_len = lock->length;
  return SC(SYS_fcntl, fd, lock->command, &range);
}

/* Closing any descriptor of a file drops the process's POSIX locks on it, so this comes after the
 * last close. Those may have been dropped by the close of another descriptor than their own; the
 * other locks belong to a description, and only one that is new lacks them. */
void tt_locks_take(struct tt_state *state) {
  for (struct tt_desc *d = state->descs; d; d = d->next)
    for (struct tt_lock *l = d->locks; l; l = l->next) {
      if (!d->done && l->command != F_SETLK) continue;
      long r = take_lock(d->fd, l);
      if (!r) continue;
      struct tt_note note = {{0}, 0};
      tt_note(&note, d->path);
      tt_note(&note, ": not locked again, ");
      tt_note_error(&note, (int)r);
      tt_report_fd(state, "lock", d->fd, note.text);
    }
}
