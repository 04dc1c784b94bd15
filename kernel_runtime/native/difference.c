/* difference.c: a difference is written in the live process, and taken in a clone of its base. See
 * difference.h; difference_look.c finds what is to be written. */
#include "difference_parts.h"

#include "hold.h"
#include "process.h"
#include "wake.h"

#if TT_THREADS

#define FORMAT 0x5454444946463031u

static struct tt_context context;

static void reply(int error) {
  const struct tt_difference_order *order = &tt_scratch->order;
  tt_answer(order->connection, error, (int32_t)SC(SYS_getpid), order->started,
            error ? TT_STEP_MEMORY : TT_STEP_NONE);
}

/* --- in the live process ---------------------------------------------------------------------- */

static int put_all(int fd, struct iovec *pieces, size_t count, uint64_t at) {
  while (count) {
    long n = SC(SYS_pwritev, fd, pieces, count, at, at >> 32);
    if (n <= 0) return n < 0 ? (int)n : -EIO;
    at += (uint64_t)n;
    while (count && (size_t)n >= pieces->iov_len) {
      n -= (long)pieces->iov_len;
      pieces++;
      count--;
    }
    if (count) {
      pieces->iov_base = (char *)pieces->iov_base + n;
      pieces->iov_len -= (size_t)n;
    }
  }
  return 0;
}

/* Bytes of the file, or -errno. */
static int64_t write_down(int fd, uint64_t from) {
  const struct tt_runs *present = &tt_scratch->present, *copied = &tt_scratch->copied;
  struct iovec *pieces = tt_scratch->pieces;
  size_t lists = (present->count + copied->count) * sizeof(struct tt_run), count = 0;
  uint64_t at = tt_whole_pages(sizeof tt_scratch->head + lists), bytes = 0;
  struct tt_difference_head head = {FORMAT, tt_page, present->count, copied->count, at};
  tt_scratch->head = head;
  pieces[0] = (struct iovec){&tt_scratch->head, sizeof tt_scratch->head};
  pieces[1] = (struct iovec){(void *)present->run, present->count * sizeof(struct tt_run)};
  pieces[2] = (struct iovec){(void *)copied->run, copied->count * sizeof(struct tt_run)};
  int error = put_all(fd, pieces, 3, from);
  for (size_t i = 0; i < copied->count && !error; i++) {
    size_t size = copied->run[i].end - copied->run[i].start;
    pieces[count++] = (struct iovec){(void *)copied->run[i].start, size};
    bytes += size;
    if (count < TT_PIECES && i + 1 < copied->count) continue;
    error = put_all(fd, pieces, count, from + at);
    at += bytes;
    bytes = count = 0;
  }
  return error ? error : (int64_t)at;
}

int64_t tt_difference_write(struct tt_state *state, int *listen_fd) {
  tt_process_note_score(state);
  /* before the look: what is written after it is noted only where something was written before */
  if (tt_context_save(&context)) {
    /* in the clone of the base, which has this memory now */
    state->rseq_free = tt_scratch->rseq_free;
    state->dumpable = 1; /* else there would be no difference */
    *listen_fd = tt_scratch->order.listen_fd;
    reply(0);
    tt_close(tt_scratch->order.connection);
    tt_close(tt_scratch->order.fd);
    return 0;
  }
  state->freeze->difference_why = tt_look_at_all(state);
  if (state->freeze->difference_why) return 0;
  if (state->freeze->hold_fd >= 0 && tt_hold_begin(state, 0)) return 0; /* the clone says why */
  return write_down(state->freeze->difference_fd, state->freeze->difference_at);
}

/* --- in a clone of the base ------------------------------------------------------------------- */

/* From here on nothing but the scratch and constants may be used: all other memory is replaced. */

__attribute__((noreturn)) static void give_up(int error) {
  reply(error);
  for (;;) SC(SYS_exit_group, 1);
}

static int read_all(const struct tt_scratch *s, void *to, size_t size, uint64_t at) {
  for (char *p = to; size;) {
    long n = SC(SYS_pread64, s->order.fd, p, size, s->order.at + at);
    if (n <= 0) return n < 0 ? (int)n : -EIO;
    p += n;
    at += (uint64_t)n;
    size -= (size_t)n;
  }
  return 0;
}

static const struct tt_wanted private_pages = {TT_PAGE_FILE | TT_PAGE_ZERO, TT_ANY_PAGE, TT_ANY_PAGE};

/* Give back what this clone has there and the live process has not: it has given it back since the
 * base, or it is this one's own. */
static int drop_others(struct tt_scratch *s, int pagemap, uintptr_t at, uintptr_t end) {
  const struct tt_run *next = s->present.run, *last = next + s->present.count;
  while (at < end) {
    long n = tt_scan_kinds(pagemap, &at, end, &private_pages, s->parts, TT_PARTS);
    if (n < 0) return (int)n;
    for (long i = 0; i < n; i++) {
      uintptr_t from = s->parts[i].start, to = s->parts[i].end;
      while (from < to) {
        while (next < last && next->end <= from) next++;
        uintptr_t until = next < last && next->start < to ? next->start : to;
        if (from < until) SC(SYS_madvise, from, until - from, MADV_DONTNEED);
        from = until < to ? next->end : to;
      }
    }
  }
  return 0;
}

static int put_back(struct tt_scratch *s) {
  uint64_t at = s->head.data_at;
  for (size_t i = 0; i < s->copied.count; i++) {
    const struct tt_run *r = &s->copied.run[i];
    int error = read_all(s, (void *)r->start, r->end - r->start, at);
    if (error) return error;
    at += r->end - r->start;
  }
  return 0;
}

static void turn(void *arg) {
  struct tt_scratch *s = arg;
  const uintptr_t own = (uintptr_t)s, end = tt_look_end();
  int pagemap = tt_open("/proc/self/pagemap", O_RDONLY);
  int error = pagemap < 0 ? pagemap : drop_others(s, pagemap, 0, own);
  if (!error) error = drop_others(s, pagemap, own + tt_scratch_size(), end);
  tt_close(pagemap);
  if (!error) error = put_back(s);
  if (error) give_up(error);
  tt_context_jump(&context);
}

static int read_lists(struct tt_scratch *s) {
  struct tt_difference_head *h = &s->head;
  int error = read_all(s, h, sizeof *h, 0);
  if (error) return error;
  if (h->format != FORMAT || h->page != tt_page || h->present > TT_MOST_RUNS || h->copied > TT_MOST_RUNS)
    return -EBADMSG;
  s->present.count = h->present;
  s->copied.count = h->copied;
  error = read_all(s, s->present.run, h->present * sizeof(struct tt_run), sizeof *h);
  if (error) return error;
  return read_all(s, s->copied.run, h->copied * sizeof(struct tt_run),
                  sizeof *h + h->present * sizeof(struct tt_run));
}

void tt_difference_take(const struct tt_state *state, const struct tt_difference_order *order) {
  tt_scratch->order = *order;
  tt_scratch->rseq_free = state->rseq_free;
  int error = read_lists(tt_scratch);
  if (error) give_up(error);
  tt_call_on(tt_scratch->stack + TT_STACK_SIZE, turn, tt_scratch);
}

#else

int64_t tt_difference_write(struct tt_state *state, int *listen_fd) {
  (void)state, (void)listen_fd;
  return 0;
}

void tt_difference_take(const struct tt_state *state, const struct tt_difference_order *order) {
  (void)state, (void)order;
  for (;;) SC(SYS_exit_group, 1);
}

#endif
