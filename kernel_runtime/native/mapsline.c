/* mapsline.c: one line of /proc/self/maps. See memory.h. */
#include "memory.h"

static uint64_t device_number(uint64_t major, uint64_t minor) { /* as st_dev has it; makedev(3) */
  return (minor & 0xff) | (major & 0xfff) << 8 | (minor & ~0xffull) << 12 |
         (major & ~0xfffull) << 32;
}

/* "7f..-7f.. rw-s 00000000 00:01 1234      /path" (proc_pid_maps(5)) */
int tt_maps_next(struct tt_text *text, struct tt_maps_line *m) {
  struct tt_text line;
  if (!tt_text_line(text, &line)) return 0;
  m->start = tt_text_hex(&line);
  tt_text_skip(&line, "-");
  m->end = tt_text_hex(&line);
  struct tt_text perms = tt_text_word(&line);
  m->prot = m->shared = 0;
  for (; perms.at < perms.end; perms.at++) {
    m->prot |= *perms.at == 'r'   ? PROT_READ
               : *perms.at == 'w' ? PROT_WRITE
               : *perms.at == 'x' ? PROT_EXEC
                                  : 0;
    m->shared |= *perms.at == 's';
  }
  m->offset = tt_text_hex(&line);
  uint64_t major = tt_text_hex(&line);
  tt_text_skip(&line, ":");
  m->dev = device_number(major, tt_text_hex(&line));
  m->ino = tt_text_number(&line);
  tt_text_blanks(&line);
  m->path = line;
  return 1;
}
