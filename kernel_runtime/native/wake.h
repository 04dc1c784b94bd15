/* wake.h: what a woken process does before user code goes on in it. */
#ifndef TT_WAKE_H
#define TT_WAKE_H

#include "state.h"

struct tt_waking {
  int connection;   /* who asked, and is answered */
  int passed[3];    /* the new link, out, err; -1: none */
  uint64_t started; /* tt_now_ns() at the request */
  int copy;         /* TT_WAKE_COPY */
  struct tt_ids ids;
};

/* Rebuild everything and answer. Returns k; on failure it answers and the process ends. */
int tt_wake(struct tt_state *state, struct tt_waking *waking, int listen_fd);

/* Send an answer; a peer that is gone is ignored. */
void tt_answer(int connection, int error, int32_t pid, uint64_t started, uint64_t bytes);

/* Free the state: after that only the process is left. shared: see tt_pool_empty. */
void tt_state_free(struct tt_state *state, int shared);

#endif
