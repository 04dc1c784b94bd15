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

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#define UNIT ((uintptr_t)2 << 20)
#define SMALL ((uintptr_t)4096) /* 512 of them are a unit; with other sizes none is copied whole */
#define STEP_UNITS 8            /* 16 MiB between two looks at the socket */
#define WORTH_PAGES 64          /* shared ones: fewer are copied sooner one by one */
#define PAGE_NS 2000            /* that a page takes which is copied alone, until that is known */
#define PASSED_STEPS 4          /* after one whose first unit took longer than that */
#define REFUSALS_MOST 16
#define THP_ENABLED "/sys/kernel/mm/transparent_hugepage/enabled"
#define HELPER_STACK 16384
#define SAMPLE_WORDS 64
#define MOST_UNITS ((size_t)1 << 16) /* remembered: 128 GiB of memory */

/* Of the live process, and inherited: what each unit looked like at the last freeze, by address. */
struct looks {
  uintptr_t at;
  uint64_t sum : 63, written : 1; /* written: between that freeze and the one before */
};

enum { NOT_WRITTEN, WRITTEN, WRITTEN_AGAIN }; /* again: at the last freeze it was written as well */

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

static void remember(uintptr_t at, uint64_t sum, int written) {
  if (seen.now_count == MOST_UNITS) return;
  seen.now[seen.now_count++] = (struct looks){at, sum >> 1, written != NOT_WRITTEN};
}

/* Whether the unit at that address was written since the last freeze, and before it, too. Called in
 * ascending order. */
static int is_written(int memory, uintptr_t at, int exclusive) {
  uint64_t words[SAMPLE_WORDS], sum = 14695981039346656037u; /* FNV-1a, by words */
  while (seen.next < seen.last_count && seen.last[seen.next].at < at) seen.next++;
  const struct looks *known = seen.next < seen.last_count && seen.last[seen.next].at == at
                                  ? &seen.last[seen.next]
                                  : 0;
  if (known && !exclusive) {
    remember(at, (uint64_t)known->sum << 1, NOT_WRITTEN);
    return NOT_WRITTEN;
  }
  /* not by a load: the memory may be out of bounds for this thread (pkeys(7)) */
  if (SC(SYS_pread64, memory, words, sizeof words, at) != (long)sizeof words)
    return exclusive ? WRITTEN : NOT_WRITTEN;
  for (size_t i = 0; i < SAMPLE_WORDS; i++) sum = (sum ^ words[i]) * 1099511628211u;
  int written = NOT_WRITTEN;
  if (exclusive && !(known && known->sum == sum >> 1))
    written = known && known->written ? WRITTEN_AGAIN : WRITTEN;
  remember(at, sum, written);
  return written;
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
    int written = NOT_WRITTEN;
    if (entry & PRESENT) written = is_written(memory, at, (entry & EXCLUSIVE) != 0);
    if (written != NOT_WRITTEN) {
      int error = add(state, at, next);
      if (error) return error;
    }
    if (written == WRITTEN_AGAIN) state->freeze->rewritten_bytes += next - at;
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
  int pagemap, whole, refusals, passed; /* whole: units may be copied whole */
  int hogs; /* whether the threads of the kernel wait for us */
  uint64_t page_ns;
};

/* Whether units may be copied whole, into huge pages. MADV_COLLAPSE does not ask the administrator. */
static int may_copy_whole(void) {
  char text[64];
  int fd = tt_page == SMALL ? tt_open(THP_ENABLED, O_RDONLY) : -1;
  long n = fd < 0 ? fd : tt_retry_read(fd, text, sizeof text);
  tt_close(fd);
  for (long i = 0; i + 7 <= n; i++)
    if (!memcmp(text + i, "[never]", 7)) return 0;
  return n > 0;
}

/* Pages of a unit that are shared; 0 where it is not wholly in memory: no hole is to be filled. */
static size_t shared_pages(const struct unsharing *u, uintptr_t at) {
  uint64_t entries[UNIT / SMALL];
  size_t shared = 0;
  long n = SC(SYS_pread64, u->pagemap, entries, sizeof entries, at / SMALL * sizeof *entries);
  if (n != (long)sizeof entries) return 0;
  for (size_t i = 0; i < UNIT / SMALL; i++) {
    if ((entries[i] & (PRESENT | SWAPPED | OF_FILE)) != PRESENT) return 0;
    shared += !(entries[i] & EXCLUSIVE);
  }
  return shared;
}

/* A write to a page of a shared huge one makes that page ours and has the kernel map the others as
 * small ones; MADV_COLLAPSE then copies all of them into a new huge page, at a sixth of the price of
 * 512 faults. Memory is there at each moment. In one call for neighbours: each makes all processors
 * put their newest pages onto the kernel's lists first. */
static void copy_whole(struct unsharing *u, uintptr_t start, uintptr_t end) {
  for (uintptr_t at = start; u->whole && at + UNIT <= end;) {
    uintptr_t from = at;
    uint64_t bytes = 0;
    for (size_t pages; at + UNIT <= end && (pages = shared_pages(u, at)) >= WORTH_PAGES &&
                       u->done + bytes + pages * SMALL <= u->budget;
         at += UNIT) {
      __atomic_fetch_or((char *)at, 0, __ATOMIC_RELAXED);
      bytes += pages * SMALL;
    }
    if (at == from) {
      at += UNIT;
      continue;
    }
    long r = SC(SYS_madvise, from, at - from, MADV_COLLAPSE);
    if (r) /* what it has left as it was is touched next */
      for (uintptr_t unit = from; unit < at; unit += UNIT) bytes -= shared_pages(u, unit) * SMALL;
    u->done += bytes;
    /* no memory for it; or, with -EINVAL, an older kernel, or MADV_NOHUGEPAGE */
    if (r == -ENOMEM || r == -EINVAL || (r && ++u->refusals == REFUSALS_MOST)) u->whole = 0;
  }
}

/* MADV_COLLAPSE, here and in the live process (huge.c), waits for a thread of the kernel on each
 * processor: under a policy of real time, which the nice value does not touch, that waits for us. */
static void let_others_run(const struct unsharing *u) {
  struct timespec moment = {0, 20000};
  if (u->hogs) SC(SYS_nanosleep, &moment, 0);
}

static int has_real_time(void) {
  long policy = SC(SYS_sched_getscheduler, 0) & ~SCHED_RESET_ON_FORK;
  return policy == SCHED_FIFO || policy == SCHED_RR;
}

/* Pages that are there and shared, one after the other. The kernel writes to all of them in one call,
 * which takes four fifths of what a fault for each does; Linux before 5.14 cannot. */
static void touch_run(struct unsharing *u, uintptr_t start, uintptr_t end) {
  long r = start < end ? SC(SYS_madvise, start, end - start, MADV_POPULATE_WRITE) : 0;
  if (r == -EINVAL)
    for (uintptr_t at = start; at < end; at += tt_page)
      __atomic_fetch_or((char *)at, 0, __ATOMIC_RELAXED);
  if (!r || r == -EINVAL) u->done += end - start;
}

/* Returns where it ended: before end, where the budget is spent. */
static uintptr_t touch(struct unsharing *u, uintptr_t start, uintptr_t end) {
  uint64_t entries[512];
  uintptr_t at = start;
  while (at < end && u->done < u->budget) {
    size_t pages = (end - at) / tt_page;
    if (pages > 512) pages = 512;
    long n = SC(SYS_pread64, u->pagemap, entries, pages * 8, at / tt_page * 8);
    if (n <= 0) return end;
    uintptr_t run = at;
    for (size_t i = 0; i < pages && u->done + (at - run) < u->budget; i++, at += tt_page)
      if (!(entries[i] & PRESENT) || entries[i] & EXCLUSIVE) {
        touch_run(u, run, at);
        run = at + tt_page;
      }
    touch_run(u, run, at);
    let_others_run(u);
  }
  return at;
}

/* Where huge pages are hard to get (memory must be moved for them; or, in a virtual machine, comes from
 * the host only now, where small pages have been in use before) the faults may be the faster way. So
 * one unit tells how the others of a step are done, and for some steps it is not asked again. Returns
 * as touch does. */
static uintptr_t unshare_step(struct unsharing *u, uintptr_t start, uintptr_t end) {
  uintptr_t first = (start + UNIT - 1) & ~(UNIT - 1);
  uint64_t done = u->done, began = tt_now_ns();
  if (u->passed) {
    u->passed--;
  } else if (u->whole) {
    copy_whole(u, first, first + UNIT <= end ? first + UNIT : end);
    if (u->done == done || tt_now_ns() - began <= (u->done - done) / SMALL * u->page_ns)
      copy_whole(u, first + UNIT, end);
    else
      u->passed = PASSED_STEPS;
    done = u->done;
    began = tt_now_ns();
  }
  uintptr_t at = touch(u, start, end);
  uint64_t pages = (u->done - done) / tt_page;
  if (pages >= UNIT / SMALL) u->page_ns = (tt_now_ns() - began) / pages;
  return at;
}

static void unshare_units(void *arg) {
  struct unsharing *u = arg;
  SC(SYS_setpriority, PRIO_PROCESS, 0, TT_BACKGROUND_NICE);
  struct tt_hot *h;
  while ((h = u->state->hot) && u->done < u->budget && !__atomic_load_n(&u->stop, __ATOMIC_ACQUIRE)) {
    uintptr_t next = (h->start + STEP_UNITS * UNIT) & ~(UNIT - 1); /* no unit is in two steps */
    if (next > h->end) next = h->end;
    /* Done once: what a copy of this process has shared since, the live one does not see. */
    h->start = unshare_step(u, h->start, next);
    if (h->start == h->end) u->state->hot = h->next;
  }
  for (;;) SC(SYS_exit, 0);
}

/* A thread, as a process cannot lower its own nice value again. */
uint64_t tt_hot_unshare(struct tt_state *state, uint64_t budget, int listen_fd) {
  struct unsharing u = {state, budget, 0, 0, 0, -1, may_copy_whole(), 0, 0, has_real_time(), PAGE_NS};
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
