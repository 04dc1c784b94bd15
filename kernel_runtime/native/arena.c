/* arena.c: see arena.h. */
#include "arena.h"

#define CHUNK_SIZE ((size_t)256 << 10)

#define POOL_SIZE ((size_t)32 << 20)
#define KEPT_SIZE ((size_t)1 << 20)

static struct {
  char *start, *at;
} pool;

void tt_pool_prepare(void) {
  if (pool.start) return;
  long m = SC(SYS_mmap, 0, POOL_SIZE, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (tt_failed(m)) return;
  SC(SYS_madvise, m, POOL_SIZE, MADV_NOHUGEPAGE); /* nor does it merge with its neighbours */
  pool.start = pool.at = (char *)m;
}

void tt_pool_empty(int shared) {
  size_t used = (size_t)(pool.at - pool.start);
  if (!used) return;
  /* cheaper than a fault for each page, but for pages that would be copied first */
  size_t kept = shared ? 0 : used < KEPT_SIZE ? used : KEPT_SIZE;
  memset(pool.start, 0, kept);
  if (used > kept) SC(SYS_madvise, pool.start + kept, POOL_SIZE - kept, MADV_DONTNEED);
  pool.at = pool.start;
}

/* Zeroed memory in whole pages; an error of mmap(2) without any. */
static long take(size_t size) {
  size = tt_whole_pages(size);
  if (!pool.start || size > POOL_SIZE - (size_t)(pool.at - pool.start)) return tt_map_memory(size);
  long taken = (long)pool.at;
  pool.at += size;
  return taken;
}

static void give_back(void *memory, size_t size) {
  const char *m = memory;
  if (pool.start && m >= pool.start && m < pool.start + POOL_SIZE) return;
  SC(SYS_munmap, memory, tt_whole_pages(size));
}

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
    long m = whole < size ? -ENOMEM : take(whole);
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
    give_back(c, c->size);
    c = older;
  }
}

int tt_buffer_reserve(struct tt_buffer *buffer, size_t capacity) {
  if (capacity <= buffer->capacity) return 0;
  size_t size = buffer->capacity ? buffer->capacity : 4096;
  while (size < capacity) size *= 2;
  long m = take(size);
  if (tt_failed(m)) return -ENOMEM;
  if (buffer->data) {
    memcpy((char *)m, buffer->data, buffer->capacity);
    give_back(buffer->data, buffer->capacity);
  }
  buffer->data = (char *)m;
  buffer->capacity = size;
  return 0;
}

void tt_buffer_free(struct tt_buffer *buffer) {
  if (buffer->data) give_back(buffer->data, buffer->capacity);
  buffer->data = 0;
  buffer->size = buffer->capacity = 0;
}
