/* threads.h: make processes and threads anew: with their old ids where the kernel lets us, thread
 * pointer, clear-tid address, robust list, rseq, name, scheduling, and their saved context. */
#ifndef TT_THREADS_H
#define TT_THREADS_H

#include "arena.h"
#include "stop.h"

struct tt_sched { /* struct sched_attr in its first size; sched_setattr(2) */
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime, deadline, period;
};

/* Which ids a waking may and must give back, and whether it did. */
struct tt_ids {
  int32_t want;      /* try the old ones */
  int32_t insist;    /* fail rather than take new ones */
  int32_t kept;      /* all that were made so far are the old ones */
  uint64_t until_ns; /* an id that is taken is tried again until then */
};

/* Note how the stopped threads are scheduled, where that is not as for the calling one. */
int tt_threads_describe(struct tt_arena *arena, struct tt_stopped *stopped);

/* A process like the calling one: a sibling of it, with a copy of its memory. leader: whose ids it
 * takes, or NULL for a new id that nothing in memory knows of. As fork: 0 in the new one, its pid
 * in the old one, or -errno. */
long tt_clone_copy(const struct tt_thread *leader, struct tt_ids *ids);

/* The same, but the new process takes over the memory, and the calling one ends. Returns only 0, in
 * the new one, or -errno when there is none. Before, the calling one must have given up its
 * clear-tid address, robust list and rseq area: see tt_disarm. */
long tt_clone_takeover(const struct tt_thread *leader, struct tt_ids *ids);

/* Make the threads anew. On success they wait for tt_threads_go; else 0 threads run user code and
 * the caller must end the process. */
int tt_threads_make(struct tt_stopped *stopped, struct tt_ids *ids);
void tt_threads_go(void);

/* A helper thread with a stack of its own. *running is 1 until it has ended (a futex). */
int tt_thread_start(void (*fn)(void *), void *arg, void *stack_end, uint32_t *running);

#endif
