/* arena.c: see arena.h. */
#include "arena.h"

#define CHUNK_SIZE ((size_t)256 << 10)

struct tt_chunk {
  struct tt_chunk *older;
  size_t size, used;
  char pad[8];
};

void *tt_alloc(struct tt_arena *arena, size_t size) {
  struct tt_chunk *c = arena->chunks;
  size = (size + 15) & ~(size_t)15;
  if (!c || c->size - c->used < size) {
    size_t whole = (size + sizeof *c + CHUNK_SIZE - 1) / CHUNK_SIZE * CHUNK_SIZE;
    long m = whole < size ? -ENOMEM : tt_map_memory(whole);
    if (tt_failed(m)) return 0;
    c = (struct tt_chunk *)m;
    c->size = whole;
    c->used = sizeof *c;
    c->older = arena->chunks;
    arena->chunks = c;
  }
  void *p = (char *)c + c->used;
  c->used += size;
  return p;
}

char *tt_copy_text(struct tt_arena *arena, const char *text, size_t n) {
  char *copy = tt_alloc(arena, n + 1);
  if (copy) memcpy(copy, text, n);
  return copy;
}

void tt_arena_free(struct tt_arena *arena) {
  struct tt_chunk *c = arena->chunks;
  arena->chunks = 0;
  while (c) {
    struct tt_chunk *older = c->older;
    SC(SYS_munmap, c, c->size);
    c = older;
  }
}

int tt_buffer_reserve(struct tt_buffer *buffer, size_t capacity) {
  if (capacity <= buffer->capacity) return 0;
  size_t size = buffer->capacity ? buffer->capacity : 4096;
  while (size < capacity) size *= 2;
  long m = buffer->data ? SC(SYS_mremap, buffer->data, buffer->capacity, size, MREMAP_MAYMOVE)
                        : tt_map_memory(size);
  if (tt_failed(m)) return -ENOMEM;
  buffer->data = (char *)m;
  buffer->capacity = size;
  return 0;
}

void tt_buffer_free(struct tt_buffer *buffer) {
  if (buffer->data) SC(SYS_munmap, buffer->data, buffer->capacity);
  buffer->data = 0;
  buffer->size = buffer->capacity = 0;
}
