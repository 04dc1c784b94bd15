/* slurp.c: see slurp.h. */
#include "slurp.h"

#define TEXT_MOST ((size_t)8 << 20)

struct tt_slurped tt_slurp_maps(void) {
  struct tt_slurped s = {0, 0, 0};
  int fd = tt_open("/proc/self/maps", O_RDONLY);
  if (fd < 0) return s;
  for (;;) {
    if (s.room - s.used < 65536) {
      size_t more = s.room ? s.room * 2 : 1 << 18;
      long grown = more > TEXT_MOST ? -ENOMEM
                   : s.text         ? SC(SYS_mremap, s.text, s.room, more, MREMAP_MAYMOVE)
                                    : tt_map_memory(more);
      if (tt_failed(grown)) break;
      s.text = (char *)grown;
      s.room = more;
    }
    long n = tt_retry_read(fd, s.text + s.used, s.room - s.used);
    if (n <= 0) break;
    s.used += (size_t)n;
  }
  tt_close(fd);
  return s;
}

void tt_slurp_free(struct tt_slurped *s) {
  if (s->text) SC(SYS_munmap, s->text, s->room);
  s->text = 0;
}
