/* fds.h: descriptors: recipes at the freeze, descriptors again at the wake.
 *
 * Describing happens in the pause, in the process that goes on, since what is behind a descriptor
 * (an offset, a queue, an epoll set) is shared with it. Each kind has a describe function, which
 * fills desc->u and may report, and a rebuild function, which returns a new descriptor or -errno.
 */
#ifndef TT_FDS_H
#define TT_FDS_H

#include "state.h"

/* Recipes for all descriptors but skip. 0 or -errno. */
int tt_fds_describe(struct tt_state *state, int skip);

/* Give every descriptor back. passed: the new link, out and err, -1 where there is none. No other
 * descriptor may be open but those moved away by tt_fds_park. 0 or -errno: what one descriptor
 * lacks is reported and never fails the whole. */
int tt_fds_rebuild(struct tt_state *state, const int passed[3]);

/* Move a descriptor above all numbers that have a recipe. The new number, or -errno. */
int tt_fds_park(struct tt_state *state, int fd);

/* Put a parked descriptor at all numbers of desc, and close it. 0 or -errno. */
int tt_fds_install(struct tt_state *state, struct tt_desc *desc, int fd);

/* --- kinds: files and what has a path (fds_files.c) --------------------------------------------
 */
int tt_file_describe(struct tt_state *state, struct tt_desc *desc, const struct stat *st);
int tt_file_open(struct tt_state *state, struct tt_desc *desc);
int tt_object_open(struct tt_state *state, struct tt_desc *desc);
int tt_locks_describe(struct tt_state *state, struct tt_desc *desc);
void tt_locks_take(struct tt_state *state);

/* --- pipes and FIFOs (fds_pipes.c) ---------------------------------------------------------- */
int tt_pipe_describe(struct tt_state *state, struct tt_desc *desc);
void tt_pipes_finish(struct tt_state *state); /* once all descriptors are known */
int tt_pipe_open(struct tt_state *state, struct tt_desc *desc);
int tt_ended_open(struct tt_state *state, struct tt_desc *desc);
void tt_pipes_close(struct tt_state *state);

/* --- sockets (fds_sockets.c) ------------------------------------------------------------------ */
int tt_socket_describe(struct tt_state *state, struct tt_desc *desc);
int tt_sockets_finish(struct tt_state *state);
int tt_socket_open(struct tt_state *state, struct tt_desc *desc);

/* --- what is counted and waited for (fds_events.c) -------------------------------------------- */
int tt_anon_describe(struct tt_state *state, struct tt_desc *desc);
int tt_event_open(struct tt_state *state, struct tt_desc *desc);
void tt_epolls_fill(struct tt_state *state);

/* --- terminals (fds_terminals.c) ------------------------------------------------------------- */
int tt_terminal_describe(struct tt_state *state, struct tt_desc *desc);
int tt_terminal_open(struct tt_state *state, struct tt_desc *desc);

#endif
