/* image_process.c: see image.h. Memory descriptors: prctl(2), PR_SET_MM_MAP; /proc/PID/stat:
 * proc_pid_stat(5). */
#include "copies.h"
#include "image.h"
#include "process.h"

#include <linux/prctl.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#define BARRIER_REGISTRATIONS 512 /* MEMBARRIER_CMD_GET_REGISTRATIONS, Linux 6.3 */
#define AUXV_HWCAP 16
#define AUXV_HWCAP2 26
#define AUXV_HWCAP3 29
#define CORE_FILTER "/proc/self/coredump_filter"
#define IOPRIO_WHO_PROCESS 1
#define PR_SET_MEMORY_MERGE_ 67 /* Linux 6.4 */
#define PR_GET_MEMORY_MERGE_ 68
#define PR_SET_TAGGED_ADDRESSES_ 55 /* Linux 5.4 */
#define PR_GET_TAGGED_ADDRESSES_ 56
#define TAGGED_ADDRESSES 1
#define TAGS_CHECKED 6
#define MOST_STAT 2048
#define MOST_STATUS 8192

enum { START_CODE, END_CODE, START_DATA, END_DATA, START_BREAK, BREAK, START_STACK, ARG_START };

/* Read a small file of /proc whole. Bytes read, or -errno. */
static long read_small(const char *path, char *to, size_t room) {
  int fd = tt_open(path, O_RDONLY);
  if (fd < 0) return fd;
  size_t used = 0;
  long n;
  while (used < room && (n = tt_retry_read(fd, to + used, room - used)) > 0) used += (size_t)n;
  tt_close(fd);
  return (long)used;
}

/* --- the machine ------------------------------------------------------------------------------ */

static uint64_t find(const uint64_t *auxv, size_t bytes, uint64_t type) {
  for (size_t i = 0; i + 1 < bytes / 8; i += 2)
    if (auxv[i] == type) return auxv[i + 1];
  return 0;
}

int tt_image_machine(struct tt_image_head *head) {
  uint64_t auxv[128];
  struct utsname names;
  static const char magic[8] = "TTIMAGE";
  memcpy(head->magic, magic, sizeof magic);
  head->format = TT_IMAGE_FORMAT;
  head->abi = TT_ABI;
  head->machine = TT_MACHINE;
  tt_cpu(head->cpu);
  long n = SC(SYS_uname, &names);
  if (n) return (int)n;
  memcpy(head->release, names.release, sizeof names.release);
  memcpy(head->version, names.version, sizeof names.version);
  n = read_small("/proc/self/auxv", (char *)auxv, sizeof auxv);
  if (n < 0) return (int)n;
  head->hwcap[0] = find(auxv, (size_t)n, AUXV_HWCAP);
  head->hwcap[1] = find(auxv, (size_t)n, AUXV_HWCAP2);
  head->hwcap[2] = find(auxv, (size_t)n, AUXV_HWCAP3);
  return 0;
}

/* --- noting ----------------------------------------------------------------------------------- */

static void note_places(struct tt_kept *kept) {
  char text[MOST_STAT];
  long n = read_small("/proc/self/stat", text, sizeof text);
  uint64_t fields[52], *to = kept->break_and_more;
  if (n <= 0) return;
  struct tt_text rest = {text, text + n};
  for (struct tt_text look = rest; look.at < look.end; look.at++)
    if (*look.at == ')') rest.at = look.at + 1; /* the name may hold any */
  for (size_t i = 3; i <= 51; i++) {
    struct tt_text word = tt_text_word(&rest);
    fields[i] = tt_text_number(&word);
  }
  to[START_CODE] = fields[26];
  to[END_CODE] = fields[27];
  to[START_DATA] = fields[45];
  to[END_DATA] = fields[46];
  to[START_BREAK] = fields[47];
  to[BREAK] = (uint64_t)SC(SYS_brk, 0);
  to[START_STACK] = fields[28];
  for (size_t i = 0; i < 4; i++) to[ARG_START + i] = fields[48 + i];
}

/* Which memory a core dump would hold: core(5). -1: not known. */
static int read_core_filter(void) {
  char text[16];
  long n = read_small(CORE_FILTER, text, sizeof text);
  struct tt_text rest = {text, text + n};
  return n > 0 ? (int)tt_text_hex(&rest) : -1;
}

static void set_core_filter(int filter) {
  char text[24];
  int fd = filter < 0 ? -1 : tt_open(CORE_FILTER, O_WRONLY);
  if (fd >= 0) SC(SYS_write, fd, text, tt_text_decimal(text, (uint64_t)filter));
  tt_close(fd);
}

/* Programs of seccomp(2) that are in force; Linux 5.9 and later say. */
static uint64_t count_filters(void) {
  char text[MOST_STATUS];
  long n = read_small("/proc/self/status", text, sizeof text);
  struct tt_text status = {text, text + (n > 0 ? n : 0)}, value;
  return tt_text_field(status, "Seccomp_filters:", &value) ? tt_text_number(&value) : 0;
}

void tt_kept_note_process(struct tt_kept *kept) {
  memset(kept, 0, sizeof *kept);
  for (int s = 1; s <= 64; s++) SC(SYS_rt_sigaction, s, 0, &kept->actions[s - 1], 8);
  for (int i = 0; i < 16; i++) SC(SYS_prlimit64, 0, i, 0, kept->limits[i]);
  note_places(kept);
  long n = read_small("/proc/self/auxv", (char *)kept->auxv, sizeof kept->auxv);
  kept->auxv_size = n > 0 ? (uint32_t)n : 0;
  kept->mask = (int)SC(SYS_umask, 077);
  SC(SYS_umask, kept->mask);
  kept->dumpable = (int)SC(SYS_prctl, PR_GET_DUMPABLE);
  kept->no_huge_pages = (int)SC(SYS_prctl, PR_GET_THP_DISABLE, 0, 0, 0, 0);
  kept->no_new_privileges = (int)SC(SYS_prctl, PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0);
  kept->personality = (int)SC(SYS_personality, 0xffffffff);
  SC(SYS_sched_getattr, 0, &kept->sched, sizeof kept->sched, 0);
  kept->disk_priority = (int)SC(SYS_ioprio_get, IOPRIO_WHO_PROCESS, 0);
  kept->merge = (int)SC(SYS_prctl, PR_GET_MEMORY_MERGE_, 0, 0, 0, 0);
  kept->machine_checks = (int)SC(SYS_prctl, PR_MCE_KILL_GET, 0, 0, 0, 0);
  kept->core_filter = read_core_filter();
  kept->slack = (uint64_t)SC(SYS_prctl, PR_GET_TIMERSLACK);
  n = SC(SYS_membarrier, BARRIER_REGISTRATIONS, 0, 0);
  kept->barriers = n > 0 ? (uint64_t)n : 0;
  SC(SYS_sched_getaffinity, 0, sizeof kept->processors, kept->processors);
  kept->thread_pointer = tt_thread_pointer();
  kept->filters = count_filters();
  kept->tagging = (int)SC(SYS_prctl, PR_GET_TAGGED_ADDRESSES_, 0, 0, 0, 0);
  tt_rights_note(&kept->rights);
  tt_policies_note_own(&kept->policies);
#ifdef TT_PERMITTED_STATE
  SC(SYS_arch_prctl, TT_PERMITTED_STATE, &kept->states);
#endif
  n = SC(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", kept->executable,
         sizeof kept->executable - 1);
  kept->executable[n > 0 ? n : 0] = 0;
}

void tt_kept_note(struct tt_kept *kept) {
  tt_kept_note_process(kept);
  tt_keys_note(&kept->keys, find(kept->auxv, kept->auxv_size, AUXV_HWCAP));
  tt_policies_note(&kept->policies);
}

/* --- restoring -------------------------------------------------------------------------------- */

/* Whether the program's file is the one that it was, by its name. */
static int is_executable(const struct tt_kept *kept) {
  char now[sizeof kept->executable];
  long n = SC(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", now, sizeof now);
  return n > 0 && (size_t)n == strlen(kept->executable) &&
         !memcmp(now, kept->executable, (size_t)n);
}

uint32_t tt_kept_places(const struct tt_kept *kept) {
  struct prctl_mm_map map;
  uint32_t failed = 0;
  memset(&map, 0, sizeof map);
  memcpy(&map, kept->break_and_more, sizeof kept->break_and_more);
  map.auxv = (__u64 *)(uintptr_t)kept->auxv;
  map.auxv_size = kept->auxv_size;
  int executable = tt_open(kept->executable, O_RDONLY);
  map.exe_fd = (uint32_t)executable;
  if (executable < 0 || SC(SYS_prctl, PR_SET_MM, PR_SET_MM_MAP, &map, sizeof map, 0)) {
    if (!is_executable(kept)) failed |= TT_LOADED_NO_EXECUTABLE; /* else it is mapped: EBUSY */
    map.exe_fd = (uint32_t)-1;
    if (SC(SYS_prctl, PR_SET_MM, PR_SET_MM_MAP, &map, sizeof map, 0)) failed |= TT_LOADED_NO_BREAK;
  }
  tt_close(executable);
  return failed;
}

/* A hard limit that cannot be had leaves what the session gives everybody. */
static void restore_limits(const struct tt_kept *kept) {
  for (int i = 0; i < 16; i++) {
    uint64_t now[2], wanted[2] = {kept->limits[i][0], kept->limits[i][1]};
    if (SC(SYS_prlimit64, 0, i, 0, now) || !SC(SYS_prlimit64, 0, i, wanted, 0)) continue;
    wanted[1] = now[1];
    if (wanted[0] > now[1]) wanted[0] = now[1];
    SC(SYS_prlimit64, 0, i, wanted, 0);
  }
}

uint32_t tt_kept_restore(const struct tt_kept *kept) {
  tt_set_thread_pointer(kept->thread_pointer);
  uint32_t failed = tt_kept_places(kept);
  for (int s = 1; s <= 64; s++)
    if (s != SIGKILL && s != SIGSTOP) SC(SYS_rt_sigaction, s, &kept->actions[s - 1], 0, 8);
  restore_limits(kept);
  SC(SYS_umask, kept->mask);
  SC(SYS_prctl, PR_SET_THP_DISABLE, kept->no_huge_pages, 0, 0, 0);
  if (kept->no_new_privileges > 0) SC(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  SC(SYS_personality, kept->personality);
  SC(SYS_sched_setattr, 0, &kept->sched, 0);
  SC(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, kept->disk_priority);
  if (kept->merge == 1) SC(SYS_prctl, PR_SET_MEMORY_MERGE_, 1, 0, 0, 0);
  SC(SYS_prctl, PR_MCE_KILL, PR_MCE_KILL_SET, kept->machine_checks, 0, 0);
  set_core_filter(kept->core_filter);
  SC(SYS_sched_setaffinity, 0, sizeof kept->processors, kept->processors);
  SC(SYS_prctl, PR_SET_TIMERSLACK, kept->slack);
  for (int bit = 0; bit < 32; bit++)
    if (kept->barriers >> bit & 1) SC(SYS_membarrier, 1 << bit, 0, 0);
#ifdef TT_REQUEST_STATE
  for (int bit = 0; bit < 64; bit++) /* those that need no asking answer with an error */
    if (kept->states >> bit & 1) SC(SYS_arch_prctl, TT_REQUEST_STATE, bit);
#endif
  if (kept->tagging > 0)
    SC(SYS_prctl, PR_SET_TAGGED_ADDRESSES_, kept->tagging & TAGGED_ADDRESSES, 0, 0, 0);
  if (kept->tagging > 0 && kept->tagging & TAGS_CHECKED) failed |= TT_LOADED_TAGS;
  if (count_filters() < kept->filters) failed |= TT_LOADED_NO_FILTER;
  if (tt_policies_restore(&kept->policies)) failed |= TT_LOADED_POLICIES;
  /* last: what goes before may need what it takes away */
  if (tt_rights_restore(&kept->rights)) failed |= TT_LOADED_RIGHTS;
  SC(SYS_prctl, PR_SET_DUMPABLE, kept->dumpable == 1); /* a change of rights has taken it back */
  return failed;
}
