/* fds.h: descriptors: recipes at the freeze, descriptors again at the wake.
 *
 * Describing happens in the pause, in the process that goes on, since what is behind a descriptor
 * (an offset, a queue, an epoll set) is shared with it. Each kind has a describe function, which
 * fills desc->u and may report, and a rebuild function, which returns a new descriptor or -errno.
 */
#ifndef TT_FDS_H
#define TT_FDS_H

#include "state.h"

#include <sys/resource.h>

/* Recipes for all descriptors but those that are for this freeze only. 0 or -errno. */
int tt_fds_describe(struct tt_state *state);

/* Give every descriptor back. passed: the new link, out and err, -1 where there is none. No other
 * descriptor may be open but those moved away by tt_fds_park. 0 or -errno: what one descriptor
 * lacks is reported and never fails the whole. */
int tt_fds_rebuild(struct tt_state *state, const int passed[3]);

/* Whom descriptors signal. After the threads were made. */
void tt_fds_owners(struct tt_state *state);

/* Move a descriptor above all numbers that have a recipe. The new number, or -errno. */
int tt_fds_park(struct tt_state *state, int fd);

/* Parked descriptors lie above all others, and none may be opened at a number over the limit: allow
 * more for the moment. before: the limit as it was. */
void tt_fds_raise_limit(struct tt_state *state, struct rlimit *before);

/* Put a parked descriptor at all numbers of desc, and close it. 0 or -errno. */
int tt_fds_install(struct tt_state *state, struct tt_desc *desc, int fd);

/* --- kinds: files and what has a path (fds_files.c) --------------------------------------------
 */
int tt_file_describe(struct tt_state *state, struct tt_desc *desc, const struct stat *st);
int tt_file_open(struct tt_state *state, struct tt_desc *desc);
/* at_once: never wait, as opening a FIFO, a device or a leased file may. */
int tt_path_open(const struct tt_desc *desc, int at_once);
int tt_object_open(struct tt_state *state, struct tt_desc *desc);
int tt_locks_describe(struct tt_state *state, struct tt_desc *desc);
void tt_locks_take(struct tt_state *state);

/* --- pipes and FIFOs (fds_pipes.c) ---------------------------------------------------------- */
int tt_pipe_describe(struct tt_state *state, struct tt_desc *desc);
void tt_pipes_finish(struct tt_state *state); /* once all descriptors are known */
int tt_pipe_open(struct tt_state *state, struct tt_desc *desc);
int tt_pipe_is_known(const struct tt_desc *desc); /* both ends are ours, all contents copied */
int tt_ended_open(struct tt_state *state, struct tt_desc *desc);
void tt_pipes_close(struct tt_state *state);

/* --- sockets (fds_sockets.c) ------------------------------------------------------------------ */
int tt_socket_describe(struct tt_state *state, struct tt_desc *desc);
int tt_sockets_finish(struct tt_state *state);
int tt_socket_open(struct tt_state *state, struct tt_desc *desc);

/* --- their options (fds_options.c), and datagrams that wait (fds_letters.c) ------------------- */
int tt_options_describe(struct tt_state *state, const struct tt_desc *desc);
void tt_options_set(struct tt_state *state, const struct tt_desc *desc, int fd);
/* Datagrams go to a name: that can be given again. */
int tt_is_aimed(const struct tt_socket *s);
int tt_has_letters(const struct tt_socket *s);
int tt_letters_describe(struct tt_state *state, struct tt_desc *desc);
void tt_letters_send(struct tt_state *state); /* once all sockets are there */

/* --- what is counted and waited for (fds_events.c) -------------------------------------------- */
int tt_anon_describe(struct tt_state *state, struct tt_desc *desc);
int tt_event_open(struct tt_state *state, struct tt_desc *desc);
/* again: in the live process, what was opened again only. */
void tt_epolls_fill(struct tt_state *state, int again);

/* --- terminals (fds_terminals.c) ------------------------------------------------------------- */
int tt_terminal_describe(struct tt_state *state, struct tt_desc *desc);
int tt_device_is_stateless(const char *path);
int tt_terminal_open(struct tt_state *state, struct tt_desc *desc);

#endif
