/* rights.c: see rights.h. Raw system calls: they are of one thread, and only one is there. */
#include "rights.h"

#include <linux/capability.h>
#include <linux/prctl.h>

#define CAPABILITIES 64
#define KEEP_CAPABILITIES 0x10 /* SECBIT_KEEP_CAPS: set apart, without a privilege */

struct sets { /* as capset(2) of version 3 takes them: low words, then high ones */
  uint32_t effective, permitted, inheritable;
};

static void note_capabilities(struct tt_rights *r) {
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct sets sets[2];
  memset(sets, 0, sizeof sets);
  SC(SYS_capget, &header, sets);
  r->effective = sets[0].effective | (uint64_t)sets[1].effective << 32;
  r->permitted = sets[0].permitted | (uint64_t)sets[1].permitted << 32;
  r->inheritable = sets[0].inheritable | (uint64_t)sets[1].inheritable << 32;
  r->bounding = r->ambient = 0;
  for (int c = 0; c < CAPABILITIES; c++) {
    if (SC(SYS_prctl, PR_CAPBSET_READ, c, 0, 0, 0) == 1) r->bounding |= 1ull << c;
    if (SC(SYS_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, c, 0, 0) == 1)
      r->ambient |= 1ull << c;
  }
}

void tt_rights_note(struct tt_rights *r) {
  SC(SYS_getresuid, &r->users[0], &r->users[1], &r->users[2]);
  SC(SYS_getresgid, &r->groups[0], &r->groups[1], &r->groups[2]);
  r->file_user = (int32_t)SC(SYS_setfsuid, -1); /* refused: it tells what it is */
  r->file_group = (int32_t)SC(SYS_setfsgid, -1);
  r->count = (int32_t)SC(SYS_getgroups, TT_MOST_GROUPS, r->others);
  note_capabilities(r);
  r->secure_bits = (int32_t)SC(SYS_prctl, PR_GET_SECUREBITS, 0, 0, 0, 0) & ~KEEP_CAPABILITIES;
  r->keep_capabilities = (int32_t)SC(SYS_prctl, PR_GET_KEEPCAPS, 0, 0, 0, 0);
}

static long set_capabilities(uint64_t effective, uint64_t permitted, uint64_t inheritable) {
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct sets sets[2] = {
      {(uint32_t)effective, (uint32_t)permitted, (uint32_t)inheritable},
      {(uint32_t)(effective >> 32), (uint32_t)(permitted >> 32), (uint32_t)(inheritable >> 32)}};
  return SC(SYS_capset, &header, sets);
}

static void note_error(long r, int *error) {
  if (r < 0 && !*error) *error = (int)r;
}

static void set_users(const struct tt_rights *now, const struct tt_rights *r, int *error) {
  if (r->count >= 0 && (now->count != r->count ||
                        memcmp(now->others, r->others, (size_t)r->count * sizeof *r->others)))
    note_error(SC(SYS_setgroups, r->count, r->others), error);
  if (r->count < 0) note_error(-E2BIG, error);
  if (memcmp(now->groups, r->groups, sizeof r->groups))
    note_error(SC(SYS_setresgid, r->groups[0], r->groups[1], r->groups[2]), error);
  if (memcmp(now->users, r->users, sizeof r->users)) {
    SC(SYS_prctl, PR_SET_KEEPCAPS, 1, 0, 0, 0); /* until they are set to what they were */
    note_error(SC(SYS_setresuid, r->users[0], r->users[1], r->users[2]), error);
  }
  SC(SYS_setfsuid, r->file_user);
  SC(SYS_setfsgid, r->file_group);
}

static void set_bounds(const struct tt_rights *now, const struct tt_rights *r, int *error) {
  uint64_t dropped = now->bounding & ~r->bounding;
  for (int c = 0; c < CAPABILITIES; c++)
    if (dropped >> c & 1) note_error(SC(SYS_prctl, PR_CAPBSET_DROP, c, 0, 0, 0), error);
}

int tt_rights_restore(const struct tt_rights *r) {
  struct tt_rights now;
  int error = 0;
  tt_rights_note(&now);
  set_users(&now, r, &error);
  set_capabilities(now.permitted, now.permitted, now.inheritable); /* all that the rest may need */
  set_bounds(&now, r, &error);
  if (now.secure_bits != r->secure_bits)
    note_error(SC(SYS_prctl, PR_SET_SECUREBITS, r->secure_bits, 0, 0, 0), &error);
  uint64_t permitted = r->permitted & now.permitted;
  note_error(set_capabilities(r->effective & permitted, permitted, r->inheritable), &error);
  if (permitted != r->permitted) note_error(-EPERM, &error);
  for (int c = 0; c < CAPABILITIES; c++)
    if (r->ambient >> c & 1)
      note_error(SC(SYS_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, c, 0, 0), &error);
  SC(SYS_prctl, PR_SET_KEEPCAPS, r->keep_capabilities == 1, 0, 0, 0);
  return error;
}
