/* arena.h: memory of one freeze. Mapped from the kernel, so it can grow while other threads may own
 * the lock of malloc, and is copied with the process. Freed all at once. */
#ifndef TT_ARENA_H
#define TT_ARENA_H

#include "sys.h"

struct tt_chunk;

struct tt_arena {
  struct tt_chunk *chunks; /* newest first; only the newest has room */
};

/* size bytes, zeroed, aligned to 16; NULL when the kernel gives no more. */
void *tt_alloc(struct tt_arena *arena, size_t size);

/* A copy of n bytes with a zero byte behind; NULL as above. */
char *tt_copy_text(struct tt_arena *arena, const char *text, size_t n);

/* Unmap everything. What was allocated is gone. */
void tt_arena_free(struct tt_arena *arena);

/* Arenas and buffers take their memory from one place that is mapped once, as long as there is room, so
 * that a freeze leaves the mappings of a process as they are. Emptied when none of them is used any
 * more; shared: another process has its pages too, as a clone. */
void tt_pool_prepare(void);
void tt_pool_empty(int shared);

/* A buffer that keeps what it has when it grows. */
struct tt_buffer {
  char *data;
  size_t size, capacity;
};

/* Make room for at least capacity bytes. 0 or -ENOMEM. */
int tt_buffer_reserve(struct tt_buffer *buffer, size_t capacity);
void tt_buffer_free(struct tt_buffer *buffer);

#endif
