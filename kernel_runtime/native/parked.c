/* parked.c: see parked.h. Raw system calls only. */
#include "parked.h"

#include <linux/un.h>

#include "image_list.h"
#include "pagemap.h"
#include "process.h"

#if TT_THREADS

#define RANDOM_BYTES 16
#define COPY_SIZE ((uint64_t)1 << 20)

#define LIBRARY_LEAST (256 << 10)
#define LIBRARIES_MOST 128 /* their descriptors are passed in one message: 253 at most (SCM_MAX_FD) */

#define MOST_LOST 1024
#define WIPE_ON_FORK 18
#define SEAL -1 /* no advice: mseal(2) */
#define GUARD_INSTALL 102 /* madvise(2), Linux 6.13 */
#define GUARD_REMOVE 103

/* Part of what is put back. */
static struct tt_parked parked;
static struct tt_kept kept;
static struct {
  struct tt_image_range range;
  int advice; /* madvise(2) */
} lost[MOST_LOST];
static uint32_t lost_count;

/* --- memory of its own ------------------------------------------------------------------------- */

/* Past the end of the file there is nothing to read; what lies there is zero afterwards. */
static uint64_t copy_contents(int memory, const struct tt_mapping *m, char *to) {
  uint64_t size = m->line.end - m->line.start, done = 0;
  while (done < size) {
    uint64_t part = size - done < COPY_SIZE ? size - done : COPY_SIZE;
    long n = SC(SYS_pread64, memory, to + done, part, m->line.start + done);
    if (n == -EINTR) continue;
    if (n <= 0) break;
    done += (uint64_t)n;
  }
  return done;
}

static int own(int memory, const struct tt_mapping *m, uint64_t *copied) {
  uint64_t size = m->line.end - m->line.start;
  int prot = m->kind == TT_UNREADABLE ? PROT_NONE : m->line.prot;
  long copy = tt_map_memory(size);
  if (tt_failed(copy)) return (int)copy;
  if (m->kind != TT_UNREADABLE) *copied += copy_contents(memory, m, (char *)copy);
  long r = SC(SYS_mprotect, copy, size, prot);
  /* in one step: this code may lie there, and is the same afterwards */
  if (!r) r = SC(SYS_mremap, copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, m->line.start);
  if (!tt_failed(r)) return 0;
  SC(SYS_munmap, copy, size);
  return (int)r;
}

static int is_of_file(const struct tt_mapping *m) {
  return !m->line.shared && m->line.path.at < m->line.path.end && m->line.path.at[0] == '/';
}

static int same_file(const struct tt_mapping *a, const struct tt_mapping *b) {
  return is_of_file(b) && a->line.ino == b->line.ino && a->line.dev == b->line.dev;
}

/* The end of a run of mappings of one file that stay as they are: those of a program or a large
 * library, which is there under its name. i where the one there does not. */
static size_t end_of_library(const struct tt_work *w, size_t i) {
  char path[4096];
  struct stat st;
  size_t end = i + 1;
  int executed = w->list[i].line.prot & PROT_EXEC;
  if (!is_of_file(&w->list[i])) return i;
  for (; end < w->count && same_file(&w->list[i], &w->list[end]); end++)
    executed |= w->list[end].line.prot & PROT_EXEC;
  if (!executed || !tt_find_file(&w->list[i], path, &st) || st.st_size < LIBRARY_LEAST) return i;
  return end;
}

/* Of private mappings of files those of libraries alone are left, which the store keeps a copy of: no
 * other file, and no mount, need be there again. Nothing but the stack is written to meanwhile: the
 * page of a variable may be the one that is copied. */
static int own_all(uint64_t *copied) {
  struct tt_work w;
  size_t libraries = 0;
  int error = tt_work_start(&w);
  int memory = error ? -1 : tt_open("/proc/self/mem", O_RDONLY);
  if (!error && memory < 0) error = memory;
  for (size_t i = 0; i < w.count && !error; i++) {
    const struct tt_mapping *m = &w.list[i];
    int is_file = m->line.path.at < m->line.path.end && m->line.path.at[0] != '[';
    if (m->line.shared || tt_is_special(m) || !is_file) continue;
    size_t end = libraries < LIBRARIES_MOST ? end_of_library(&w, i) : i;
    if (end > i) {
      libraries++;
      i = end - 1;
      continue;
    }
    error = own(memory, m, copied);
  }
  tt_close(memory);
  tt_work_end(&w);
  return error;
}

static int note_lost(uint64_t start, uint64_t end, int advice) {
  if (lost_count == MOST_LOST) return -E2BIG;
  lost[lost_count].range.start = start;
  lost[lost_count].range.size = end - start;
  lost[lost_count++].advice = advice;
  return 0;
}

/* Advice that CRIU 4.1 does not give again. Nor can it read guard pages: they are taken away until the
 * clone has been put back. */
static int note_advice(void) {
  struct tt_work w;
  struct tt_part part = {0, 0, 0};
  int error = tt_work_start(&w);
  lost_count = 0;
  for (size_t i = 0; i < w.count && !error; i++) {
    const struct tt_mapping *m = &w.list[i];
    if (m->line.shared || tt_is_special(m)) continue;
    if (m->advice & TT_ADVICE_WIPEONFORK) error = note_lost(m->line.start, m->line.end, WIPE_ON_FORK);
    for (uint64_t at = m->line.start;
         !error && tt_scan(w.pagemap, at, m->line.end, 0, 0, TT_PAGE_GUARD, &part) == 1; at = part.end) {
      error = note_lost(part.start, part.end, GUARD_INSTALL);
      if (!error) error = (int)SC(SYS_madvise, part.start, part.end - part.start, GUARD_REMOVE);
    }
    if (!error && m->advice & TT_ADVICE_SEALED) error = note_lost(m->line.start, m->line.end, SEAL);
  }
  tt_work_end(&w);
  return error;
}

static void advise_again(void) {
  for (uint32_t i = 0; i < lost_count; i++)
    if (lost[i].advice == SEAL)
      SC(TT_MSEAL, lost[i].range.start, lost[i].range.size, 0);
    else
      SC(SYS_madvise, lost[i].range.start, lost[i].range.size, lost[i].advice);
}

/* --- before ------------------------------------------------------------------------------------ */

static int make_name(void) {
  static const char digits[] = "0123456789abcdef";
  unsigned char random[RANDOM_BYTES];
  char *to = parked.name;
  if (SC(SYS_getrandom, random, sizeof random, 0) != (long)sizeof random) return -EAGAIN;
  memcpy(to, "tt-", 3);
  to += 3;
  for (size_t i = 0; i < sizeof random; i++) {
    *to++ = digits[random[i] >> 4];
    *to++ = digits[random[i] & 15];
  }
  *to = 0;
  return 0;
}

static void say(int fd) {
  long n = SC(SYS_sendto, fd, &parked, sizeof parked, MSG_NOSIGNAL, 0, 0);
  while (parked.error || n < 0) SC(SYS_exit_group, 1); /* nobody waits for it */
}

static void prepare(struct tt_state *state) {
  uint64_t copied = 0;
  memset(&parked, 0, sizeof parked);
  parked.pid = (int32_t)SC(SYS_getpid);
  parked.highest_id = tt_highest_id(state);
  if (parked.highest_id < (uint64_t)parked.pid) parked.highest_id = (uint64_t)parked.pid;
  SC(SYS_setsid);
  int error = make_name();
  if (!error) error = own_all(&copied);
  if (!error) error = note_advice();
  /* the file of the program, where it is to be found now, unless it is mapped still */
  tt_kept_note(&kept);
  if (!error) parked.flags = tt_kept_places(&kept);
  parked.copied = copied;
  parked.error = -error;
}

/* --- after ------------------------------------------------------------------------------------- */

static int connect_to_name(void) {
  struct sockaddr_un address;
  size_t n = strlen(parked.name);
  memset(&address, 0, sizeof address);
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path + 1, parked.name, n);
  int fd = (int)SC(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return fd;
  long r = SC(SYS_connect, fd, &address, offsetof(struct sockaddr_un, sun_path) + 1 + n);
  if (!r) return fd;
  tt_close(fd);
  return (int)r;
}

static int receive(int fd, struct tt_unpark *told) {
  char control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8)));
  struct cmsghdr header;
  struct iovec data = {told, sizeof *told};
  struct msghdr message;
  int passed;
  memset(&message, 0, sizeof message);
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  long n = SC(SYS_recvmsg, fd, &message, MSG_CMSG_CLOEXEC);
  memset(&header, 0, sizeof header);
  if (message.msg_controllen >= sizeof header) memcpy(&header, control, sizeof header);
  if (n != (long)sizeof *told || told->size != sizeof *told || header.cmsg_type != SCM_RIGHTS ||
      message.msg_flags & MSG_CTRUNC)
    return n < 0 ? (int)n : -EPROTO;
  memcpy(&passed, control + sizeof header, sizeof passed);
  return passed;
}

static int return_to_service(struct tt_state *state) {
  struct tt_unpark told;
  int fd = connect_to_name();
  int listen_fd = fd < 0 ? fd : receive(fd, &told);
  while (listen_fd < 0) SC(SYS_exit_group, 1); /* whoever has put it back gave up */
  state->freeze->supervisor_pid = told.supervisor_pid;
  advise_again();
  parked.flags = tt_kept_restore(&kept); /* timer slack, processors: not all programs do */
  parked.pid = (int32_t)SC(SYS_getpid);
  tt_process_dim();
  say(fd);
  tt_close(fd);
  return listen_fd;
}

int tt_park(struct tt_state *state, int fd) {
  uint64_t awaited = 1ull << (TT_PARK_SIGNAL - 1);
  prepare(state);
  say(fd);
  tt_close(fd);
  while (SC(SYS_rt_sigtimedwait, &awaited, 0, 0, 8) != TT_PARK_SIGNAL) {}
  return return_to_service(state);
}

#else

int tt_park(struct tt_state *state, int fd) {
  (void)state, (void)fd;
  for (;;) SC(SYS_exit_group, 1);
}

#endif
