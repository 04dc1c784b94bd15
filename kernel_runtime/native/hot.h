/* hot.h: memory that is likely to be rewritten soon: found at the freeze, made its own by the
 * frozen process, so that the live one does not pay for it. */
#ifndef TT_HOT_H
#define TT_HOT_H

#include "state.h"

/* Sample mappings of at least hot_min bytes: which 2 MiB units were written since the last fork. */
int tt_hot_sample(struct tt_state *state);

/* Write to the pages of these units, up to budget bytes, in a thread at a low priority, until
 * somebody connects to listen_fd. Returns the bytes that were made our own. */
uint64_t tt_hot_unshare(struct tt_state *state, uint64_t budget, int listen_fd);

#endif
