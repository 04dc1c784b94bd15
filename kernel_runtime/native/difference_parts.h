/* difference_parts.h: what the files of difference.h share. */
#ifndef TT_DIFFERENCE_PARTS_H
#define TT_DIFFERENCE_PARTS_H

#include "difference.h"
#include "image.h"
#include "pagemap.h"

#include <sys/uio.h>

#define TT_MOST_RUNS 16384
#define TT_MOST_MAPPINGS 8192
#define TT_MOST_RELOCATED 2048
#define TT_PARTS 1024
#define TT_ENTRIES 2048
#define TT_PIECES 1024
#define TT_STACK_SIZE 65536
#define TT_ANY_PAGE (TT_PAGE_PRESENT | TT_PAGE_SWAPPED)

struct tt_run {
  uintptr_t start, end;
};

struct tt_runs {
  size_t count;
  struct tt_run run[TT_MOST_RUNS];
};

struct tt_looked_at {
  uintptr_t start, end;
  int constant; /* of a file, and not to be written to */
  int unreadable;
};

struct tt_difference_head {
  uint64_t format, page, present, copied, data_at;
};

/* Is no part of a difference: in the live process its notes, in a clone of the base a place that stays
 * as it is while everything else is put in place. */
struct tt_scratch {
  struct tt_difference_head head;
  struct tt_runs present, copied; /* pages of private memory: all of them, and those that were written */
  /* constant data with private pages, such as what is protected once it is relocated (RELRO) */
  size_t relocated_count;
  uintptr_t relocated[TT_MOST_RELOCATED];
  size_t mapping_count;
  struct tt_looked_at mapping[TT_MOST_MAPPINGS];
  struct tt_part parts[TT_PARTS];
  uint64_t entries[TT_ENTRIES];
  struct iovec pieces[TT_PIECES];
  struct tt_difference_order order;
  int rseq_free;
  char stack[TT_STACK_SIZE] __attribute__((aligned(16)));
};

extern struct tt_scratch *tt_scratch;

static inline size_t tt_scratch_size(void) { return tt_whole_pages(sizeof(struct tt_scratch)); }

uintptr_t tt_look_end(void); /* of all memory that is looked at */

/* Whether a difference from the base can be written; then its pages are in the scratch's lists. */
enum tt_why tt_look_at_all(const struct tt_state *state);

#endif
