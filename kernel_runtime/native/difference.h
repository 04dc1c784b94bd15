/* difference.h: a freeze that notes what was written since an earlier one, its base, in place of a
 * clone. The base's frozen process makes the frozen process of it when that is needed.
 *
 * A clone write-protects all private memory, and each page that is written afterwards is a fault and
 * a copy. A difference leaves the pages of the live process alone: those that it shares with nobody
 * are what it has written since the base was cloned. docs/native.md has why that holds, and when not. */
#ifndef TT_DIFFERENCE_H
#define TT_DIFFERENCE_H

#include "state.h"

/* Before the stop: what both sides need later is mapped, once. 0 or -errno. */
int tt_difference_prepare(void);

/* In the live process, after a clone and before its threads go on: that one is the base from now on.
 * With 0, and after any other clone, there is none. */
void tt_base_made(struct tt_state *state, int32_t pid);

/* In place of the clone. Bytes that were written to difference_fd; 0 where it has to be a clone;
 * -errno when it is too late for one. Whoever holds the process is told while it is written. In the
 * frozen process that is made of it *listen_fd is what that is to serve; else it stays. */
int64_t tt_difference_write(struct tt_state *state, int *listen_fd);

struct tt_difference_order {
  int fd, listen_fd;
  uint64_t at;      /* where in the file it begins */
  int connection;   /* who asked, and is answered */
  uint64_t started; /* tt_now_ns() at the request */
};

/* In a clone of the base: turn into the frozen process that such a file describes, which serves
 * listen_fd, and answer. */
__attribute__((noreturn)) void tt_difference_take(const struct tt_state *state,
                                                  const struct tt_difference_order *order);

#endif
