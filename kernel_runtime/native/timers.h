/* timers.h: POSIX timers (timer_create(2)). */
#ifndef TT_TIMERS_H
#define TT_TIMERS_H

#include "state.h"

/* 0 or -errno; a kernel that does not list timers has none for us. */
int tt_timers_describe(struct tt_state *state);

/* After the threads: a timer may signal one of them. */
void tt_timers_make(struct tt_state *state);

#endif
