/* parked.h: a clone of a frozen process that another program writes down and puts back (CRIU).
 *
 * TT_PARK makes it. It turns what it has mapped from files, but for libraries, into memory of its own,
 * says over the socket that it was given which process it is and which name it will look for, closes
 * that socket, and waits for a signal with no descriptor open. Whoever has put it back listens at that name (unix(7),
 * abstract), sends TT_PARK_SIGNAL, and passes the socket that it shall serve. */
#ifndef TT_PARKED_H
#define TT_PARKED_H

#include "state.h"

#define TT_PARK_SIGNAL SIGUSR1
#define TT_PARK_NAME 40

/* The clone's first word, over the socket that came with the request. */
struct tt_parked {
  int32_t error; /* 0 or an errno: then there is no clone any more */
  int32_t pid;
  uint32_t flags; /* enum tt_loaded_flags: what it could not set */
  uint32_t reserved;
  uint64_t highest_id; /* of the process, its threads and the clone */
  uint64_t copied;     /* bytes of mapped files that are memory now */
  char name[TT_PARK_NAME]; /* without the zero byte in front; ends with one */
};

/* What it is told when it was put back, with the listening socket; it answers with a tt_parked. */
struct tt_unpark {
  uint32_t size;
  int32_t supervisor_pid; /* as in struct tt_freeze */
};

/* In the clone. Returns only in a process that was put back: with the socket that it serves. */
int tt_park(struct tt_state *state, int fd);

#endif
