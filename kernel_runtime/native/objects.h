/* objects.h: the part of memory.h that only maps.c needs. */
#ifndef TT_OBJECTS_H
#define TT_OBJECTS_H

#include "state.h"

struct tt_object *tt_object_find(struct tt_state *state, uint64_t dev, uint64_t ino);
struct tt_object *tt_object_add(struct tt_state *state, enum tt_object_kind kind, uint64_t dev,
                                uint64_t ino, struct tt_text path);
int tt_object_copy(struct tt_state *state, struct tt_object *object, int fd);
int tt_object_copy_mapped(struct tt_state *state, struct tt_object *object,
                          const struct tt_map *map);

/* A file of /dev/shm may have a name though the one that it was opened by is deleted: sem_open(3)
 * makes a semaphore under another name, links it to its own, and deletes the first. Put that name
 * in the path's place. Whether there is one, or -ENOMEM. */
int tt_object_renamed(struct tt_state *state, struct tt_text *path, uint64_t ino);

#endif
