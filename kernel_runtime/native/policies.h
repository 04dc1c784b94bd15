/* policies.h: on which nodes memory is to lie (mbind(2), set_mempolicy(2)). A clone has the policies
 * of the thread that it is cloned from and of its memory; one that is loaded has none. */
#ifndef TT_POLICIES_H
#define TT_POLICIES_H

#include "sys.h"

#define TT_POLICY_WORDS 16 /* of a set of nodes: 1024, as Linux has at most */
#define TT_MOST_POLICIES 64

struct tt_policy {
  int32_t mode, reserved; /* with its flags; 0: none (MPOL_DEFAULT) */
  uint64_t nodes[TT_POLICY_WORDS];
};

struct tt_policies {
  struct tt_policy own; /* of the first thread */
  uint32_t count, more; /* more: mappings for which there was no room */
  struct {
    uint64_t start, end;
    struct tt_policy policy;
  } of_memory[TT_MOST_POLICIES];
};

/* Of the calling thread alone. 0 or -errno. */
int tt_policies_note_own(struct tt_policies *policies);

/* Of the calling thread and of all private memory. */
void tt_policies_note(struct tt_policies *policies);

/* 0, or -errno of the first that could not be set. */
int tt_policies_restore(const struct tt_policies *policies);

#endif
