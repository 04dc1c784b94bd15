/* frozen.h: the life of a frozen process. */
#ifndef TT_FROZEN_H
#define TT_FROZEN_H

#include "state.h"

/* Never returns in the frozen process. Returns k >= 1 in a process woken from it. */
int tt_frozen(struct tt_state *state, int listen_fd);

/* Likewise in a clone of another frozen process that has taken over this state: it has given up
 * already what a frozen process gives up. */
int tt_frozen_again(struct tt_state *state, int listen_fd);

#endif
