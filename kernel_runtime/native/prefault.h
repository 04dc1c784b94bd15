/* prefault.h: beside tt_pages_note and tt_pages_touch (timetravel.h), for twins. */
#ifndef TT_PREFAULT_H
#define TT_PREFAULT_H

#include "sys.h"

/* In the frozen process, before the clone that will be a twin: look up what it shares with nobody. */
void tt_twin_look(void);

/* In the twin: make pages ready that its first cell will write or read: those that were noted or looked
 * up, and those that the process with that id has written since its last fork or has of files, at
 * addresses where this one has memory, too. 0: nobody. */
void tt_twin_touch(int32_t live);

#endif
