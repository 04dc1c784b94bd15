/* memory.h: what a clone does not copy by itself: shared mappings and the objects behind them. */
#ifndef TT_MEMORY_H
#define TT_MEMORY_H

#include "state.h"

/* The object that a regular file is, when it is one whose contents only we can keep: a memfd, a
 * deleted file, a file under /dev/shm. Sets desc->kind. 0 or -errno. */
int tt_object_of_fd(struct tt_state *state, struct tt_desc *desc, const struct stat *st);

/* Recipes for all shared mappings, with the contents of their objects. After the descriptors. */
int tt_maps_describe(struct tt_state *state);

/* Just before the clone: how much is mapped. Just after it: whether a clone lacks some of that, pid's
 * or, with 0, the caller's. */
void tt_regions_note(struct tt_state *state);
int tt_regions_lack(const struct tt_state *state, int32_t pid);

/* In the frozen process: learn what the live one has where something is lacking, before the last
 * close, for which that waits; put placeholders where shared mappings were, so that nothing stays in
 * use because of us; find the regions that the clone did not copy. */
void tt_regions_ask(struct tt_state *state);
void tt_maps_drop(struct tt_state *state);
void tt_regions_find(struct tt_state *state);

/* Memory that is locked, which no clone's is: found where some is (it takes a look at all memory),
 * and locked again in the woken process. 0 or -errno. */
int tt_locked_describe(struct tt_state *state);
void tt_locked_again(struct tt_state *state);

/* In the woken process. Objects before descriptors, mappings after; close when both are done. */
int tt_objects_make(struct tt_state *state);
void tt_maps_make(struct tt_state *state);
void tt_objects_close(struct tt_state *state);

#endif
