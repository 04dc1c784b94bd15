/* hot.c: see hot.h. A page that only one process maps has bit 56 set in /proc/PID/pagemap
 * (Documentation/admin-guide/mm/pagemap.rst). A fork makes every page shared, so whatever is not
 * shared was written after it, or its frozen process has un-shared it or is gone: some bytes of each
 * unit are compared with those at the freeze before. A guess that is wrong costs time, or memory,
 * nothing else. */
#include "hot.h"

#include <poll.h>
#include <sys/resource.h>

#include "copies.h"
#include "pagemap.h"
#include "procmap.h"

#define UNIT ((uintptr_t)2 << 20)
#define STEP_UNITS 8 /* 16 MiB between two looks at the socket */
#define HELPER_STACK 16384
#define SAMPLE_WORDS 64
#define MOST_UNITS ((size_t)1 << 16) /* remembered: 128 GiB of memory */

/* Of the live process, and inherited: what each unit looked like at the last freeze, by address. */
struct looks {
  uintptr_t at;
  uint64_t sum;
};

static struct {
  struct looks *last, *now;
  size_t last_count, now_count, next;
} seen;

/* Never unmapped: what is gone after /proc/self/maps was read would be missed in the clone. Pages that
 * are not used take no memory. */
static int begin_looks(void) {
  if (!seen.last) {
    long m = tt_map_memory(2 * MOST_UNITS * sizeof *seen.last);
    if (tt_failed(m)) return (int)m;
    seen.last = (struct looks *)m;
    seen.now = seen.last + MOST_UNITS;
  }
  seen.now_count = seen.next = 0;
  return 0;
}

static void end_looks(void) {
  struct looks *last = seen.last;
  seen.last = seen.now;
  seen.now = last;
  seen.last_count = seen.now_count;
}

static void remember(uintptr_t at, uint64_t sum) {
  if (seen.now_count == MOST_UNITS) return;
  seen.now[seen.now_count].at = at;
  seen.now[seen.now_count++].sum = sum;
}

/* Whether the unit at that address was written since the last freeze. Called in ascending order. */
static int is_written(int memory, uintptr_t at, int exclusive) {
  uint64_t words[SAMPLE_WORDS], sum = 14695981039346656037u; /* FNV-1a, by words */
  while (seen.next < seen.last_count && seen.last[seen.next].at < at) seen.next++;
  const struct looks *known = seen.next < seen.last_count && seen.last[seen.next].at == at
                                  ? &seen.last[seen.next]
                                  : 0;
  if (known && !exclusive) {
    remember(at, known->sum);
    return 0;
  }
  /* not by a load: the memory may be out of bounds for this thread (pkeys(7)) */
  if (SC(SYS_pread64, memory, words, sizeof words, at) != (long)sizeof words) return exclusive;
  for (size_t i = 0; i < SAMPLE_WORDS; i++) sum = (sum ^ words[i]) * 1099511628211u;
  remember(at, sum);
  return exclusive && !(known && known->sum == sum);
}

struct tt_hot { /* a run of units, clipped to its mapping */
  struct tt_hot *next;
  uintptr_t start, end;
};

static int add(struct tt_state *state, uintptr_t start, uintptr_t end) {
  struct tt_hot *h = state->hot;
  state->freeze->hot_bytes += end - start;
  if (h && h->end == start) {
    h->end = end;
    return 0;
  }
  h = tt_alloc(&state->arena, sizeof *h);
  if (!h) return -ENOMEM;
  h->start = start;
  h->end = end;
  h->next = state->hot;
  state->hot = h;
  return 0;
}

static int sample(struct tt_state *state, int pagemap, int memory, uintptr_t start,
                  uintptr_t end) {
  for (uintptr_t at = start; at < end;) {
    uintptr_t next = (at + UNIT) & ~(UNIT - 1);
    uint64_t entry = 0;
    if (next > end) next = end;
    SC(SYS_pread64, pagemap, &entry, sizeof entry, at / tt_page * sizeof entry);
    if (entry & PRESENT && is_written(memory, at, (entry & EXCLUSIVE) != 0)) {
      int error = add(state, at, next);
      if (error) return error;
    }
    at = next;
  }
  return 0;
}

int tt_hot_sample(struct tt_state *state) {
  const uint32_t wanted = TT_WALK_READABLE | TT_WALK_WRITABLE;
  struct tt_walk walk;
  struct tt_maps_line m;
  uint64_t least = state->freeze->hot_min;
  if (!least) return 0;
  if (begin_looks()) return 0;
  int pagemap = tt_open("/proc/self/pagemap", O_RDONLY), error = 0;
  if (pagemap < 0) return 0; /* not there: then nothing is known to be hot */
  int memory = tt_open("/proc/self/mem", O_RDONLY);
  walk.fd = -1;
  if (state->maps_text.size)
    tt_walk_text(&walk, wanted, &state->maps_text);
  else if (tt_walk_ask(&walk, wanted, 0))
    walk.text.at = walk.text.end = 0; /* it was answered a moment ago */
  while (!error && tt_walk_next(&walk, &m) > 0)
    if (!m.shared && !m.ino && m.end - m.start >= least)
      error = sample(state, pagemap, memory, m.start, m.end);
  tt_walk_end(&walk);
  end_looks();
  tt_close(memory);
  tt_close(pagemap);
  return error;
}

/* --- in the frozen process ------------------------------------------------------------------ */

struct unsharing {
  struct tt_state *state;
  uint64_t budget, done;
  uint32_t stop, running; /* atomic */
  int pagemap;
};

/* Returns where it ended: before end, where the budget is spent. */
static uintptr_t touch(struct unsharing *u, uintptr_t start, uintptr_t end) {
  uint64_t entries[512];
  uintptr_t at = start;
  while (at < end && u->done < u->budget) {
    size_t pages = (end - at) / tt_page;
    if (pages > 512) pages = 512;
    long n = SC(SYS_pread64, u->pagemap, entries, pages * 8, at / tt_page * 8);
    if (n <= 0) return end;
    for (size_t i = 0; i < pages && u->done < u->budget; i++, at += tt_page)
      if (entries[i] & PRESENT && !(entries[i] & EXCLUSIVE)) {
        __atomic_fetch_or((char *)at, 0, __ATOMIC_RELAXED);
        u->done += tt_page;
      }
  }
  return at;
}

static void unshare_units(void *arg) {
  struct unsharing *u = arg;
  SC(SYS_setpriority, PRIO_PROCESS, 0, TT_BACKGROUND_NICE);
  struct tt_hot *h;
  while ((h = u->state->hot) && u->done < u->budget && !__atomic_load_n(&u->stop, __ATOMIC_ACQUIRE)) {
    uintptr_t next = h->end - h->start > STEP_UNITS * UNIT ? h->start + STEP_UNITS * UNIT : h->end;
    /* Done once: what a copy of this process has shared since, the live one does not see. */
    h->start = touch(u, h->start, next);
    if (h->start == h->end) u->state->hot = h->next;
  }
  for (;;) SC(SYS_exit, 0);
}

/* A thread, as a process cannot lower its own nice value again. */
uint64_t tt_hot_unshare(struct tt_state *state, uint64_t budget, int listen_fd) {
  struct unsharing u = {state, budget, 0, 0, 0, -1};
  if (!state->hot || !budget) return 0;
  u.pagemap = tt_open("/proc/self/pagemap", O_RDONLY);
  long stack = tt_map_memory(HELPER_STACK);
  if (u.pagemap >= 0 && !tt_failed(stack) &&
      tt_thread_start(unshare_units, &u, (char *)stack + HELPER_STACK, &u.running) == 0)
    while (__atomic_load_n(&u.running, __ATOMIC_ACQUIRE)) {
      struct pollfd someone = {listen_fd, POLLIN, 0};
      struct timespec now = {0, 0}, soon = {0, 2000000};
      if (SC(SYS_ppoll, &someone, 1, &now, 0) > 0) __atomic_store_n(&u.stop, 1, __ATOMIC_RELEASE);
      SC(SYS_futex, &u.running, 0, 1, &soon); /* FUTEX_WAIT: the kernel wakes it as a shared one */
    }
  tt_close(u.pagemap);
  if (!tt_failed(stack)) SC(SYS_munmap, stack, HELPER_STACK);
  return u.done;
}
