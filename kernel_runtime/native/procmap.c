/* procmap.c: see procmap.h. */
#include "procmap.h"

/* struct procmap_query, as first published: headers older than 6.11 lack it. */
struct query {
  uint64_t size, flags, address;
  uint64_t start, end, vma_flags, page_size, offset, ino;
  uint32_t major, minor, name_size, build_id_size;
  uint64_t name, build_id;
};

#define PROCMAP_QUERY 0xc0686611ul /* _IOWR('f', 17, struct procmap_query) */
#define COVERING_OR_NEXT 16

static uint64_t device_number(uint64_t major, uint64_t minor) { /* as st_dev has it; makedev(3) */
  return (minor & 0xff) | (major & 0xfff) << 8 | (minor & ~0xffull) << 12 |
         (major & ~0xfffull) << 32;
}

/* "7f..-7f.. rw-s 00000000 00:01 1234      /path" */
int tt_maps_next(struct tt_text *text, struct tt_maps_line *m) {
  struct tt_text line;
  if (!tt_text_line(text, &line)) return 0;
  m->start = tt_text_hex(&line);
  tt_text_skip(&line, "-");
  m->end = tt_text_hex(&line);
  struct tt_text perms = tt_text_word(&line);
  m->prot = m->shared = 0;
  m->page = 0;
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

static int has_wanted(const struct tt_maps_line *m, uint32_t wanted) {
  return !(wanted & TT_WALK_SHARED && !m->shared) &&
         !(wanted & TT_WALK_READABLE && !(m->prot & PROT_READ)) &&
         !(wanted & TT_WALK_WRITABLE && !(m->prot & PROT_WRITE));
}

static int ask(struct tt_walk *walk, struct tt_maps_line *m) {
  struct query q;
  memset(&q, 0, sizeof q);
  q.size = sizeof q;
  q.flags = walk->wanted | COVERING_OR_NEXT;
  q.address = walk->at;
  q.name_size = (uint32_t)walk->name_size;
  q.name = walk->name_size ? (uintptr_t)walk->name : 0;
  long r = SC(SYS_ioctl, walk->fd, PROCMAP_QUERY, &q);
  if (r) return r == -ENOENT ? 0 : (int)r;
  walk->at = m->end = q.end;
  m->start = q.start;
  m->prot = (q.vma_flags & 1 ? PROT_READ : 0) | (q.vma_flags & 2 ? PROT_WRITE : 0) |
            (q.vma_flags & 4 ? PROT_EXEC : 0);
  m->shared = (q.vma_flags & 8) != 0;
  m->offset = q.offset;
  m->dev = device_number(q.major, q.minor);
  m->ino = q.ino;
  m->page = q.page_size;
  m->path.at = walk->name;
  m->path.end = walk->name + (walk->name_size && q.name_size ? q.name_size - 1 : 0); /* its zero */
  return 1;
}

int tt_walk_ask(struct tt_walk *walk, uint32_t wanted, int named) {
  struct tt_maps_line any;
  walk->wanted = walk->at = walk->name_size = 0;
  walk->fd = tt_open("/proc/self/maps", O_RDONLY);
  if (walk->fd < 0) return walk->fd;
  int r = ask(walk, &any); /* there is always one: this code */
  walk->at = 0;
  walk->wanted = wanted;
  walk->name_size = named ? sizeof walk->name : 0;
  if (r < 0) tt_walk_end(walk);
  return r < 0 ? r : 0;
}

void tt_walk_text(struct tt_walk *walk, uint32_t wanted, const struct tt_buffer *text) {
  walk->fd = -1;
  walk->wanted = wanted;
  walk->text.at = text->data;
  walk->text.end = text->data + text->size;
}

int tt_walk_next(struct tt_walk *walk, struct tt_maps_line *m) {
  if (walk->fd >= 0) return ask(walk, m);
  while (tt_maps_next(&walk->text, m))
    if (has_wanted(m, walk->wanted)) return 1;
  return 0;
}

void tt_walk_end(struct tt_walk *walk) {
  tt_close(walk->fd);
  walk->fd = -1;
}

uint64_t tt_mapped_pages(const char *proc) {
  char path[48], found[24];
  struct tt_text text = {found, found};
  size_t length = strlen(proc);
  if (length + sizeof "/statm" > sizeof path) return 0;
  memcpy(path, proc, length);
  memcpy(path + length, "/statm", sizeof "/statm");
  int fd = tt_open(path, O_RDONLY);
  long n = fd < 0 ? fd : tt_retry_read(fd, found, sizeof found);
  tt_close(fd);
  if (n > 0) text.end = found + n;
  return tt_text_number(&text);
}
