/* pagemap.c: see pagemap.h. */
#include "pagemap.h"

#define PAGEMAP_SCAN 0xc0606610u /* linux/fs.h; our headers may be older */

struct scan { /* struct pm_scan_arg */
  uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, any_of,
      returned;
};

long tt_scan_kinds(int pagemap, uintptr_t *at, uintptr_t end, const struct tt_wanted *wanted,
                   struct tt_part *found, size_t most) {
  struct scan scan = {sizeof scan, 0, *at, end, 0, (uintptr_t)found, most, 0, wanted->none_of,
                      wanted->none_of, wanted->any_of, wanted->told};
  long n = SC(SYS_ioctl, pagemap, PAGEMAP_SCAN, &scan);
  if (n < 0) return n;
  /* Not walk_end alone: the kernel looks at 512 parts at a time, and where it comes to the end after
   * more than those, walk_end is still what it was after them (Linux 6.18, do_pagemap_scan). */
  uintptr_t told = n ? found[n - 1].end : 0;
  *at = (size_t)n < most ? end : scan.walk_end > told ? scan.walk_end : told;
  return n;
}

long tt_scan(int pagemap, uint64_t at, uint64_t end, uint64_t all_of, uint64_t none_of,
             uint64_t any_of, struct tt_part *found) {
  struct scan scan = {sizeof scan, 0, at, end, 0, (uintptr_t)found, 1, 0, none_of,
                      all_of | none_of, any_of, TT_PAGE_PRESENT | TT_PAGE_SWAPPED};
  return SC(SYS_ioctl, pagemap, PAGEMAP_SCAN, &scan);
}
