/* mutexes.c: see mutexes.h. */
#include "mutexes.h"

#include "memory.h"

enum kind { KIND_RECURSIVE = 1, KIND_ERRORCHECK = 2 }; /* PTHREAD_MUTEX_*_NP */

#define MOST_USERS 4096
#define MOST_ZEROED ((uintptr_t)4 << 20) /* bytes of a library */

/* The first members of pthread_mutex_t (glibc, sysdeps/nptl/bits/struct_mutex.h, the same on both
 * machines): a locked one with such a kind and the id of one of our threads is unlikely to be
 * anything else. */
struct mutex {
  uint32_t lock; /* 1: locked, 2: and waited for */
  uint32_t count;
  int32_t owner;
  uint32_t users;
  int32_t kind;
};

static int32_t new_id(const struct tt_state *state, int32_t id) {
  if (id == state->leader.tid) return (int32_t)SC(SYS_gettid);
  for (struct tt_slot *s = state->stopped.first; s; s = s->next)
    if (s->thread.tid == id) return s->woken_tid;
  return 0;
}

static void reown(const struct tt_state *state, uintptr_t start, uintptr_t end) {
  for (uintptr_t at = start; at + sizeof(struct mutex) <= end; at += 8) {
    struct mutex *m = (struct mutex *)at;
    if (m->lock - 1 > 1 || (m->kind != KIND_RECURSIVE && m->kind != KIND_ERRORCHECK)) continue;
    if (!m->users || m->users > MOST_USERS || m->owner <= 0) continue;
    int32_t id = new_id(state, m->owner);
    if (id) m->owner = id;
  }
}

void tt_mutexes_reown(struct tt_state *state) {
  struct tt_text text = {state->maps_text.data, state->maps_text.data + state->maps_text.size};
  struct tt_maps_line m;
  uint64_t library = 0;   /* the file whose code was seen last: its data follows */
  uintptr_t data_end = 0; /* zeroed data has no file and lies right behind, or other memory does */
  while (tt_maps_next(&text, &m)) {
    if (m.prot & PROT_EXEC) library = m.ino;
    int behind = !m.ino && m.start == data_end && m.path.at == m.path.end;
    if (behind && m.end - m.start > MOST_ZEROED) m.end = m.start + MOST_ZEROED;
    int wanted =
        !m.shared && m.prot == (PROT_READ | PROT_WRITE) && (behind || (m.ino && m.ino == library));
    if (wanted) reown(state, m.start, m.end);
    data_end = wanted && !behind ? m.end : 0;
  }
}
