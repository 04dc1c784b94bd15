/* prefault.c: pay the price of copy-on-write while nobody waits.
 *
 * After a fork the first write to each page is a fault that copies it. A cell writes much the same
 * pages as the cell before (reference counts of the interpreter's own objects, some thousand
 * pages). So the pages that were written since the last fork are noted just before the next one
 * (tt_pages_note), and made our own again right after it (tt_pages_touch), off the reply's path.
 * A twin touches those, and then what its frozen process shares with nobody, as the live one has
 * written that since, and what the live process has written since its last fork. It maps the pages of
 * files that the live process has mapped, too, which no fork copies.
 *
 * Pages: /proc/PID/pagemap bit 56, "exclusively mapped" (Documentation/admin-guide/mm/pagemap.rst).
 * Touching: MADV_POPULATE_WRITE (madvise(2), Linux 5.14), which fails cleanly where another thread
 * has unmapped a page meanwhile. On older kernels nothing is touched.
 *
 * tt_pages_note and tt_pages_touch are called in the live process by its first thread, with the others
 * running. */
#include "prefault.h"

#include "pagemap.h"
#include "procmap.h"
#include "state.h"
#include "timetravel.h"

#include <poll.h>

#include "slurp.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define ENTRIES 2048
#define LOOK_EVERY 256 /* pages between two looks at the descriptor */
#define UNIT ((uintptr_t)2 << 20)

/* Of mappings that are not small a twin takes what is written here and there, as a heap of objects is:
 * units of 2 MiB of which no more than so many pages were. More of one is an array, which TT_UNSHARE
 * copies. Larger mappings are arrays. */
#define SPARSE_PAGES 128
#define HEAP_MOST ((uint64_t)256 << 20)
#define TWIN_SMALL ((uint64_t)8 << 20)
#define TWIN_PAGES_MOST 8192u
#define FILE_PAGES_MOST 32768u /* 128 MiB, a millisecond or two */

struct run {
  uintptr_t start, end;
};

struct pages {
  struct run *runs;
  size_t count, most, pages;
};

static struct {
  struct pages pages;
  int touched; /* in the live process; a twin that is made later touches them once more */
} noted;

static struct pages looked_up; /* in a frozen process, for a twin */

static int make_room(struct pages *list, size_t most) {
  list->count = list->pages = 0; /* also where there is no room */
  if (list->most >= most) return 0;
  long runs = tt_map_memory(most * sizeof *list->runs);
  if (tt_failed(runs)) return (int)runs;
  if (list->runs) SC(SYS_munmap, list->runs, list->most * sizeof *list->runs);
  list->runs = (struct run *)runs;
  list->most = most;
  return 0;
}

static void add(struct pages *list, uintptr_t at) {
  if (list->count && list->runs[list->count - 1].end == at) {
    list->runs[list->count - 1].end += tt_page;
  } else {
    list->runs[list->count].start = at;
    list->runs[list->count++].end = at + tt_page;
  }
  list->pages++;
}

static int was_written(uint64_t entry) {
  return (entry & (PRESENT | EXCLUSIVE | SWAPPED | OF_FILE)) == (PRESENT | EXCLUSIVE);
}

/* sparse_only: without units of which more was written. */
static void look(struct pages *list, int pagemap, uintptr_t start, uintptr_t end, int sparse_only) {
  static uint64_t entries[ENTRIES];
  for (uintptr_t at = start; at < end && list->pages < list->most;) {
    uintptr_t until = sparse_only ? (at & ~(UNIT - 1)) + UNIT : end;
    size_t pages = ((until < end ? until : end) - at) / tt_page, written = 0;
    if (pages > ENTRIES) pages = ENTRIES;
    long n = SC(SYS_pread64, pagemap, entries, pages * 8, at / tt_page * 8);
    if (n < 8) return;
    pages = (size_t)n / 8;
    for (size_t i = 0; i < pages && sparse_only; i++) written += (size_t)was_written(entries[i]);
    for (size_t i = 0; i < pages && written <= SPARSE_PAGES && list->pages < list->most; i++)
      if (was_written(entries[i])) add(list, at + i * tt_page);
    at += pages * tt_page;
  }
}

/* What a pagemap says of this process's mappings that are not too large. heaps: also what is written
 * here and there in larger ones. Number of pages or -errno. */
static int look_at_all(struct pages *list, const char *path, uint64_t mapping_most, int heaps) {
  const uint32_t wanted = TT_WALK_READABLE | TT_WALK_WRITABLE;
  struct tt_slurped maps = {0, 0, 0};
  struct tt_maps_line m;
  struct tt_walk walk;
  list->count = list->pages = 0;
  int pagemap = tt_open(path, O_RDONLY);
  if (pagemap < 0) return pagemap;
  if (tt_walk_ask(&walk, wanted, 0)) {
    maps = tt_slurp_maps();
    struct tt_buffer text = {maps.text, maps.used, maps.room};
    tt_walk_text(&walk, wanted, &text);
  }
  while (tt_walk_next(&walk, &m) > 0 && list->pages < list->most) {
    const int small = m.end - m.start < mapping_most;
    if (!m.shared && (small || (heaps && m.end - m.start <= HEAP_MOST)))
      look(list, pagemap, m.start, m.end, !small);
  }
  tt_walk_end(&walk);
  tt_slurp_free(&maps);
  tt_close(pagemap);
  return (int)list->pages;
}

int tt_pages_note(uint64_t mapping_most, uint32_t pages_most) {
  noted.touched = 0;
  int error = make_room(&noted.pages, pages_most);
  return error ? error : look_at_all(&noted.pages, "/proc/self/pagemap", mapping_most, 0);
}

/* Number of pages; as soon as somebody speaks at watched_fd (-1: nobody) no more. */
static int touch(const struct pages *list, int watched_fd) {
  int touched = 0, since = 0;
  if (list->pages == list->most) return 0; /* more than a usual cell writes: a guess at any of them */
  for (size_t i = 0; i < list->count; i++) {
    struct run *r = &list->runs[i];
    long error = SC(SYS_madvise, r->start, r->end - r->start, MADV_POPULATE_WRITE);
    if (error == -EINVAL) break; /* an older kernel */
    int pages = (int)((r->end - r->start) / tt_page);
    if (!error) touched += pages;
    if ((since += pages) >= LOOK_EVERY) {
      struct pollfd someone = {watched_fd, POLLIN, 0};
      struct timespec now = {0, 0};
      since = 0;
      if (watched_fd >= 0 && SC(SYS_ppoll, &someone, 1, &now, 0) > 0) break;
    }
  }
  return touched;
}

int tt_pages_touch(int watched_fd) {
  if (noted.touched) return 0;
  noted.touched = 1;
  return touch(&noted.pages, watched_fd);
}

/* --- twins -------------------------------------------------------------------------------------- */

void tt_twin_look(void) {
  if (make_room(&looked_up, TWIN_PAGES_MOST)) return;
  look_at_all(&looked_up, "/proc/self/pagemap", TWIN_SMALL, 1);
}

/* Pages of files, at most FILE_PAGES_MOST, that a pagemap of another process has mapped where this one
 * has files, too (PAGEMAP_SCAN, Linux 6.7; elsewhere none). */
static void map_files(int pagemap) {
  const struct tt_wanted wanted = {0, TT_PAGE_FILE, TT_PAGE_FILE};
  size_t left = FILE_PAGES_MOST;
  struct tt_part parts[16];
  struct tt_maps_line m;
  struct tt_walk walk;
  if (tt_walk_ask(&walk, TT_WALK_READABLE, 0)) return;
  while (left && tt_walk_next(&walk, &m) > 0) {
    if (m.shared || !m.ino) continue;
    for (uintptr_t at = m.start; at < m.end && left;) {
      long n = tt_scan_kinds(pagemap, &at, m.end, &wanted, parts, sizeof parts / sizeof *parts);
      if (n < 0) break;
      for (long i = 0; i < n && left; i++) {
        size_t pages = (parts[i].end - parts[i].start) / tt_page;
        if (pages > left) pages = left;
        SC(SYS_madvise, parts[i].start, pages * tt_page, MADV_POPULATE_READ);
        left -= pages;
      }
    }
  }
  tt_walk_end(&walk);
}

void tt_twin_touch(int32_t live) {
  char path[48];
  touch(&noted.pages, -1);
  touch(&looked_up, -1);
  if (live <= 0 || !looked_up.most) return;
  tt_text_path(path, "/proc/", (uint64_t)live, "/pagemap");
  if (look_at_all(&looked_up, path, TWIN_SMALL, 1) > 0) touch(&looked_up, -1);
  int pagemap = tt_open(path, O_RDONLY);
  if (pagemap < 0) return;
  map_files(pagemap);
  tt_close(pagemap);
}
