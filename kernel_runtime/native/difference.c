/* difference.c: see difference.h. Pages: /proc/PID/pagemap bit 56, "exclusively mapped", and
 * PAGEMAP_SCAN (Documentation/admin-guide/mm/pagemap.rst). */
#include "difference.h"

#include <linux/keyctl.h>
#include <linux/prctl.h>
#include <sys/uio.h>

#include "hold.h"
#include "image.h"
#include "pagemap.h"
#include "process.h"
#include "procmap.h"
#include "wake.h"

#if TT_THREADS

#define MOST_RUNS 16384
#define MOST_MAPPINGS 8192
#define MOST_RELOCATED 2048
#define PARTS 1024
#define ENTRIES 2048
#define PIECES 1024
#define STACK_SIZE 65536
#define UNIT ((uintptr_t)2 << 20) /* of a huge page; others are not told as one */
#define ANY_PAGE (TT_PAGE_PRESENT | TT_PAGE_SWAPPED)
#define FORMAT 0x5454444946463031u /* "TTDIFF01" */

struct run {
  uintptr_t start, end;
};

struct runs {
  size_t count;
  struct run run[MOST_RUNS];
};

struct mapping {
  uintptr_t start, end;
  int constant; /* of a file, and not to be written to */
};

struct head {
  uint64_t format, page, present, copied, data_at;
};

/* Is no part of a difference: in the live process its notes, in a clone of the base a place that stays
 * as it is while everything else is put in place. */
struct scratch {
  struct head head;
  struct runs present, copied; /* pages of private memory: all of them, and those that were written */
  /* constant data with private pages, such as what is protected once it is relocated (RELRO) */
  size_t relocated_count;
  uintptr_t relocated[MOST_RELOCATED];
  size_t mapping_count;
  struct mapping mapping[MOST_MAPPINGS];
  struct tt_part parts[PARTS];
  uint64_t entries[ENTRIES];
  struct iovec pieces[PIECES];
  int fd, listen_fd, result_fd, rseq_free;
  char stack[STACK_SIZE] __attribute__((aligned(16)));
};

static struct scratch *scratch;
static char *witness;
static uint64_t guard; /* TT_PAGE_GUARD, where the kernel knows of it */
static struct tt_context context;
static struct tt_kept kept;

static struct {
  int32_t pid; /* 0: none */
  uint64_t mappings, guards, surroundings;
  int relocated_known;
  struct tt_kept kept;
} base;

static size_t scratch_size(void) {
  return (sizeof *scratch + TT_LARGEST_PAGE - 1) & ~((size_t)TT_LARGEST_PAGE - 1);
}

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
  long n = tt_scan_kinds(pagemap, &at, at + tt_page, &wanted, scratch->parts, 1);
  tt_close(pagemap);
  guard = n < 0 ? 0 : TT_PAGE_GUARD;
}

int tt_difference_prepare(void) {
  if (!scratch) {
    long m = tt_map_memory(scratch_size());
    if (tt_failed(m)) return (int)m;
    SC(SYS_madvise, m, scratch_size(), MADV_NOHUGEPAGE); /* nor does it merge with its neighbours */
    scratch = (struct scratch *)m;
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

/* Pages that the kernel has merged are shared, and were written all the same (ksm(7)). */
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

static int add(struct runs *to, uintptr_t start, uintptr_t end) {
  if (to->count && to->run[to->count - 1].end == start) {
    to->run[to->count - 1].end = end;
    return 0;
  }
  if (to->count == MOST_RUNS) return -EFBIG;
  to->run[to->count].start = start;
  to->run[to->count++].end = end;
  return 0;
}

static int add_page(struct look *look, uint64_t entry, uintptr_t start, uintptr_t end) {
  if (entry & SWAPPED) return -EAGAIN; /* not told whose */
  if (entry & OF_FILE || !(entry & PRESENT)) return 0;
  look->found++;
  int error = add(&scratch->present, start, end);
  if (error || !(entry & EXCLUSIVE)) return error;
  look->bytes += end - start;
  return look->bytes > look->most ? -EFBIG : add(&scratch->copied, start, end);
}

/* Pages of one kind. */
static int look_at_part(struct look *look, const struct tt_part *part) {
  const int huge = (part->categories & TT_PAGE_HUGE) != 0; /* one entry tells of all */
  int error = 0;
  for (uintptr_t at = part->start; at < part->end && !error;) {
    size_t count = huge ? 1 : (part->end - at) / tt_page;
    if (count > ENTRIES) count = ENTRIES;
    long n = SC(SYS_pread64, look->pagemap, scratch->entries, count * 8, at / tt_page * 8);
    if (n != (long)count * 8) return n < 0 ? (int)n : -EIO;
    for (size_t i = 0; i < count && !error; i++) {
      uintptr_t end = huge ? (at & ~(UNIT - 1)) + UNIT : at + tt_page;
      if (end > part->end) end = part->end;
      error = add_page(look, scratch->entries[i], at, end);
      at = end;
    }
  }
  return error;
}

/* none_of: kinds of pages that do not count. */
static int look_at_range(struct look *look, uintptr_t at, uintptr_t end, uint64_t none_of) {
  const uint64_t any_of = (look->pages ? ANY_PAGE : 0) | guard;
  const struct tt_wanted wanted = {none_of, any_of, any_of | TT_PAGE_HUGE | TT_PAGE_ZERO};
  while (any_of && at < end) {
    long n = tt_scan_kinds(look->pagemap, &at, end, &wanted, scratch->parts, PARTS);
    if (n < 0) return (int)n;
    for (long i = 0; i < n; i++) {
      const struct tt_part *part = &scratch->parts[i];
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
    while (look->relocated < scratch->relocated_count &&
           scratch->relocated[look->relocated] < start)
      look->relocated++;
    if (look->relocated == scratch->relocated_count ||
        scratch->relocated[look->relocated] != start)
      return 0;
  }
  int error = look_at_range(look, start, end, TT_PAGE_FILE);
  if (error || base.relocated_known || look->found == before) return error;
  if (scratch->relocated_count == MOST_RELOCATED) return -EFBIG;
  scratch->relocated[scratch->relocated_count++] = start;
  return 0;
}

/* All mappings, and the list of those that are looked at; 0 where they are not told, or one could not be
 * put back page by page. */
static uint64_t look_at_mappings(void) {
  struct tt_walk walk;
  struct tt_maps_line m;
  uint64_t sum = 14695981039346656037u;
  int r = tt_walk_ask(&walk, 0, 0);
  if (r) return 0;
  scratch->mapping_count = 0;
  while ((r = tt_walk_next(&walk, &m)) > 0) {
    const uint64_t words[] = {m.start, m.end,    (uint64_t)m.prot << 1 | (uint64_t)m.shared,
                              m.dev,   m.offset, m.ino};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) sum = mix(sum, words[i]);
    if (m.shared || m.start == (uintptr_t)scratch) continue;
    if (m.page != tt_page || scratch->mapping_count == MOST_MAPPINGS) break;
    struct mapping *to = &scratch->mapping[scratch->mapping_count++];
    to->start = m.start;
    to->end = m.end;
    to->constant = m.ino && !(m.prot & PROT_WRITE);
  }
  tt_walk_end(&walk);
  return r ? 0 : sum;
}

/* 0, or -errno: not known. */
static int look_at_memory(struct look *look) {
  int error = 0;
  look->sum = look->bytes = scratch->present.count = scratch->copied.count = 0;
  look->pagemap = tt_open("/proc/self/pagemap", O_RDONLY);
  if (look->pagemap < 0) return look->pagemap;
  for (size_t i = 0; i < scratch->mapping_count && !error; i++) {
    const struct mapping *m = &scratch->mapping[i];
    if (!m->constant)
      error = look_at_range(look, m->start, m->end, 0);
    else if (look->pages)
      error = look_at_constant(look, m->start, m->end);
  }
  tt_close(look->pagemap);
  return error;
}

/* --- in the live process ---------------------------------------------------------------------- */

void tt_base_made(struct tt_state *state, int32_t pid) {
  struct look look = {-1, 0, 0, 0, 0, 0, 0};
  base.pid = 0;
  base.relocated_known = 0;
  if (!pid || !scratch || !witness || state->maps_text.size) return;
  if (SC(SYS_prctl, PR_GET_DUMPABLE) != 1) return;
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
static enum tt_why look_at_all(const struct tt_state *state) {
  const struct tt_freeze *f = state->freeze;
  struct look look = {-1, 1, 0, 0, f->difference_most, 0, 0};
  if (!base.pid || f->base_pid != base.pid) return TT_WHY_NO_BASE;
  if (f->hot_bytes > f->difference_most / 4) return TT_WHY_HOT; /* a clone can un-share them */
  if (state->maps_text.size || SC(SYS_prctl, PR_GET_DUMPABLE) != 1) return TT_WHY_UNKNOWN;
  const uint64_t mappings = look_at_mappings();
  if (!mappings) return TT_WHY_UNKNOWN;
  if (mappings != base.mappings) return TT_WHY_LAYOUT;
  if (is_shared()) return TT_WHY_SHARED;
  tt_kept_note_process(&kept);
  if (memcmp(&kept, &base.kept, sizeof kept) || look_at_surroundings() != base.surroundings)
    return TT_WHY_PROCESS;
  if (!base.relocated_known) scratch->relocated_count = 0;
  int error = look_at_memory(&look);
  base.relocated_known = !error;
  if (error) return error == -EFBIG ? TT_WHY_MUCH : TT_WHY_UNKNOWN;
  return look.sum == base.guards ? TT_WHY_NONE : TT_WHY_LAYOUT;
}

static int put_all(int fd, struct iovec *pieces, size_t count, uint64_t at) {
  while (count) {
    long n = SC(SYS_pwritev, fd, pieces, count, at, at >> 32);
    if (n <= 0) return n < 0 ? (int)n : -EIO;
    at += (uint64_t)n;
    while (count && (size_t)n >= pieces->iov_len) {
      n -= (long)pieces->iov_len;
      pieces++;
      count--;
    }
    if (count) {
      pieces->iov_base = (char *)pieces->iov_base + n;
      pieces->iov_len -= (size_t)n;
    }
  }
  return 0;
}

/* Bytes of the file, or -errno. */
static int64_t write_down(int fd) {
  const struct runs *present = &scratch->present, *copied = &scratch->copied;
  struct iovec *pieces = scratch->pieces;
  size_t lists = (present->count + copied->count) * sizeof(struct run), count = 0;
  uint64_t at = (sizeof scratch->head + lists + tt_page - 1) & ~((uint64_t)tt_page - 1);
  uint64_t bytes = 0;
  struct head head = {FORMAT, tt_page, present->count, copied->count, at};
  scratch->head = head;
  pieces[0] = (struct iovec){&scratch->head, sizeof scratch->head};
  pieces[1] = (struct iovec){(void *)present->run, present->count * sizeof(struct run)};
  pieces[2] = (struct iovec){(void *)copied->run, copied->count * sizeof(struct run)};
  int error = put_all(fd, pieces, 3, 0);
  for (size_t i = 0; i < copied->count && !error; i++) {
    size_t size = copied->run[i].end - copied->run[i].start;
    pieces[count++] = (struct iovec){(void *)copied->run[i].start, size};
    bytes += size;
    if (count < PIECES && i + 1 < copied->count) continue;
    error = put_all(fd, pieces, count, at);
    at += bytes;
    bytes = count = 0;
  }
  return error ? error : (int64_t)at;
}

int64_t tt_difference_write(struct tt_state *state, int *listen_fd) {
  tt_process_note_score(state);
  /* before the look: what is written after it is noted only where something was written before */
  if (tt_context_save(&context)) {
    /* in the clone of the base, which has this memory now */
    struct tt_result result = {0, TT_STEP_NONE};
    state->rseq_free = scratch->rseq_free;
    state->dumpable = 1; /* else there would be no difference */
    *listen_fd = scratch->listen_fd;
    SC(SYS_write, scratch->result_fd, &result, sizeof result);
    tt_close(scratch->result_fd);
    tt_close(scratch->fd);
    return 0;
  }
  state->freeze->difference_why = look_at_all(state);
  if (state->freeze->difference_why) return 0;
  if (state->freeze->hold_fd >= 0 && tt_hold_begin(state, 0)) return 0; /* the clone says why */
  return write_down(state->freeze->difference_fd);
}

/* --- in a clone of the base ------------------------------------------------------------------- */

/* From here on nothing but the scratch and constants may be used: all other memory is replaced. */

__attribute__((noreturn)) static void give_up(int error) {
  struct tt_result result = {error, TT_STEP_MEMORY};
  SC(SYS_write, scratch->result_fd, &result, sizeof result);
  for (;;) SC(SYS_exit_group, 1);
}

static int read_all(int fd, void *to, size_t size, uint64_t at) {
  for (char *p = to; size;) {
    long n = SC(SYS_pread64, fd, p, size, at);
    if (n <= 0) return n < 0 ? (int)n : -EIO;
    p += n;
    at += (uint64_t)n;
    size -= (size_t)n;
  }
  return 0;
}

static const struct tt_wanted private_pages = {TT_PAGE_FILE | TT_PAGE_ZERO, ANY_PAGE, ANY_PAGE};

/* Give back what this clone has there and the live process has not: it has given it back since the
 * base, or it is this one's own. */
static int drop_others(struct scratch *s, int pagemap, uintptr_t at, uintptr_t end) {
  const struct run *next = s->present.run, *last = next + s->present.count;
  while (at < end) {
    long n = tt_scan_kinds(pagemap, &at, end, &private_pages, s->parts, PARTS);
    if (n < 0) return (int)n;
    for (long i = 0; i < n; i++) {
      uintptr_t from = s->parts[i].start, to = s->parts[i].end;
      while (from < to) {
        while (next < last && next->end <= from) next++;
        uintptr_t until = next < last && next->start < to ? next->start : to;
        if (from < until) SC(SYS_madvise, from, until - from, MADV_DONTNEED);
        from = until < to ? next->end : to;
      }
    }
  }
  return 0;
}

static int put_back(struct scratch *s) {
  uint64_t at = s->head.data_at;
  for (size_t i = 0; i < s->copied.count; i++) {
    const struct run *r = &s->copied.run[i];
    int error = read_all(s->fd, (void *)r->start, r->end - r->start, at);
    if (error) return error;
    at += r->end - r->start;
  }
  return 0;
}

static void turn(void *arg) {
  struct scratch *s = arg;
  const uintptr_t own = (uintptr_t)s, end = (uintptr_t)witness + s->head.page;
  int pagemap = tt_open("/proc/self/pagemap", O_RDONLY);
  int error = pagemap < 0 ? pagemap : drop_others(s, pagemap, 0, own);
  if (!error) error = drop_others(s, pagemap, own + scratch_size(), end);
  tt_close(pagemap);
  if (!error) error = put_back(s);
  if (error) give_up(error);
  tt_context_jump(&context);
}

static int read_lists(struct scratch *s) {
  struct head *h = &s->head;
  int error = read_all(s->fd, h, sizeof *h, 0);
  if (error) return error;
  if (h->format != FORMAT || h->page != tt_page || h->present > MOST_RUNS || h->copied > MOST_RUNS)
    return -EBADMSG;
  s->present.count = h->present;
  s->copied.count = h->copied;
  error = read_all(s->fd, s->present.run, h->present * sizeof(struct run), sizeof *h);
  if (error) return error;
  return read_all(s->fd, s->copied.run, h->copied * sizeof(struct run),
                  sizeof *h + h->present * sizeof(struct run));
}

void tt_difference_take(const struct tt_state *state, int fd, int listen_fd, int result_fd) {
  scratch->fd = fd;
  scratch->listen_fd = listen_fd;
  scratch->result_fd = result_fd;
  scratch->rseq_free = state->rseq_free;
  int error = read_lists(scratch);
  if (error) give_up(error);
  tt_call_on(scratch->stack + STACK_SIZE, turn, scratch);
}

#else

int tt_difference_prepare(void) { return -ENOTSUP; }

void tt_base_made(struct tt_state *state, int32_t pid) { (void)state, (void)pid; }

int64_t tt_difference_write(struct tt_state *state, int *listen_fd) {
  (void)state, (void)listen_fd;
  return 0;
}

void tt_difference_take(const struct tt_state *state, int fd, int listen_fd, int result_fd) {
  (void)state, (void)fd, (void)listen_fd, (void)result_fd;
  for (;;) SC(SYS_exit_group, 1);
}

#endif
