/* keys.h: the keys of pointer authentication (Armv8.3), with which return addresses on the stacks of
 * a process are signed. A clone has those of its maker; a program that is executed gets new ones, so
 * an image must bring its own. User code can neither read nor set them; ptrace(2) can, where the
 * kernel has CONFIG_CHECKPOINT_RESTORE: a helper does it for the process that made it (keys.c). */
#ifndef TT_KEYS_H
#define TT_KEYS_H

#include "sys.h"

struct tt_keys {
  uint64_t address[8], generic[2]; /* NT_ARM_PACA_KEYS, NT_ARM_PACG_KEYS: linux/elf.h */
  int32_t enabled;                 /* of the first four: prctl(2), PR_PAC_GET_ENABLED_KEYS; or -errno */
  int32_t error;                   /* 0 or -errno: could not be read */
  uint32_t has;                    /* enum tt_has_keys: none on other machines */
};

enum tt_has_keys { TT_HAS_ADDRESS_KEYS = 1, TT_HAS_GENERIC_KEYS = 2 };

/* Of the calling process; it has one thread. hwcap: AT_HWCAP. */
void tt_keys_note(struct tt_keys *keys, uint64_t hwcap);

/* 0 or -errno. No function may be under way that began under other keys, but the one that calls. */
int tt_keys_set(const struct tt_keys *keys);

#endif
