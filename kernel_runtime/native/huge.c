/* huge.c: huge pages that a fork has broken up, made whole again.
 *
 * Who writes to a huge page that a fork shares gets a small page of his own, and the other 511 stay
 * as small: an array that is rewritten right after a checkpoint has lost its huge pages for good, and
 * every later checkpoint costs 512 times the faults. MADV_COLLAPSE (madvise(2), Linux 6.1) copies
 * them together again. Only units of 2 MiB are taken that are wholly in memory and ours alone, so
 * that no memory is used that was not before: what a frozen process shares is not un-shared here.
 *
 * Which pages are small is asked by PAGEMAP_SCAN (Linux 6.7), which are shared is read from pagemap
 * (bit 56, Documentation/admin-guide/mm/pagemap.rst). */
#include "pagemap.h"
#include "procmap.h"
#include "sys.h"
#include "timetravel.h"

#include <poll.h>
#include <sys/auxv.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#define UNIT ((uintptr_t)2 << 20)
#define SMALL ((uintptr_t)4096) /* 512 of them are a unit; with other sizes nothing is done */
#define WINDOW (32 * UNIT)      /* that are looked at in one call: 16,384 small pages */
#define REFUSALS_MOST 16

struct work {
  int pagemap, watched, refusals;
  uint64_t until_ns;
  uint32_t *made;
};

static int is_whole_and_ours(const struct work *w, uintptr_t at) {
  uint64_t entries[UNIT / SMALL];
  long n = SC(SYS_pread64, w->pagemap, entries, sizeof entries, at / SMALL * sizeof *entries);
  if (n != (long)sizeof entries) return 0;
  for (size_t i = 0; i < UNIT / SMALL; i++)
    if ((entries[i] & (PRESENT | SWAPPED | OF_FILE | EXCLUSIVE)) != (PRESENT | EXCLUSIVE)) return 0;
  return 1;
}

static int is_wanted_elsewhere(const struct work *w) {
  struct pollfd someone = {w->watched, POLLIN, 0};
  struct timespec now = {0, 0};
  return tt_now_ns() >= w->until_ns ||
         (w->watched >= 0 && SC(SYS_ppoll, &someone, 1, &now, 0) > 0);
}

static uintptr_t up(uintptr_t at) { return (at + UNIT - 1) & ~(UNIT - 1); }

/* Goes on at *at. 1 if there is more to do, 0 at the end of the mapping, -errno: no more of this. */
static int regain_in(struct work *w, uintptr_t end, uint64_t *at) {
  while (*at + UNIT <= end) {
    uintptr_t window = end - *at > WINDOW ? *at + WINDOW : end;
    struct tt_part small;
    if (is_wanted_elsewhere(w)) return 1;
    long r = tt_scan(w->pagemap, *at, window, TT_PAGE_PRESENT, TT_PAGE_HUGE, 0, &small);
    if (r < 0) return (int)r;
    if (!r) {
      *at = window;
      continue;
    }
    for (*at = up(small.start); *at + UNIT <= small.end; *at += UNIT) {
      if (is_wanted_elsewhere(w)) return 1;
      if (!is_whole_and_ours(w, *at)) continue;
      r = SC(SYS_madvise, *at, UNIT, MADV_COLLAPSE);
      if (!r) ++*w->made;
      if (r == -EINVAL) return 0; /* not for this mapping: MADV_NOHUGEPAGE */
      if (r == -ENOMEM || (r && ++w->refusals == REFUSALS_MOST)) return (int)r;
    }
    if (*at < small.end) *at = up(small.end); /* a rest that is no whole unit */
  }
  return 0;
}

int tt_huge_regain(uint64_t least, uint64_t *at, uint64_t until_ns, int watched_fd, uint32_t *made) {
  struct work w = {-1, watched_fd, 0, until_ns, made};
  struct tt_walk walk;
  struct tt_maps_line m;
  *made = 0;
  if (getauxval(AT_PAGESZ) != SMALL) return -ENOTSUP;
  int error = tt_walk_ask(&walk, TT_WALK_READABLE | TT_WALK_WRITABLE, 0);
  if (error) return error;
  w.pagemap = tt_open("/proc/self/pagemap", O_RDONLY);
  error = w.pagemap < 0 ? w.pagemap : 0;
  walk.at = *at;
  while (!error && tt_walk_next(&walk, &m) > 0) {
    uintptr_t from = m.start > *at ? m.start : *at;
    if (m.shared || m.ino || m.end - m.start < least) continue;
    *at = up(from);
    error = regain_in(&w, m.end, at);
  }
  tt_walk_end(&walk);
  tt_close(w.pagemap);
  return error;
}
