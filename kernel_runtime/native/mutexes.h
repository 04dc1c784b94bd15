/* mutexes.h: for threads that come back under new ids. */
#ifndef TT_MUTEXES_H
#define TT_MUTEXES_H

#include "state.h"

/* Recursive and error-checking mutexes of glibc remember who locked them by thread id, and refuse
 * to be unlocked by another. Rewrites the owner of those that were locked at the freeze, in the
 * data of libraries (the dynamic linker's own are among them: they are held while a thread is
 * started or a library loaded), not on the heap. After the threads are made, before they go. */
void tt_mutexes_reown(struct tt_state *state);

#endif
