/* process.h: what a process is besides memory, descriptors and threads. */
#ifndef TT_PROCESS_H
#define TT_PROCESS_H

#include "state.h"

/* Note directory, timers, signals and the rest; report child processes and locked memory. */
int tt_process_describe(struct tt_state *state);

/* In the frozen process: be in nobody's way. Closes all descriptors but keep. */
void tt_process_freeze(struct tt_state *state, int keep);

/* Note its place in line when memory runs out; and its name and place from now on. */
void tt_process_note_score(struct tt_state *state);
void tt_process_dim(void);

/* In the woken process. start: before the descriptors; finish: when the threads are made. */
int tt_process_start(struct tt_state *state);
void tt_process_finish(struct tt_state *state);

#endif
