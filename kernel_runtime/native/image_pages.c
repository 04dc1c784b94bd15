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
 * own that is unmapped when it is freed (malloc/malloc.c, IS_MMAPPED). They are told by their headers.
 * As the data of somebody else could look like one, a block must also begin or end where a mapping
 * does, or adjoin a block that does: the kernel merges mappings, but seldom on both sides. The first
 * page stays anonymous, so that a block is never one mapping: mremap(2) would let it grow into what
 * follows in the file; of several mappings it refuses, and realloc copies. */
#include "image_list.h"
#include "pagemap.h"

#include <sys/uio.h>

#define LARGE_BLOCK ((uint64_t)1 << 20)
#define IS_MMAPPED 2
#define BLOCK_FLAGS 7
#define LARGE_MAPPING ((uint64_t)256 << 20)

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

/* --- mappings -------------------------------------------------------------------------------- */

static uint64_t nanoseconds(struct timespec t) {
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void put_mapping(struct tt_image_out *out, struct tt_mapping *m) {
  char path[4096];
  struct stat st;
  struct tt_image_map map;
  memset(&map, 0, sizeof map);
  map.start = m->line.start;
  map.end = m->line.end;
  map.prot = m->kind == TT_UNREADABLE ? PROT_NONE : (uint32_t)m->line.prot;
  map.flags = m->flags;
  map.advice = m->advice;
  if (m->kind == TT_ANONYMOUS && m->line.path.at < m->line.path.end && m->line.path.at[0] != '[')
    m->kind = tt_find_file(m, path, &st) ? TT_OF_FILE : TT_COPIED;
  if (m->kind == TT_OF_FILE) {
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

/* --- lazy ranges ------------------------------------------------------------------------------ */

static int may_hold_blocks(const struct tt_mapping *m) {
  return m->line.prot == (PROT_READ | PROT_WRITE) && !(m->flags & MAP_GROWSDOWN) &&
         (m->kind == TT_COPIED ||
          (m->kind == TT_ANONYMOUS && m->line.path.at == m->line.path.end));
}

static void find_groups(struct tt_work *w) {
  for (size_t i = 0, next; i < w->count; i = next) {
    next = i + 1;
    if (!may_hold_blocks(&w->list[i])) continue;
    while (next < w->count && may_hold_blocks(&w->list[next]) &&
           w->list[next].line.start == w->list[next - 1].line.end)
      next++;
    for (size_t k = i; k < next; k++) {
      w->list[k].group_start = w->list[i].line.start;
      w->list[k].group_end = w->list[next - 1].line.end;
    }
  }
}

/* A page at that address, whose bytes are at from, may be the first of a block. */
static void note_block(struct tt_work *w, const struct tt_mapping *m, uint64_t at,
                       const char *from) {
  uint64_t header[2]; /* size of the block before, which is 0 for these; own size and flags */
  memcpy(header, from, sizeof header);
  uint64_t size = header[1] & ~(uint64_t)BLOCK_FLAGS;
  if (header[0] || (header[1] & BLOCK_FLAGS) != IS_MMAPPED || size % tt_page ||
      size < LARGE_BLOCK || at >= m->group_end || size > m->group_end - at)
    return;
  struct tt_block *last = w->blocks_count ? &w->blocks[w->blocks_count - 1] : 0;
  if ((last && at < last->end) || w->blocks_count == w->blocks_most) return;
  struct tt_block block = {at, at + size, 0};
  w->blocks[w->blocks_count++] = block;
}

static void put_lazy(struct tt_work *w, struct tt_image_out *out) {
  size_t i = 0;
  for (size_t k = 0; k < w->count; k++) {
    const struct tt_mapping *m = &w->list[k];
    while (i < w->blocks_count && w->blocks[i].end < m->line.start) i++;
    for (size_t n = i; n < w->blocks_count && w->blocks[n].start <= m->line.end; n++) {
      struct tt_block *b = &w->blocks[n];
      b->accepted |= b->start == m->line.start || b->end == m->line.start ||
                     b->start == m->line.end || b->end == m->line.end;
    }
  }
  for (size_t n = 1; n < w->blocks_count; n++)
    if (w->blocks[n - 1].accepted && w->blocks[n - 1].end == w->blocks[n].start)
      w->blocks[n].accepted = 1;
  for (size_t n = w->blocks_count; n-- > 1;)
    if (w->blocks[n].accepted && w->blocks[n - 1].end == w->blocks[n].start)
      w->blocks[n - 1].accepted = 1;
  for (size_t n = 0; n < w->blocks_count; n++)
    if (w->blocks[n].accepted)
      put_range(out, TT_IMAGE_LAZY, w->blocks[n].start + tt_page, w->blocks[n].end, 0);
}

/* --- contents ---------------------------------------------------------------------------------- */

/* The pages of [start, end), which is within one piece and whose bytes are at from. */
static void put_pages(struct tt_work *w, struct tt_image_out *out, const struct tt_mapping *m,
                      uint64_t start, uint64_t end, const char *from) {
  uint64_t run = start;
  for (uint64_t at = start; at < end && m->kind != TT_OF_FILE; at += tt_page) {
    if (m->group_end) note_block(w, m, at, from + (at - start));
    if (is_zero(from + (at - start))) {
      put_range(out, TT_IMAGE_PAGES, run, at, from + (run - start));
      run = at + tt_page;
    }
  }
  put_range(out, TT_IMAGE_PAGES, run, end, from + (run - start));
}

static uint64_t end_of_piece(uint64_t at, uint64_t end) {
  uint64_t next = (at & ~(TT_IMAGE_PIECE - 1)) + TT_IMAGE_PIECE;
  return next < end ? next : end;
}

/* By a file in between: where a mapped file has ended, writing from it fails, reading it kills. */
static void put_copied(struct tt_work *w, struct tt_image_out *out, const struct tt_mapping *m) {
  for (uint64_t at = m->line.start, next; at < m->line.end && !out->error; at = next) {
    next = end_of_piece(at, m->line.end);
    long n = SC(SYS_pwrite64, w->piece_fd, at, next - at, 0);
    if (n < (long)tt_page) return;
    put_pages(w, out, m, at, at + ((uint64_t)n & ~(uint64_t)(tt_page - 1)), w->piece);
  }
}

static int is_private(uint64_t entry) {
  return entry & SWAPPED || (entry & (PRESENT | OF_FILE)) == PRESENT;
}

/* One run of pages that are alike, in entries[i] of those from start on. Returns the next i. */
static size_t put_run(struct tt_work *w, struct tt_image_out *out, const struct tt_mapping *m,
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
      put_pages(w, out, m, at, next, (const char *)(uintptr_t)at);
    }
  }
  return i;
}

static void put_populated(struct tt_work *w, struct tt_image_out *out, const struct tt_mapping *m,
                          uint64_t at, uint64_t end) {
  while (at < end && !out->error) {
    size_t count = (end - at) / tt_page;
    if (count > TT_ENTRIES) count = TT_ENTRIES;
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

/* The next populated part of [at, end). */
static struct tt_part find_populated(const struct tt_work *w, uint64_t at, uint64_t end) {
  struct tt_part part = {at, end, 0};
  uint64_t wanted = TT_PAGE_PRESENT | TT_PAGE_SWAPPED;
  long n = tt_scan(w->pagemap, at, end, 0, 0, wanted | TT_PAGE_GUARD, &part);
  if (n == -EINVAL) n = tt_scan(w->pagemap, at, end, 0, 0, wanted, &part); /* a kernel without guards */
  if (n == 0) part.start = part.end = end;
  if (n < 0) {
    part.start = at;
    part.end = end;
  }
  return part;
}

static void put_private(struct tt_work *w, struct tt_image_out *out, const struct tt_mapping *m) {
  uint64_t at = m->line.start, end = m->line.end;
  if (end - at < LARGE_MAPPING) {
    put_populated(w, out, m, at, end);
    return;
  }
  while (at < end && !out->error) {
    struct tt_part part = find_populated(w, at, end);
    put_populated(w, out, m, part.start, part.end);
    at = part.end;
  }
}

static void put_contents(struct tt_work *w, struct tt_image_out *out, const struct tt_mapping *m) {
  int readable = m->line.prot & PROT_READ;
  if (m->kind == TT_UNREADABLE) return;
  if (!readable && (m->private_bytes || m->kind == TT_COPIED))
    SC(SYS_mprotect, m->line.start, m->line.end - m->line.start, PROT_READ);
  if (m->kind == TT_COPIED)
    put_copied(w, out, m);
  else
    put_private(w, out, m);
}

void tt_image_pages(struct tt_image_out *out) {
  struct tt_work w;
  out->error = tt_work_start(&w);
  size_t kept = 0;
  for (size_t i = 0; i < w.count && !out->error; i++) {
    if (w.list[i].line.shared || tt_is_special(&w.list[i])) continue;
    w.list[kept] = w.list[i];
    put_mapping(out, &w.list[kept++]);
  }
  w.count = kept;
  find_groups(&w);
  for (size_t i = 0; i < w.count && !out->error; i++) put_contents(&w, out, &w.list[i]);
  if (!out->error) put_lazy(&w, out);
}
