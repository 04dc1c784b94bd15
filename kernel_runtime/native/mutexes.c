/* mutexes.c: see mutexes.h. */
#include "mutexes.h"

#include "procmap.h"

#include <elf.h>
#include <link.h>

enum kind { KIND_RECURSIVE = 1, KIND_ERRORCHECK = 2 }; /* PTHREAD_MUTEX_*_NP */

#define MOST_USERS 4096

/* The first members of pthread_mutex_t (glibc, sysdeps/nptl/bits/struct_mutex.h, the same on both
 * machines). Within the data of a library, a locked one with such a kind and the id of one of our
 * threads is unlikely to be anything else. Elsewhere it is not: a Python integer of that value has
 * the same words, and the kernel may map the interpreter's memory right behind a library. */
struct mutex {
  uint32_t lock; /* 1: locked, 2: and waited for */
  uint32_t count;
  int32_t owner;
  uint32_t users;
  int32_t kind;
};

static int32_t new_id(const struct tt_state *state, int32_t id) {
  if (id == state->leader.tid) return (int32_t)SC(SYS_gettid);
  for (struct tt_slot *s = state->stopped.first; s; s = s->next)
    if (s->thread.tid == id) return s->woken_tid;
  return 0;
}

static void reown(const struct tt_state *state, uintptr_t start, uintptr_t end) {
  for (uintptr_t at = start; at + sizeof(struct mutex) <= end; at += 8) {
    struct mutex *m = (struct mutex *)at;
    if (m->lock - 1 > 1 || (m->kind != KIND_RECURSIVE && m->kind != KIND_ERRORCHECK)) continue;
    if (!m->users || m->users > MOST_USERS || m->owner <= 0) continue;
    int32_t id = new_id(state, m->owner);
    if (id) m->owner = id;
  }
}

/* Where the data of the library ends whose file is mapped from header on, zeroed data included;
 * 0: unknown (elf(5)). */
static uintptr_t end_of_data(const struct tt_maps_line *header) {
  const ElfW(Ehdr) *elf = (const ElfW(Ehdr) *)header->start;
  uintptr_t size = header->end - header->start, first = UINTPTR_MAX, end = 0;
  if (size < sizeof *elf || memcmp(elf->e_ident, ELFMAG, SELFMAG)) return 0;
  if (elf->e_phentsize != sizeof(ElfW(Phdr)) || elf->e_phoff > size) return 0;
  if ((size - elf->e_phoff) / sizeof(ElfW(Phdr)) < elf->e_phnum) return 0;
  const ElfW(Phdr) *p = (const ElfW(Phdr) *)(header->start + elf->e_phoff);
  for (int i = 0; i < elf->e_phnum; i++) {
    if (p[i].p_type != PT_LOAD) continue;
    if (p[i].p_vaddr < first) first = p[i].p_vaddr;
    if ((p[i].p_flags & PF_W) && p[i].p_vaddr + p[i].p_memsz > end)
      end = p[i].p_vaddr + p[i].p_memsz;
  }
  if (elf->e_type == ET_EXEC || !end) return end; /* addresses, where others have distances */
  return header->start - (first & ~(uintptr_t)(tt_page - 1)) + end;
}

void tt_mutexes_reown(struct tt_state *state) {
  struct tt_walk walk;
  struct tt_maps_line m, header = {0, 0, 0, 0, 0, 0, 0, {0, 0}, 0};
  uint64_t library = 0;  /* the file whose code was seen last: its data follows */
  uintptr_t zeroed = 0;  /* where a mapping would begin that is its zeroed data: no file is named */
  uintptr_t end = 0;     /* of all its data: other memory may lie right behind */
  if (state->maps_text.size)
    tt_walk_text(&walk, 0, &state->maps_text);
  else if (tt_walk_ask(&walk, 0, 1))
    return; /* it was answered at the freeze */
  while (tt_walk_next(&walk, &m) > 0) {
    if (m.ino && !m.offset && (m.prot & PROT_READ)) header = m;
    if (m.prot & PROT_EXEC) library = m.ino;
    int behind = !m.ino && m.start == zeroed && m.path.at == m.path.end;
    int data = m.ino && m.ino == library && m.ino == header.ino;
    zeroed = 0;
    if (m.shared || m.prot != (PROT_READ | PROT_WRITE) || !(behind || data)) continue;
    if (data) end = end_of_data(&header);
    reown(state, m.start, m.end < end ? m.end : end);
    if (data) zeroed = m.end;
  }
  tt_walk_end(&walk);
}
