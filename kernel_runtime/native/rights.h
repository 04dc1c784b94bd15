/* rights.h: who a process is for the kernel, and what it may do: credentials(7), capabilities(7). A
 * clone has them from the process it is cloned from; one that a program was started for has not. */
#ifndef TT_RIGHTS_H
#define TT_RIGHTS_H

#include "sys.h"

#define TT_MOST_GROUPS 256

struct tt_rights {
  uint32_t users[3], groups[3]; /* real, effective, saved */
  int32_t file_user, file_group, count; /* count: of others; -1: more than there is room for */
  uint32_t others[TT_MOST_GROUPS];
  uint64_t effective, permitted, inheritable, bounding, ambient; /* one bit for each capability */
  int32_t secure_bits, keep_capabilities;
};

void tt_rights_note(struct tt_rights *rights);

/* 0, or -errno of the first step that was refused; those after it are done all the same. */
int tt_rights_restore(const struct tt_rights *rights);

#endif
