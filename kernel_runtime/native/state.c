/* state.c: see state.h. */
#include "state.h"

size_t tt_page = 4096;

int tt_slurp(struct tt_state *state, const char *path) {
  struct tt_buffer *b = &state->text;
  int fd = tt_open(path, O_RDONLY);
  if (fd < 0) return fd;
  b->size = 0;
  long n;
  do {
    n = b->capacity - b->size < 4096 ? tt_buffer_reserve(b, b->size + 16384) : 0;
    if (n == 0) n = tt_retry_read(fd, b->data + b->size, b->capacity - b->size);
    if (n > 0) b->size += (size_t)n;
  } while (n > 0);
  tt_close(fd);
  return (int)n;
}

struct tt_text tt_slurped(const struct tt_state *state) {
  struct tt_text text = {state->text.data, state->text.data + state->text.size};
  return text;
}

void tt_report_fd(struct tt_state *state, const char *kind, int fd, const char *detail) {
  char subject[32];
  tt_text_path(subject, "fd ", (uint64_t)fd, "");
  tt_report(&state->report, kind, subject, detail);
}

char *tt_extent_add(struct tt_state *state, struct tt_extents *to, uint64_t offset, uint64_t size) {
  if (size > state->aside_left) return 0;
  struct tt_extent *e = tt_alloc(&state->arena, sizeof *e);
  char *data = e ? tt_alloc(&state->arena, size) : 0;
  if (!data) return 0;
  e->offset = offset;
  e->size = size;
  e->data = data;
  if (!to->first) to->end = &to->first;
  *to->end = e;
  to->end = &e->next;
  state->aside_left -= size;
  state->aside_bytes += size;
  return data;
}

static const struct tt_slot *find_thread(const struct tt_state *state, int32_t tid) {
  const struct tt_slot *s = state->stopped.first;
  while (s && s->tid != tid) s = s->next;
  return s;
}

int tt_is_thread(const struct tt_state *state, int32_t tid) {
  return tid == state->leader.tid || find_thread(state, tid);
}

int32_t tt_woken_tid(const struct tt_state *state, int32_t tid) {
  if (tid == state->leader.tid) return (int32_t)SC(SYS_gettid);
  const struct tt_slot *s = find_thread(state, tid);
  return s ? s->woken_tid : 0;
}
