/* prefault.h: beside tt_pages_note and tt_pages_touch (timetravel.h), for twins. */
#ifndef TT_PREFAULT_H
#define TT_PREFAULT_H

#include "sys.h"

/* Note the pages that the process with that id has written since its last fork, at addresses where
 * this one has memory too, in place of what was noted before. Their number or -errno; 0: nobody. */
int tt_pages_note_of(int32_t pid);

#endif
