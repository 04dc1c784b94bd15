/* fds_terminals.c: character devices: harmless ones by path, terminals, and pseudo-terminals whose
 * master is in this process. */
#include "fds.h"

#include <sys/ioctl.h>
#include <asm/termbits.h>

#ifndef TIOCGPTPEER
#define TIOCGPTPEER 0x5441
#endif

struct tt_terminal {
  int index; /* N of /dev/pts/N, of the master or the slave */
  struct termios settings;
  struct winsize size;
  struct tt_desc *master; /* of a slave: NULL when the master is elsewhere */
  int made;               /* master: descriptor at its number, while waking */
};

static const char *const stateless[] = {"/dev/null",    "/dev/zero", "/dev/full",   "/dev/random",
                                        "/dev/urandom", "/dev/tty",  "/dev/console"};

static struct tt_terminal *note_terminal(struct tt_state *state, struct tt_desc *desc) {
  struct tt_terminal *t = tt_alloc(&state->arena, sizeof *t);
  if (!t) return 0;
  SC(SYS_ioctl, desc->fd, TCGETS, &t->settings);
  SC(SYS_ioctl, desc->fd, TIOCGWINSZ, &t->size);
  desc->u.terminal = t;
  return t;
}

static struct tt_desc *find_master(struct tt_state *state, int index) {
  for (struct tt_desc *d = state->descs; d; d = d->next)
    if (d->kind == TT_KIND_TERMINAL && !d->u.terminal->master && d->u.terminal->index == index)
      return d;
  return 0;
}

int tt_device_is_stateless(const char *path) {
  for (size_t i = 0; i < sizeof stateless / sizeof *stateless; i++)
    if (tt_text_same(path, stateless[i])) return 1;
  return 0;
}

int tt_terminal_describe(struct tt_state *state, struct tt_desc *desc) {
  struct tt_text path = {desc->path, desc->path + strlen(desc->path)};
  unsigned index = 0;
  desc->kind = TT_KIND_PATH;
  if (tt_device_is_stateless(desc->path)) return 0;
  if (SC(SYS_ioctl, desc->fd, TIOCGPTN, &index) == 0) {
    struct tt_terminal *t = note_terminal(state, desc);
    if (!t) return -ENOMEM;
    desc->kind = TT_KIND_TERMINAL;
    t->index = (int)index;
    tt_report_fd(state, "terminal", desc->fd,
                 "a new pseudo-terminal: its name may differ, its contents are not kept");
    return 0;
  }
  if (tt_text_skip(&path, "/dev/pts/")) {
    struct tt_desc *master = find_master(state, (int)tt_text_number(&path));
    if (!master) return 0;
    struct tt_terminal *t = note_terminal(state, desc);
    if (!t) return -ENOMEM;
    desc->kind = TT_KIND_TERMINAL;
    t->master = master;
    return 0;
  }
  if (tt_text_skip(&path, "/dev/nvidia")) {
    desc->kind = TT_KIND_DEAD;
    tt_report_fd(state, "cuda", desc->fd, desc->path);
    return 0;
  }
  tt_report_fd(state, "device", desc->fd, desc->path);
  return 0;
}

int tt_terminal_open(struct tt_state *state, struct tt_desc *desc) {
  struct tt_terminal *t = desc->u.terminal;
  int unlock = 0, fd;
  (void)state;
  if (t->master) {
    if (!t->master->done) return -ENOENT;
    return (int)SC(SYS_ioctl, t->master->fd, TIOCGPTPEER, desc->flags | O_NOCTTY | O_CLOEXEC);
  }
  fd = tt_open("/dev/ptmx", desc->flags | O_NOCTTY);
  if (fd < 0) return fd;
  SC(SYS_ioctl, fd, TIOCSPTLCK, &unlock);
  SC(SYS_ioctl, fd, TCSETS, &t->settings);
  SC(SYS_ioctl, fd, TIOCSWINSZ, &t->size);
  /* a slave that was opened and closed: a master without one of ours reads as hung up */
  tt_close((int)SC(SYS_ioctl, fd, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  return fd;
}
