/* procmap.h: one mapping after the other, as the kernel tells them or as a text has them.
 *
 * The kernel is asked for one mapping at a time (PROCMAP_QUERY, Linux 6.11; ioctl of /proc/PID/maps,
 * uapi/linux/fs.h), a microsecond each, and passes over those that lack what is wanted. The text of
 * all of them costs two microseconds for each: 1.7 ms where pandas is imported. */
#ifndef TT_PROCMAP_H
#define TT_PROCMAP_H

#include "arena.h"
#include "text.h"

/* One mapping. path is empty for anonymous memory, and where it was not asked for. */
struct tt_maps_line {
  uintptr_t start, end;
  int prot, shared;
  uint64_t offset, dev, ino;
  struct tt_text path;
  uint64_t page; /* bytes of its pages; 0: not told */
};

/* The next line of such a text (proc_pid_maps(5)); 0 at the end. */
int tt_maps_next(struct tt_text *text, struct tt_maps_line *line);

/* What mappings must have to be told. */
enum { TT_WALK_READABLE = 1, TT_WALK_WRITABLE = 2, TT_WALK_SHARED = 8 };

struct tt_walk {
  int fd; /* -1: of a text */
  uint32_t wanted;
  uintptr_t at;
  struct tt_text text;
  size_t name_size;
  char name[4096]; /* PATH_MAX: the kernel takes no more */
};

/* Walk over our own mappings by asking. named: with their paths. 0, or -errno where the kernel does
 * not answer. */
int tt_walk_ask(struct tt_walk *walk, uint32_t wanted, int named);

/* Walk over those of a text, which must stay. */
void tt_walk_text(struct tt_walk *walk, uint32_t wanted, const struct tt_buffer *text);

/* 1 with the next one, 0 at the end, -errno: the rest is not known. */
int tt_walk_next(struct tt_walk *walk, struct tt_maps_line *line);

void tt_walk_end(struct tt_walk *walk);

/* Pages that a process has mapped, proc being its directory below /proc; 0: not known (proc_pid_statm(5)). */
uint64_t tt_mapped_pages(const char *proc);

#endif
