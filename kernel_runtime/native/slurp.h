/* slurp.h: /proc/self/maps as text, in memory of its own; for use outside of a freeze. */
#ifndef TT_SLURP_H
#define TT_SLURP_H

#include "sys.h"

struct tt_slurped {
  char *text; /* 0 if it could not be read */
  size_t used, room;
};

struct tt_slurped tt_slurp_maps(void);
void tt_slurp_free(struct tt_slurped *s);

#endif
