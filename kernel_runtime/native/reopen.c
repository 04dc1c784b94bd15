/* reopen.c: what the live process has open on mounts that others were mounted over. See hold.h.
 *
 * All other threads are stopped and the frozen process has its recipes already, so state->descs is
 * ours to change. */
#include "fds.h"
#include "hold.h"

struct mounts {
  const int32_t *ids;
  uint32_t count;
};

static int lies_on(struct tt_state *state, int fd, const struct mounts *mounts) {
  char path[48];
  struct tt_text value;
  tt_text_path(path, "/proc/self/fdinfo/", (uint64_t)fd, "");
  if (tt_slurp(state, path) || !tt_text_field(tt_slurped(state), "mnt_id:", &value)) return 0;
  int32_t id = (int32_t)tt_text_number(&value);
  for (uint32_t i = 0; i < mounts->count; i++)
    if (mounts->ids[i] == id) return 1;
  return 0;
}

/* Why a description must stay as it is, or NULL. */
static const char *why_not(const struct tt_desc *d) {
  switch (d->kind) {
    case TT_KIND_PATH:
      if (S_ISCHR(d->mode) && !(d->flags & O_PATH) && !tt_device_is_stateless(d->path))
        return "a device that may keep a state";
      return 0;
    case TT_KIND_FIFO:
      return tt_pipe_is_known(d) ? 0 : "another process has an end, or not all of it is known";
    case TT_KIND_OBJECT: return d->u.object->kind == TT_OBJECT_SHM ? 0 : "deleted";
    default: return "deleted, or nothing that can be opened again";
  }
}

/* A new descriptor of the same description by another mount, or -errno. */
static int open_again(struct tt_state *state, struct tt_desc *d) {
  struct stat st;
  long r = SC(SYS_newfstatat, AT_FDCWD, d->path, &st, AT_SYMLINK_NOFOLLOW);
  if (r) return (int)r;
  if ((st.st_mode ^ d->mode) & S_IFMT) return -ESTALE;
  /* another FIFO: filled with what was in the old one */
  if (d->kind == TT_KIND_FIFO && (st.st_ino != d->ino || st.st_dev != d->dev))
    return tt_pipe_open(state, d);
  if (d->offset >= 0 || S_ISBLK(d->mode)) /* a child may have moved it since */
    d->offset = SC(SYS_lseek, d->fd, 0, SEEK_CUR);
  return tt_path_open(d, 1);
}

static void report(struct tt_state *state, int fd, const char *path, const char *why, int error) {
  struct tt_note note = {{0}, 0};
  tt_note(&note, path);
  tt_note(&note, ": stays on its old mount, ");
  if (why)
    tt_note(&note, why);
  else if (error == -ESTALE)
    tt_note(&note, "something of another type is there now");
  else
    tt_note_error(&note, error);
  if (fd < 0)
    tt_report(&state->report, "environment", "cwd", note.text);
  else
    tt_report_fd(state, "environment", fd, note.text);
}

static void reopen(struct tt_state *state, struct tt_desc *d, struct tt_reopened *counts) {
  const char *why = why_not(d);
  int fd = why ? -1 : open_again(state, d), error = fd;
  if (fd >= 0) {
    /* highest number first: when that one is refused by RLIMIT_NOFILE, none was replaced */
    error = tt_fds_install(state, d, fd);
    if (error) tt_close(fd);
  }
  if (error < 0) report(state, d->fd, d->path, why, error);
  if (error < 0)
    counts->failed++;
  else
    counts->reopened++;
}

static void reopen_directory(struct tt_state *state, const struct mounts *mounts,
                             struct tt_reopened *counts) {
  int fd = tt_open(".", O_PATH);
  int on = fd >= 0 && lies_on(state, fd, mounts);
  tt_close(fd);
  if (!on) return;
  long r = state->directory ? SC(SYS_chdir, state->directory) : -ENOENT;
  if (r) report(state, -1, state->directory ? state->directory : "(deleted)", 0, (int)r);
  if (r)
    counts->failed++;
  else
    counts->reopened++;
}

struct tt_reopened tt_reopen(struct tt_state *state, const int32_t *mount_ids, uint32_t count) {
  const struct mounts mounts = {mount_ids, count};
  struct tt_reopened counts = {sizeof counts, 0, 0};
  struct rlimit limit;
  tt_fds_raise_limit(state, &limit);
  for (struct tt_desc *d = state->descs; d; d = d->next)
    if (d->path && d->path[0] == '/' && lies_on(state, d->fd, &mounts)) reopen(state, d, &counts);
  reopen_directory(state, &mounts, &counts);
  tt_pipes_close(state);
  tt_epolls_fill(state, 1);
  tt_locks_take(state);
  SC(SYS_prlimit64, 0, RLIMIT_NOFILE, &limit, 0);
  return counts;
}
