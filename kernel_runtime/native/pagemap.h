/* pagemap.h: what the kernel tells of pages: entries of /proc/PID/pagemap, and runs of pages found by
 * PAGEMAP_SCAN, Linux 6.7 (Documentation/admin-guide/mm/pagemap.rst). */
#ifndef TT_PAGEMAP_H
#define TT_PAGEMAP_H

#include "sys.h"

/* Of an entry. EXCLUSIVE: no other process has it mapped. */
#define PRESENT (1ull << 63)
#define SWAPPED (1ull << 62)
#define OF_FILE (1ull << 61)
#define GUARD (1ull << 58) /* Linux 6.15 */
#define EXCLUSIVE (1ull << 56)

/* Kinds of pages that are looked for. */
#define TT_PAGE_FILE 4
#define TT_PAGE_PRESENT 8
#define TT_PAGE_SWAPPED 16
#define TT_PAGE_ZERO 32
#define TT_PAGE_HUGE 64
#define TT_PAGE_GUARD 256 /* Linux 6.15 */
struct tt_part {
  uint64_t start, end, categories;
};

/* Finds the next part of [at, end) whose pages are of all, of none and of one of these kinds (0: does
 * not matter), without looking at every page of a large mapping. How many parts were found, 1 or 0,
 * or -errno. */
long tt_scan(int pagemap, uint64_t at, uint64_t end, uint64_t all_of, uint64_t none_of,
             uint64_t any_of, struct tt_part *found);

/* Finds the parts from *at to end, most at most, whose pages are of none of the first kinds and of one
 * of the second; told: those by which parts are told apart. How many, and *at is where to go on; or
 * -errno. */
struct tt_wanted {
  uint64_t none_of, any_of, told;
};
long tt_scan_kinds(int pagemap, uintptr_t *at, uintptr_t end, const struct tt_wanted *wanted,
                   struct tt_part *found, size_t most);

#endif
