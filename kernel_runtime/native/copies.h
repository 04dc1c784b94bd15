/* copies.h: a woken process that is only to be read (TT_WAKE_COPY).
 *
 * It is woken like any other, but from recipes that were trimmed first: what reaches out of the
 * process, or would run the user's code, is taken out of them. */
#ifndef TT_COPIES_H
#define TT_COPIES_H

#include "state.h"

#define TT_BACKGROUND_NICE 10
#define TT_BACKGROUND_NICE_TEXT "10"

/* At the freeze: which of the stopped threads run Python. 0, or -EINVAL when the list that was
 * given is not one. */
int tt_copies_describe(struct tt_state *state);

/* In the copy. trim: before anything is rebuilt; reports the files that were open. streams: 0, 1
 * and 2, where nothing is there; passed as in tt_fds_rebuild. confine: before the threads are made,
 * which inherit what it sets. 0 or -errno: then the copy must end. */
int tt_copies_trim(struct tt_state *state);
int tt_copies_streams(const int passed[3]);
int tt_copies_confine(const struct tt_state *state);

/* Run at a low priority, for good. */
void tt_step_back(void);

#endif
