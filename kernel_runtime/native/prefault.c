/* prefault.c: pay the price of copy-on-write while nobody waits.
 *
 * After a fork the first write to each page is a fault that copies it. A cell writes much the same
 * pages as the cell before (reference counts of the interpreter's own objects, some thousand
 * pages). So the pages that were written since the last fork are noted just before the next one
 * (tt_pages_note), and made our own again right after it (tt_pages_touch), off the reply's path.
 * A twin touches those, and then what the live process, which descends from the same one, has written
 * since its last fork.
 *
 * Pages: /proc/PID/pagemap bit 56, "exclusively mapped" (Documentation/admin-guide/mm/pagemap.rst).
 * Touching: MADV_POPULATE_WRITE (madvise(2), Linux 5.14), which fails cleanly where another thread
 * has unmapped a page meanwhile. On older kernels nothing is touched.
 *
 * Both are called in the live process by its first thread, with the others running. */
#include "prefault.h"

#include "pagemap.h"
#include "procmap.h"
#include "state.h"
#include "timetravel.h"

#include <poll.h>

#include "slurp.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define ENTRIES 2048
#define LOOK_EVERY 256 /* pages between two looks at the descriptor */

struct run {
  uintptr_t start, end;
};

static struct {
  struct run *runs;
  size_t count, most, pages;
  uint64_t mapping_most;
  int touched; /* in the live process; a twin that is made later touches them once more */
} noted;

static void note(uintptr_t at) {
  if (noted.count && noted.runs[noted.count - 1].end == at) {
    noted.runs[noted.count - 1].end += tt_page;
  } else {
    if (noted.count == noted.most) return;
    noted.runs[noted.count].start = at;
    noted.runs[noted.count++].end = at + tt_page;
  }
  noted.pages++;
}

static void look(int pagemap, uintptr_t start, uintptr_t end, size_t most) {
  static uint64_t entries[ENTRIES];
  for (uintptr_t at = start; at < end && noted.pages < most;) {
    size_t pages = (end - at) / tt_page;
    if (pages > ENTRIES) pages = ENTRIES;
    long n = SC(SYS_pread64, pagemap, entries, pages * 8, at / tt_page * 8);
    if (n < 8) return;
    for (size_t i = 0; i < (size_t)n / 8 && noted.pages < most; i++)
      if ((entries[i] & (PRESENT | EXCLUSIVE | SWAPPED | OF_FILE)) == (PRESENT | EXCLUSIVE))
        note(at + i * tt_page);
    at += (size_t)n / 8 * tt_page;
  }
}

/* In place of what was noted before: what a pagemap says of this process's mappings that are not too
 * large. Number of pages or -errno. */
static int note_all(const char *path) {
  const uint32_t wanted = TT_WALK_READABLE | TT_WALK_WRITABLE;
  struct tt_slurped maps = {0, 0, 0};
  struct tt_maps_line m;
  struct tt_walk walk;
  noted.count = noted.pages = noted.touched = 0;
  int pagemap = tt_open(path, O_RDONLY);
  if (pagemap < 0) return pagemap;
  if (tt_walk_ask(&walk, wanted, 0)) {
    maps = tt_slurp_maps();
    struct tt_buffer text = {maps.text, maps.used, maps.room};
    tt_walk_text(&walk, wanted, &text);
  }
  while (tt_walk_next(&walk, &m) > 0 && noted.pages < noted.most)
    if (!m.shared && m.end - m.start < noted.mapping_most)
      look(pagemap, m.start, m.end, noted.most);
  tt_walk_end(&walk);
  tt_slurp_free(&maps);
  tt_close(pagemap);
  return (int)noted.pages;
}

int tt_pages_note(uint64_t mapping_most, uint32_t pages_most) {
  noted.count = noted.pages = 0; /* also where there is no room */
  if (noted.most < pages_most) {
    long runs = tt_map_memory(pages_most * sizeof *noted.runs);
    if (tt_failed(runs)) return (int)runs;
    if (noted.runs) SC(SYS_munmap, noted.runs, noted.most * sizeof *noted.runs);
    noted.runs = (struct run *)runs;
    noted.most = pages_most;
  }
  noted.mapping_most = mapping_most;
  return note_all("/proc/self/pagemap");
}

int tt_pages_note_of(int32_t pid) {
  char path[48];
  if (pid <= 0) return 0;
  tt_text_path(path, "/proc/", (uint64_t)pid, "/pagemap");
  return note_all(path);
}

int tt_pages_touch(int watched_fd) {
  int touched = 0, since = 0;
  if (noted.touched && watched_fd >= 0) return 0;
  if (noted.pages == noted.most) return 0; /* more than a usual cell writes: a guess at any of them */
  noted.touched = 1;
  for (size_t i = 0; i < noted.count; i++) {
    struct run *r = &noted.runs[i];
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
