/* hold.h: the pause lasts while another process mounts other filesystems over what we use. */
#ifndef TT_HOLD_H
#define TT_HOLD_H

#include "state.h"

/* In the process that goes on, all other threads still stopped: the exchange over hold_fd, see
 * struct tt_held. closed: the end of a pipe that ends when the frozen process has closed what it
 * does not keep. Never fails and never takes longer than hold_timeout_ms: what goes wrong is
 * reported. */
void tt_hold(struct tt_state *state, int32_t frozen_pid, int closed);

/* Its first packet, for who has something to do until it is answered; tt_hold does not send it again.
 * 0 or -errno. */
int tt_hold_begin(struct tt_state *state, int32_t frozen_pid);

/* Before a move, likewise: wait until the other end says that this process may leave (TT_LEAVE). 0, or
 * -ECANCELED: it is to go on. */
int tt_hold_leave(struct tt_state *state);

/* Open again by its path, at the same number, whatever lies on one of those mounts, and go to the
 * working directory again when that does. What cannot be opened again stays as it is. */
struct tt_reopened tt_reopen(struct tt_state *state, const int32_t *mount_ids, uint32_t count);

#endif
