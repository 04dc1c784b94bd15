/* difference_look.c: what was written since the base, and whether everything else is as it was there.
 * Pages: /proc/PID/pagemap bit 56, "exclusively mapped", and PAGEMAP_SCAN
 * (Documentation/admin-guide/mm/pagemap.rst). */
#include "difference_parts.h"

#include <linux/keyctl.h>
#include <sys/resource.h>

#include "procmap.h"

#if TT_THREADS

#define UNIT ((uintptr_t)2 << 20) /* of a huge page; others are not told as one */

struct tt_scratch *tt_scratch;

static char *witness;
static uint64_t guard; /* TT_PAGE_GUARD, where the kernel knows of it */
static struct tt_kept kept;

static struct {
  int32_t pid; /* 0: none */
  uint64_t mappings, guards, surroundings;
  int relocated_known;
  struct tt_kept kept;
} base;

/* --- preparing -------------------------------------------------------------------------------- */

/* A page above all others. A process that ends gives its memory back from the lowest address to the
 * highest: as long as it shares any other page with us, it shares this one. */
static int find_witness(void) {
  static const int bits[] = {48, 47, 39};
  char here;
  for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) {
    uintptr_t at = ((uintptr_t)1 << bits[i]) - 4 * tt_page;
    if (at < (uintptr_t)&here) break;
    long m = SC(SYS_mmap, at, tt_page, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (m == (long)at) {
      witness = (char *)m;
      return 0;
    }
    if (!tt_failed(m)) SC(SYS_munmap, m, tt_page); /* Linux before 4.17 takes it for a hint */
  }
  return -ENOMEM;
}

/* Linux 6.15 */
static void ask_for_guards(void) {
  const struct tt_wanted wanted = {0, TT_PAGE_GUARD, TT_PAGE_GUARD};
  uintptr_t at = (uintptr_t)witness;
  int pagemap = tt_open("/proc/self/pagemap", O_RDONLY);
  long n = tt_scan_kinds(pagemap, &at, at + tt_page, &wanted, tt_scratch->parts, 1);
  tt_close(pagemap);
  guard = n < 0 ? 0 : TT_PAGE_GUARD;
}

int tt_difference_prepare(void) {
  if (!tt_scratch) {
    long m = tt_map_memory(tt_scratch_size());
    if (tt_failed(m)) return (int)m;
    SC(SYS_madvise, m, tt_scratch_size(), MADV_NOHUGEPAGE); /* nor does it merge with its neighbours */
    tt_scratch = (struct tt_scratch *)m;
  }
  if (witness) return 0;
  int error = find_witness();
  if (!error) ask_for_guards();
  return error;
}

/* --- what must be as it was at the base ------------------------------------------------------- */

static uint64_t mix(uint64_t sum, uint64_t value) { /* FNV-1a, by words */
  sum = (sum ^ value) * 1099511628211u;
  return sum ^ sum >> 29;
}

/* Namespaces and the root directory, which a clone has from the one it is cloned from. */
static uint64_t look_at_surroundings(void) {
  static const char *const all[] = {
      "/",
      "/proc/self/ns/cgroup",
      "/proc/self/ns/ipc",
      "/proc/self/ns/mnt",
      "/proc/self/ns/net",
      "/proc/self/ns/pid_for_children",
      "/proc/self/ns/time_for_children",
      "/proc/self/ns/user",
      "/proc/self/ns/uts",
  };
  uint64_t sum = (uint64_t)SC(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0);
  struct stat st;
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (SC(SYS_newfstatat, AT_FDCWD, all[i], &st, 0) == 0) sum = mix(mix(sum, st.st_ino), st.st_dev);
  return sum;
}

/* Pages that the kernel has merged are shared, and were written all the same (Documentation/admin-guide/mm/ksm.rst). */
static int is_merged(void) {
  char text[24];
  int fd = tt_open("/proc/self/ksm_merging_pages", O_RDONLY);
  long n = fd < 0 ? 0 : tt_retry_read(fd, text, sizeof text);
  struct tt_text number = {text, text + (n > 0 ? n : 0)};
  tt_close(fd);
  return tt_text_number(&number) != 0;
}

/* --- looking at memory ------------------------------------------------------------------------ */

struct look {
  int pagemap, pages; /* pages: not only what has to be as it was */
  uint64_t sum;       /* of guard pages (MADV_GUARD_INSTALL), which are no mappings of their own */
  uint64_t bytes, most; /* of pages that only we have */
  size_t found, relocated; /* private pages; next in that list */
};

static int add(struct tt_runs *to, uintptr_t start, uintptr_t end) {
  if (to->count && to->run[to->count - 1].end > start) return -EIO; /* whoever reads it relies on the order */
  if (to->count && to->run[to->count - 1].end == start) {
    to->run[to->count - 1].end = end;
    return 0;
  }
  if (to->count == TT_MOST_RUNS) return -EFBIG;
  to->run[to->count].start = start;
  to->run[to->count++].end = end;
  return 0;
}

static int add_page(struct look *look, uint64_t entry, uintptr_t start, uintptr_t end) {
  if (entry & SWAPPED) return -EAGAIN; /* not told whose */
  if (entry & OF_FILE || !(entry & PRESENT)) return 0;
  look->found++;
  int error = add(&tt_scratch->present, start, end);
  if (error || !(entry & EXCLUSIVE)) return error;
  look->bytes += end - start;
  return look->bytes > look->most ? -EFBIG : add(&tt_scratch->copied, start, end);
}

/* Pages of one kind. */
static int look_at_part(struct look *look, const struct tt_part *part) {
  const int huge = (part->categories & TT_PAGE_HUGE) != 0; /* one entry tells of all */
  int error = 0;
  for (uintptr_t at = part->start; at < part->end && !error;) {
    size_t count = huge ? 1 : (part->end - at) / tt_page;
    if (count > TT_ENTRIES) count = TT_ENTRIES;
    long n = SC(SYS_pread64, look->pagemap, tt_scratch->entries, count * 8, at / tt_page * 8);
    if (n != (long)count * 8) return n < 0 ? (int)n : -EIO;
    for (size_t i = 0; i < count && !error; i++) {
      uintptr_t end = huge ? (at & ~(UNIT - 1)) + UNIT : at + tt_page;
      if (end > part->end) end = part->end;
      error = add_page(look, tt_scratch->entries[i], at, end);
      at = end;
    }
  }
  return error;
}

/* none_of: kinds of pages that do not count. */
static int look_at_range(struct look *look, uintptr_t at, uintptr_t end, uint64_t none_of) {
  const uint64_t any_of = (look->pages ? TT_ANY_PAGE : 0) | guard;
  const struct tt_wanted wanted = {none_of, any_of, any_of | TT_PAGE_HUGE | TT_PAGE_ZERO};
  while (any_of && at < end) {
    long n = tt_scan_kinds(look->pagemap, &at, end, &wanted, tt_scratch->parts, TT_PARTS);
    if (n < 0) return (int)n;
    for (long i = 0; i < n; i++) {
      const struct tt_part *part = &tt_scratch->parts[i];
      int error = 0;
      if (part->categories & TT_PAGE_GUARD)
        look->sum = mix(mix(look->sum, part->start), part->end);
      else if (part->categories & TT_PAGE_SWAPPED)
        error = -EAGAIN;
      else if (!(part->categories & TT_PAGE_ZERO))
        error = look_at_part(look, part);
      if (error) return error;
    }
  }
  return 0;
}

/* Code and constants of programs and libraries: most of all mappings, and nearly all of it is in pages
 * of files, which nobody writes to. Where private pages were at the first difference from this base,
 * there is looked each time; elsewhere not again. */
static int look_at_constant(struct look *look, uintptr_t start, uintptr_t end) {
  const size_t before = look->found;
  if (base.relocated_known) {
    while (look->relocated < tt_scratch->relocated_count &&
           tt_scratch->relocated[look->relocated] < start)
      look->relocated++;
    if (look->relocated == tt_scratch->relocated_count ||
        tt_scratch->relocated[look->relocated] != start)
      return 0;
  }
  int error = look_at_range(look, start, end, TT_PAGE_FILE);
  if (error || base.relocated_known || look->found == before) return error;
  if (tt_scratch->relocated_count == TT_MOST_RELOCATED) return -EFBIG;
  tt_scratch->relocated[tt_scratch->relocated_count++] = start;
  return 0;
}

static int list_part(uintptr_t start, uintptr_t end, int constant, int unreadable) {
  if (start >= end) return 0;
  if (tt_scratch->mapping_count == TT_MOST_MAPPINGS) return -EFBIG;
  struct tt_looked_at *to = &tt_scratch->mapping[tt_scratch->mapping_count++];
  to->start = start;
  to->end = end;
  to->constant = constant;
  to->unreadable = unreadable;
  return 0;
}

/* But for the scratch, which may be a part of a mapping. */
static int list(const struct tt_maps_line *m) {
  const uintptr_t own = (uintptr_t)tt_scratch, own_end = own + tt_scratch_size();
  const int constant = m->ino && !(m->prot & PROT_WRITE);
  const int unreadable = !(m->prot & PROT_READ);
  int error = list_part(m->start, m->end < own ? m->end : own, constant, unreadable);
  if (error) return error;
  return list_part(m->start > own_end ? m->start : own_end, m->end, constant, unreadable);
}

/* All mappings, and the list of those that are looked at; 0 where they are not told, or one could not be
 * put back page by page. */
static uint64_t look_at_mappings(void) {
  struct tt_walk walk;
  struct tt_maps_line m;
  uint64_t sum = 14695981039346656037u;
  int r = tt_walk_ask(&walk, 0, 0);
  if (r) return 0;
  tt_scratch->mapping_count = 0;
  while ((r = tt_walk_next(&walk, &m)) > 0) {
    const uint64_t words[] = {m.start, m.end,    (uint64_t)m.prot << 1 | (uint64_t)m.shared,
                              m.dev,   m.offset, m.ino};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) sum = mix(sum, words[i]);
    if (m.shared) continue;
    if (m.page != tt_page || list(&m)) break;
  }
  tt_walk_end(&walk);
  return r ? 0 : sum;
}

/* 0, or -errno: not known. */
static int look_at_memory(struct look *look) {
  int error = 0;
  look->sum = look->bytes = tt_scratch->present.count = tt_scratch->copied.count = 0;
  look->pagemap = tt_open("/proc/self/pagemap", O_RDONLY);
  if (look->pagemap < 0) return look->pagemap;
  for (size_t i = 0; i < tt_scratch->mapping_count && !error; i++) {
    const struct tt_looked_at *m = &tt_scratch->mapping[i];
    const uint64_t before = look->bytes;
    if (!m->constant)
      error = look_at_range(look, m->start, m->end, 0);
    else if (look->pages)
      error = look_at_constant(look, m->start, m->end);
    if (!error && m->unreadable && look->bytes != before) error = -EACCES; /* a clone has it */
  }
  tt_close(look->pagemap);
  return error;
}

/* --- in the live process ---------------------------------------------------------------------- */

void tt_base_made(struct tt_state *state, int32_t pid) {
  struct look look = {-1, 0, 0, 0, 0, 0, 0};
  base.pid = 0;
  base.relocated_known = 0;
  if (!pid || !tt_scratch || !witness || state->maps_text.size) return;
  base.mappings = look_at_mappings();
  if (!base.mappings || look_at_memory(&look)) return;
  base.guards = look.sum;
  base.surroundings = look_at_surroundings();
  tt_kept_note_process(&base.kept);
  /* the frozen process gives up its rseq area: the kernel writes to that page there */
  char *area = (char *)tt_rseq_area(state->leader.pointer);
  if (area) __atomic_fetch_or(area, 0, __ATOMIC_RELAXED);
  __atomic_fetch_add(witness, 1, __ATOMIC_RELAXED);
  base.pid = pid;
}

/* Whether somebody shares memory that was written since the base: a process that was forked since, as
 * it shares the witness, too. */
static int is_shared(void) {
  uint64_t entry = 0;
  int pagemap = tt_open("/proc/self/pagemap", O_RDONLY);
  if (pagemap >= 0)
    SC(SYS_pread64, pagemap, &entry, sizeof entry, (uintptr_t)witness / tt_page * sizeof entry);
  tt_close(pagemap);
  return !(entry & EXCLUSIVE) || is_merged();
}

/* Whether a difference can be written, and its pages. */
enum tt_why tt_look_at_all(const struct tt_state *state) {
  const struct tt_freeze *f = state->freeze;
  struct look look = {-1, 1, 0, 0, f->difference_most, 0, 0};
  if (!base.pid || f->base_pid != base.pid) return TT_WHY_NO_BASE;
  if (f->hot_bytes > f->difference_most / 4) return TT_WHY_HOT; /* a clone can un-share them */
  struct rlimit files;
  SC(SYS_prlimit64, 0, RLIMIT_FSIZE, 0, &files);
  if (files.rlim_cur != RLIM_INFINITY) return TT_WHY_MUCH;
  /* not asked for its mappings, or nobody else may look at it (tt_maps_describe) */
  if (state->maps_text.size) return TT_WHY_UNKNOWN;
  const uint64_t mappings = look_at_mappings();
  if (!mappings) return TT_WHY_UNKNOWN;
  if (mappings != base.mappings) return TT_WHY_LAYOUT;
  if (is_shared()) return TT_WHY_SHARED;
  tt_kept_note_process(&kept);
  if (memcmp(&kept, &base.kept, sizeof kept) || look_at_surroundings() != base.surroundings)
    return TT_WHY_PROCESS;
  if (!base.relocated_known) tt_scratch->relocated_count = 0;
  int error = look_at_memory(&look);
  base.relocated_known = !error;
  if (error) return error == -EFBIG ? TT_WHY_MUCH : TT_WHY_UNKNOWN;
  return look.sum == base.guards ? TT_WHY_NONE : TT_WHY_LAYOUT;
}

uintptr_t tt_look_end(void) { return (uintptr_t)witness + tt_page; }

#else

int tt_difference_prepare(void) { return -ENOTSUP; }

void tt_base_made(struct tt_state *state, int32_t pid) { (void)state, (void)pid; }

#endif
