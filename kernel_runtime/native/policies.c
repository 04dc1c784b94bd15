/* policies.c: see policies.h. Numbers: linux/mempolicy.h. */
#include "policies.h"

#include "procmap.h"

#define NODES (TT_POLICY_WORDS * 64)
#define OF_ADDRESS 2 /* MPOL_F_ADDR */
#define MOVE 2       /* MPOL_MF_MOVE: pages that are there, too */
#define TEXT_SIZE ((size_t)16 << 20)

static long ask(struct tt_policy *policy, uintptr_t at, long flags) {
  memset(policy, 0, sizeof *policy);
  return SC(SYS_get_mempolicy, &policy->mode, policy->nodes, NODES, at, flags);
}

static void note(struct tt_policies *p, const struct tt_maps_line *m) {
  struct tt_policy found;
  if (m->shared || ask(&found, m->start, OF_ADDRESS) || !found.mode) return;
  if (p->count == TT_MOST_POLICIES) {
    p->more++;
    return;
  }
  p->of_memory[p->count].start = m->start;
  p->of_memory[p->count].end = m->end;
  p->of_memory[p->count++].policy = found;
}

/* The text lies in shared memory: it is no part of an image that is written meanwhile. */
static char *read_maps(struct tt_text *text) {
  long room = SC(SYS_mmap, 0, TEXT_SIZE, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), n;
  if (tt_failed(room)) return 0;
  int fd = tt_open("/proc/self/maps", O_RDONLY);
  size_t used = 0;
  while (fd >= 0 && (n = tt_retry_read(fd, (char *)room + used, TEXT_SIZE - used)) > 0)
    used += (size_t)n;
  tt_close(fd);
  text->at = (char *)room;
  text->end = text->at + used;
  return (char *)room;
}

int tt_policies_note_own(struct tt_policies *p) { return (int)ask(&p->own, 0, 0); }

void tt_policies_note(struct tt_policies *p) {
  struct tt_text text;
  struct tt_maps_line line;
  p->count = p->more = 0;
  if (tt_policies_note_own(p)) return; /* a kernel that has no nodes */
  char *room = read_maps(&text);
  if (!room) return;
  while (tt_maps_next(&text, &line)) note(p, &line);
  SC(SYS_munmap, room, TEXT_SIZE);
}

int tt_policies_restore(const struct tt_policies *p) {
  long error = p->more ? -E2BIG : 0, r;
  if (p->own.mode) error = SC(SYS_set_mempolicy, p->own.mode, p->own.nodes, NODES);
  for (uint32_t i = 0; i < p->count; i++) {
    const struct tt_policy *policy = &p->of_memory[i].policy;
    r = SC(SYS_mbind, p->of_memory[i].start, p->of_memory[i].end - p->of_memory[i].start,
           policy->mode, policy->nodes, NODES, MOVE);
    if (r && !error) error = r;
  }
  return (int)error;
}
