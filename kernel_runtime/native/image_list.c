/* image_list.c: see image_list.h. */
#include "image_list.h"

#define TEXT_SIZE ((size_t)64 << 20)
#define LIST_SIZE ((size_t)16 << 20) /* vm.max_map_count is 65530 unless somebody has raised it */
#define BLOCKS_MOST ((size_t)1 << 16)
#define ENTRIES_AT (TEXT_SIZE + LIST_SIZE)
#define BLOCKS_AT (ENTRIES_AT + TT_ENTRIES * sizeof(uint64_t))
#define ALL_SIZE (BLOCKS_AT + BLOCKS_MOST * sizeof(struct tt_block))
#define PROT_BRANCH_TARGETS 0x10 /* PROT_BTI: branches only to where they are expected (Armv8.5) */
#define PAGE_FILE_SUFFIX ".ttpages"

static long map_shared(size_t size, int fd) {
  int flags = MAP_SHARED | MAP_NORESERVE | (fd < 0 ? MAP_ANONYMOUS : 0);
  return SC(SYS_mmap, 0, size, PROT_READ | PROT_WRITE, flags, fd, 0);
}

static int prepare(struct tt_work *w) {
  long m = map_shared(ALL_SIZE, -1);
  if (tt_failed(m)) return (int)m;
  w->text = (char *)m;
  w->list = (struct tt_mapping *)(w->text + TEXT_SIZE);
  w->entries = (uint64_t *)(w->text + ENTRIES_AT);
  w->blocks = (struct tt_block *)(w->text + BLOCKS_AT);
  w->blocks_most = BLOCKS_MOST;
  w->pagemap = tt_open("/proc/self/pagemap", O_RDONLY);
  if (w->pagemap < 0) return w->pagemap;
  w->piece_fd = (int)SC(SYS_memfd_create, "piece", 1 /* MFD_CLOEXEC */);
  if (w->piece_fd < 0) return w->piece_fd;
  long r = SC(SYS_ftruncate, w->piece_fd, TT_IMAGE_PIECE);
  if (!r) r = map_shared(TT_IMAGE_PIECE, w->piece_fd);
  if (tt_failed(r)) return (int)r;
  w->piece = (char *)r;
  return 0;
}

static int read_smaps(struct tt_work *w) {
  int fd = tt_open("/proc/self/smaps", O_RDONLY);
  if (fd < 0) return fd;
  long n;
  while ((n = tt_retry_read(fd, w->text + w->size, TEXT_SIZE - w->size)) > 0) w->size += (size_t)n;
  tt_close(fd);
  return n < 0 ? (int)n : w->size == TEXT_SIZE ? -E2BIG : 0;
}

/* --- the list ----------------------------------------------------------------------------------- */

static void read_flags(struct tt_mapping *m, struct tt_text flags) {
  for (;;) {
    struct tt_text word = tt_text_word(&flags);
    if (word.at == word.end) return;
    if (tt_text_is(word, "bt")) m->line.prot |= PROT_BRANCH_TARGETS;
    if (tt_text_is(word, "gd")) m->flags |= MAP_GROWSDOWN;
    if (tt_text_is(word, "nr")) m->flags |= MAP_NORESERVE;
    if (tt_text_is(word, "hg")) m->advice |= TT_ADVICE_HUGEPAGE;
    if (tt_text_is(word, "nh")) m->advice |= TT_ADVICE_NOHUGEPAGE;
    if (tt_text_is(word, "wf")) m->advice |= TT_ADVICE_WIPEONFORK;
    if (tt_text_is(word, "dd")) m->advice |= TT_ADVICE_DONTDUMP;
    if (tt_text_is(word, "mg")) m->advice |= TT_ADVICE_MERGEABLE;
    if (tt_text_is(word, "rr")) m->advice |= TT_ADVICE_RANDOM;
    if (tt_text_is(word, "sr")) m->advice |= TT_ADVICE_SEQUENTIAL;
    if (tt_text_is(word, "sl")) m->advice |= TT_ADVICE_SEALED;
    if (tt_text_is(word, "io") || tt_text_is(word, "pf")) m->kind = TT_UNREADABLE;
  }
}

int tt_is_special(const struct tt_mapping *m) {
  struct tt_text path = m->line.path;
  return tt_text_skip(&path, "[v") && !tt_text_ends(path, "heap]");
}

static int list_mappings(struct tt_work *w) {
  struct tt_text text = {w->text, w->text + w->size}, line;
  struct tt_mapping *m = 0;
  while (text.at < text.end) {
    if ((*text.at >= '0' && *text.at <= '9') || (*text.at >= 'a' && *text.at <= 'f')) {
      if ((w->count + 1) * sizeof *m > LIST_SIZE) return -E2BIG;
      m = &w->list[w->count++];
      memset(m, 0, sizeof *m);
      tt_maps_next(&text, &m->line);
      continue;
    }
    tt_text_line(&text, &line);
    if (!m) continue;
    if (tt_text_skip(&line, "Anonymous:") || tt_text_skip(&line, "Swap:"))
      m->private_bytes += tt_text_number(&line) << 10;
    else if (tt_text_skip(&line, "VmFlags:"))
      read_flags(m, line);
  }
  return 0;
}

int tt_work_start(struct tt_work *w) {
  memset(w, 0, sizeof *w);
  w->pagemap = w->piece_fd = -1;
  int error = prepare(w);
  if (!error) error = read_smaps(w);
  return error ? error : list_mappings(w);
}

void tt_work_end(struct tt_work *w) {
  if (w->text) SC(SYS_munmap, w->text, ALL_SIZE);
  if (w->piece) SC(SYS_munmap, w->piece, TT_IMAGE_PIECE);
  tt_close(w->pagemap);
  tt_close(w->piece_fd);
}

int tt_image_specials(struct tt_image_special specials[TT_IMAGE_SPECIALS]) {
  struct tt_work w;
  int count = 0;
  int error = tt_work_start(&w);
  for (size_t i = 0; i < w.count && !error; i++) {
    const struct tt_mapping *m = &w.list[i];
    size_t n = (size_t)(m->line.path.end - m->line.path.at);
    struct tt_text path = m->line.path;
    if (!tt_is_special(m) || tt_text_skip(&path, "[vsyscall]")) continue;
    if (count == TT_IMAGE_SPECIALS || n >= sizeof specials->name) return -ENOTSUP;
    specials[count].start = m->line.start;
    specials[count].end = m->line.end;
    memcpy(specials[count].name, m->line.path.at, n);
    specials[count++].name[n] = 0;
  }
  tt_work_end(&w);
  return error;
}

/* --- files ------------------------------------------------------------------------------------ */

/* The file that is mapped, where it is still to be had by its path: then 1. Device numbers are not
 * compared, as an overlay shows others in stat(2) than in maps; the inode of a mapped file is not
 * given to another one. */
int tt_find_file(const struct tt_mapping *m, char path[4096], struct stat *st) {
  size_t n = (size_t)(m->line.path.end - m->line.path.at);
  if (!n || n >= 4096 || m->line.path.at[0] != '/' || tt_text_ends(m->line.path, " (deleted)") ||
      tt_text_ends(m->line.path, PAGE_FILE_SUFFIX))
    return 0;
  memcpy(path, m->line.path.at, n);
  path[n] = 0;
  int fd = tt_open(path, O_RDONLY | O_NONBLOCK);
  if (fd < 0) return 0;
  long r = SC(SYS_fstat, fd, st);
  tt_close(fd);
  return !r && S_ISREG(st->st_mode) && st->st_ino == m->line.ino;
}
