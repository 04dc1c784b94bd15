/* image_list.h: the mappings of a process, as its image lists them, and room to work in. */
#ifndef TT_IMAGE_LIST_H
#define TT_IMAGE_LIST_H

#include "image.h"
#include "procmap.h"

#define TT_ENTRIES 8192

enum tt_mapping_kind {
  TT_ANONYMOUS,
  TT_OF_FILE,   /* goes by reference */
  TT_COPIED,    /* of a file, goes by value */
  TT_UNREADABLE /* a device's: goes as reserved memory */
};

struct tt_mapping {
  struct tt_maps_line line;
  uint64_t private_bytes;
  uint32_t flags, advice;
  enum tt_mapping_kind kind;
  uint64_t group_start, group_end; /* of writable memory without a gap; both 0: it is none */
};

struct tt_block { /* what looks like a large block of malloc's */
  uint64_t start, end;
  int accepted;
};

/* Shared memory: what is shared is not part of the image, and never merges with what is. */
struct tt_work {
  char *text; /* of /proc/self/smaps */
  size_t size;
  struct tt_mapping *list;
  size_t count;
  struct tt_block *blocks; /* in rising order */
  size_t blocks_count, blocks_most;
  uint64_t *entries; /* room for TT_ENTRIES of /proc/self/pagemap */
  char *piece;       /* a view of piece_fd, TT_IMAGE_PIECE */
  int piece_fd, pagemap;
};

/* Make room and list all mappings. 0 or -errno. */
int tt_work_start(struct tt_work *work);

/* Give the room back; also after an error. */
void tt_work_end(struct tt_work *work);

/* Whether a mapping is the kernel's own, such as [vdso]. */
int tt_is_special(const struct tt_mapping *mapping);

/* The file that is mapped, where it is still to be had by its path: then 1. */
int tt_find_file(const struct tt_mapping *mapping, char path[4096], struct stat *st);

#endif
