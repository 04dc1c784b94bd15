/* image_pages.c: the mappings of a process and those of its pages that no file has.
 *
 * A page is written when it is private: present and not of a file, or swapped out, in
 * /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst). Zero pages of anonymous memory are
 * left out. A mapping of a file goes by reference when the file can be opened by its path and has the
 * inode that is mapped; else whole, and comes back as anonymous memory.
 *
 * Lazy ranges: memory that comes from a page file on demand is a private mapping of a file, in which
 * MADV_DONTNEED gives back the file's bytes instead of zeros. Allocators rely on the zeros, so only
 * memory is lazy that is never given back so: large blocks of glibc's malloc, each a mapping of its
 * own that is unmapped when it is freed (malloc/malloc.c, IS_MMAPPED). They are told by their headers,
 * which must tile the mapping from its start. */
#include "image.h"
#include "memory.h"

#include <sys/uio.h>

#define TEXT_SIZE ((size_t)64 << 20)
#define LIST_SIZE ((size_t)16 << 20) /* vm.max_map_count is 65530 unless somebody has raised it */
#define ENTRIES 8192
#define PRESENT (1ull << 63)
#define SWAPPED (1ull << 62)
#define OF_FILE (1ull << 61)
#define GUARD (1ull << 58) /* Linux 6.15 */
#define LARGE_BLOCK ((uint64_t)1 << 20)
#define IS_MMAPPED 2
#define BLOCK_FLAGS 7
#define LARGE_MAPPING ((uint64_t)256 << 20)
#define PAGE_FILE_SUFFIX ".ttpages"

/* PAGEMAP_SCAN, Linux 6.7 (linux/fs.h; our headers may be older): finds what is populated in a large
 * mapping, such as a reserved terabyte, without looking at every page. */
#define PAGEMAP_SCAN 0xc0606610u
#define PAGE_IS_PRESENT 8
#define PAGE_IS_SWAPPED 16
#define PAGE_IS_GUARD 256

struct scan {
  uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, any_of,
      returned;
};

struct region {
  uint64_t start, end, categories;
};

enum kind { ANONYMOUS, OF_A_FILE, COPIED, UNREADABLE };

struct mapping {
  struct tt_maps_line line;
  uint64_t private_bytes;
  uint32_t flags, advice;
  enum kind kind;
};

/* Shared memory: what is shared is not part of the image, and never merges with what is. */
struct work {
  char *text;
  size_t size;
  struct mapping *list;
  size_t count;
  uint64_t *entries;
  char *piece; /* a view of piece_fd */
  int piece_fd, pagemap;
};

static long map_shared(size_t size, int fd) {
  int flags = MAP_SHARED | MAP_NORESERVE | (fd < 0 ? MAP_ANONYMOUS : 0);
  return SC(SYS_mmap, 0, size, PROT_READ | PROT_WRITE, flags, fd, 0);
}

static int prepare(struct work *w) {
  long m = map_shared(TEXT_SIZE + LIST_SIZE + ENTRIES * 8, -1);
  if (tt_failed(m)) return (int)m;
  w->text = (char *)m;
  w->list = (struct mapping *)(w->text + TEXT_SIZE);
  w->entries = (uint64_t *)(w->text + TEXT_SIZE + LIST_SIZE);
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

static int read_smaps(struct work *w) {
  int fd = tt_open("/proc/self/smaps", O_RDONLY);
  if (fd < 0) return fd;
  long n;
  while ((n = tt_retry_read(fd, w->text + w->size, TEXT_SIZE - w->size)) > 0) w->size += (size_t)n;
  tt_close(fd);
  return n < 0 ? (int)n : w->size == TEXT_SIZE ? -E2BIG : 0;
}

/* --- writing ---------------------------------------------------------------------------------- */

void tt_image_put(struct tt_image_out *out, enum tt_image_tag tag, const void *data, size_t size,
                  const void *more, size_t more_size) {
  struct tt_image_record record = {tag, (uint32_t)size};
  struct iovec parts[3] = {{&record, sizeof record}, {(void *)data, size}, {(void *)more, more_size}};
  struct msghdr message;
  if (tag == TT_IMAGE_MAP) record.size += (uint32_t)more_size;
  memset(&message, 0, sizeof message);
  message.msg_iov = parts;
  message.msg_iovlen = 3;
  while (!out->error && message.msg_iovlen) {
    long n = SC(SYS_sendmsg, out->fd, &message, MSG_NOSIGNAL);
    if (n == -EINTR) continue;
    if (n < 0) {
      out->error = (int)n;
      return;
    }
    while (message.msg_iovlen && (size_t)n >= message.msg_iov->iov_len) {
      n -= (long)message.msg_iov->iov_len;
      message.msg_iov++;
      message.msg_iovlen--;
    }
    if (message.msg_iovlen) {
      message.msg_iov->iov_base = (char *)message.msg_iov->iov_base + n;
      message.msg_iov->iov_len -= (size_t)n;
    }
  }
}

/* --- the list ----------------------------------------------------------------------------------- */

static void read_flags(struct mapping *m, struct tt_text flags) {
  for (;;) {
    struct tt_text word = tt_text_word(&flags);
    if (word.at == word.end) return;
    if (tt_text_is(word, "gd")) m->flags |= MAP_GROWSDOWN;
    if (tt_text_is(word, "nr")) m->flags |= MAP_NORESERVE;
    if (tt_text_is(word, "hg")) m->advice |= TT_ADVICE_HUGEPAGE;
    if (tt_text_is(word, "nh")) m->advice |= TT_ADVICE_NOHUGEPAGE;
    if (tt_text_is(word, "wf")) m->advice |= TT_ADVICE_WIPEONFORK;
    if (tt_text_is(word, "dd")) m->advice |= TT_ADVICE_DONTDUMP;
    if (tt_text_is(word, "mg")) m->advice |= TT_ADVICE_MERGEABLE;
    if (tt_text_is(word, "io") || tt_text_is(word, "pf")) m->kind = UNREADABLE;
  }
}

static int is_special(const struct mapping *m) {
  struct tt_text path = m->line.path;
  return tt_text_skip(&path, "[v") && !tt_text_ends(path, "heap]");
}

static int list_mappings(struct work *w) {
  struct tt_text text = {w->text, w->text + w->size}, line;
  struct mapping *m = 0;
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

int tt_image_specials(struct tt_image_special specials[TT_IMAGE_SPECIALS]) {
  struct work w;
  int count = 0;
  memset(&w, 0, sizeof w);
  int error = prepare(&w);
  if (!error) error = read_smaps(&w);
  if (!error) error = list_mappings(&w);
  for (size_t i = 0; i < w.count && !error; i++) {
    const struct mapping *m = &w.list[i];
    size_t n = (size_t)(m->line.path.end - m->line.path.at);
    struct tt_text path = m->line.path;
    if (!is_special(m) || tt_text_skip(&path, "[vsyscall]")) continue;
    if (count == TT_IMAGE_SPECIALS || n >= sizeof specials->name) return -ENOTSUP;
    specials[count].start = m->line.start;
    specials[count].end = m->line.end;
    memcpy(specials[count].name, m->line.path.at, n);
    specials[count++].name[n] = 0;
  }
  if (w.text) SC(SYS_munmap, w.text, TEXT_SIZE + LIST_SIZE + ENTRIES * 8);
  if (w.piece) SC(SYS_munmap, w.piece, TT_IMAGE_PIECE);
  tt_close(w.pagemap);
  tt_close(w.piece_fd);
  return error;
}

/* --- files ------------------------------------------------------------------------------------ */

/* The file that is mapped, where it is still to be had by its path: then 1. Device numbers are not
 * compared, as an overlay shows others in stat(2) than in maps; the inode of a mapped file is not
 * given to another one. */
static int find_file(const struct mapping *m, char *path, struct stat *st) {
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

static uint64_t nanoseconds(struct timespec t) {
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void put_mapping(struct tt_image_out *out, struct mapping *m) {
  char path[4096];
  struct stat st;
  struct tt_image_map map;
  memset(&map, 0, sizeof map);
  map.start = m->line.start;
  map.end = m->line.end;
  map.prot = m->kind == UNREADABLE ? PROT_NONE : (uint32_t)m->line.prot;
  map.flags = m->flags;
  map.advice = m->advice;
  if (m->kind == ANONYMOUS && m->line.path.at < m->line.path.end && m->line.path.at[0] != '[')
    m->kind = find_file(m, path, &st) ? OF_A_FILE : COPIED;
  if (m->kind == OF_A_FILE) {
    map.offset = m->line.offset;
    map.file_size = (uint64_t)st.st_size;
    map.mtime_ns = nanoseconds(st.st_mtim);
    map.ctime_ns = nanoseconds(st.st_ctim);
    map.path_size = (uint32_t)strlen(path) + 1;
  }
  tt_image_put(out, TT_IMAGE_MAP, &map, sizeof map, path, map.path_size);
  out->maps++;
}

/* --- pages ------------------------------------------------------------------------------------ */

static int is_zero(const char *at) {
  const uint64_t *word = (const uint64_t *)at;
  for (size_t i = 0; i < tt_page / 8; i++)
    if (word[i]) return 0;
  return 1;
}

static void put_range(struct tt_image_out *out, enum tt_image_tag tag, uint64_t start, uint64_t end,
                      const void *data) {
  struct tt_image_range range = {start, end - start};
  if (start == end) return;
  tt_image_put(out, tag, &range, sizeof range, data, data ? end - start : 0);
  if (data) out->bytes += end - start;
}

/* The pages of [start, end), which is within one piece and whose bytes are at from. */
static void put_pages(struct tt_image_out *out, uint64_t start, uint64_t end, const char *from,
                      int zeros_count) {
  uint64_t run = start;
  for (uint64_t at = start; at < end && !zeros_count; at += tt_page)
    if (is_zero(from + (at - start))) {
      put_range(out, TT_IMAGE_PAGES, run, at, from + (run - start));
      run = at + tt_page;
    }
  put_range(out, TT_IMAGE_PAGES, run, end, from + (run - start));
}

static uint64_t end_of_piece(uint64_t at, uint64_t end) {
  uint64_t next = (at & ~(TT_IMAGE_PIECE - 1)) + TT_IMAGE_PIECE;
  return next < end ? next : end;
}

/* By a file in between: where a mapped file has ended, writing from it fails, reading it kills. */
static void put_copied(struct work *w, struct tt_image_out *out, const struct mapping *m) {
  for (uint64_t at = m->line.start, next; at < m->line.end && !out->error; at = next) {
    next = end_of_piece(at, m->line.end);
    long n = SC(SYS_pwrite64, w->piece_fd, at, next - at, 0);
    if (n < (long)tt_page) return;
    put_pages(out, at, at + ((uint64_t)n & ~(uint64_t)(tt_page - 1)), w->piece, 0);
  }
}

static int is_private(uint64_t entry) {
  return entry & SWAPPED || (entry & (PRESENT | OF_FILE)) == PRESENT;
}

/* One run of pages that are alike, in entries[i] of those from start on. Returns the next i. */
static size_t put_run(struct work *w, struct tt_image_out *out, const struct mapping *m,
                      uint64_t start, size_t i, size_t count) {
  size_t first = i;
  int private = is_private(w->entries[i]), guard = (w->entries[i] & GUARD) != 0;
  while (i < count && is_private(w->entries[i]) == private &&
         ((w->entries[i] & GUARD) != 0) == guard)
    i++;
  uint64_t at = start + first * tt_page, end = start + i * tt_page;
  if (guard) {
    put_range(out, TT_IMAGE_GUARD, at, end, 0);
  } else if (private) {
    for (uint64_t next; at < end && !out->error; at = next) {
      next = end_of_piece(at, end);
      put_pages(out, at, next, (const char *)(uintptr_t)at, m->kind == OF_A_FILE);
    }
  }
  return i;
}

static void put_populated(struct work *w, struct tt_image_out *out, const struct mapping *m,
                          uint64_t at, uint64_t end) {
  while (at < end && !out->error) {
    size_t count = (end - at) / tt_page;
    if (count > ENTRIES) count = ENTRIES;
    long n = SC(SYS_pread64, w->pagemap, w->entries, count * 8, at / tt_page * 8);
    if (n < 8) {
      out->error = n < 0 ? (int)n : -EIO;
      return;
    }
    count = (size_t)n / 8;
    for (size_t i = 0; i < count && !out->error;) i = put_run(w, out, m, at, i, count);
    at += count * tt_page;
  }
}

/* The next populated part of [*at, end); an empty one at the end. All of it where the kernel does
 * not tell. */
static struct region find_populated(const struct work *w, uint64_t at, uint64_t end) {
  struct region region = {at, end, 0};
  uint64_t wanted = PAGE_IS_PRESENT | PAGE_IS_SWAPPED;
  struct scan scan = {sizeof scan, 0, at, end, 0, (uintptr_t)&region, 1, 0, 0, 0,
                      wanted | PAGE_IS_GUARD, 0};
  scan.returned = wanted;
  long n = SC(SYS_ioctl, w->pagemap, PAGEMAP_SCAN, &scan);
  if (n == -EINVAL) { /* a kernel that does not tell guards */
    scan.any_of = wanted;
    n = SC(SYS_ioctl, w->pagemap, PAGEMAP_SCAN, &scan);
  }
  if (n == 0) region.start = region.end = end;
  if (n < 0) {
    region.start = at;
    region.end = end;
  }
  return region;
}

static void put_private(struct work *w, struct tt_image_out *out, const struct mapping *m) {
  uint64_t at = m->line.start, end = m->line.end;
  if (end - at < LARGE_MAPPING) {
    put_populated(w, out, m, at, end);
    return;
  }
  while (at < end && !out->error) {
    struct region region = find_populated(w, at, end);
    put_populated(w, out, m, region.start, region.end);
    at = region.end;
  }
}

static void put_contents(struct work *w, struct tt_image_out *out, const struct mapping *m) {
  int readable = m->line.prot & PROT_READ;
  if (m->kind == UNREADABLE) return;
  if (!readable && (m->private_bytes || m->kind == COPIED))
    SC(SYS_mprotect, m->line.start, m->line.end - m->line.start, PROT_READ);
  if (m->kind == COPIED)
    put_copied(w, out, m);
  else
    put_private(w, out, m);
}

/* --- lazy ranges ------------------------------------------------------------------------------ */

static int may_be_block(const struct mapping *m) {
  return m->line.prot == (PROT_READ | PROT_WRITE) && (m->kind == ANONYMOUS || m->kind == COPIED) &&
         !(m->flags & MAP_GROWSDOWN) && (m->line.path.at == m->line.path.end || m->kind == COPIED);
}

static void put_lazy(struct work *w, struct tt_image_out *out) {
  for (size_t i = 0, next; i < w->count; i = next) {
    next = i + 1;
    if (!may_be_block(&w->list[i])) continue;
    while (next < w->count && may_be_block(&w->list[next]) &&
           w->list[next].line.start == w->list[next - 1].line.end)
      next++;
    uint64_t at = w->list[i].line.start, end = w->list[next - 1].line.end;
    for (;;) {
      uint64_t header[2];
      if (at >= end || SC(SYS_pwrite64, w->piece_fd, at, sizeof header, 0) != sizeof header) break;
      memcpy(header, w->piece, sizeof header);
      uint64_t size = header[1] & ~(uint64_t)BLOCK_FLAGS;
      if (header[0] || (header[1] & BLOCK_FLAGS) != IS_MMAPPED || size % tt_page || !size ||
          size > end - at)
        break;
      if (size >= LARGE_BLOCK) put_range(out, TT_IMAGE_LAZY, at, at + size, 0);
      at += size;
    }
  }
}

void tt_image_pages(struct tt_image_out *out) {
  struct work w;
  memset(&w, 0, sizeof w);
  out->error = prepare(&w);
  if (!out->error) out->error = read_smaps(&w);
  if (!out->error) out->error = list_mappings(&w);
  size_t kept = 0;
  for (size_t i = 0; i < w.count && !out->error; i++) {
    if (w.list[i].line.shared || is_special(&w.list[i])) continue;
    w.list[kept] = w.list[i];
    put_mapping(out, &w.list[kept++]);
  }
  w.count = kept;
  if (!out->error) put_lazy(&w, out);
  for (size_t i = 0; i < w.count && !out->error; i++) put_contents(&w, out, &w.list[i]);
}
