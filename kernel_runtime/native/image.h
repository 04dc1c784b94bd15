/* image.h: a frozen process as bytes, and the loader that puts it back.
 *
 * TT_IMAGE clones the frozen process; the clone streams itself (image.c, image_pages.c): records, each a
 * struct tt_image_record and what its tag says. The store (kernel_runtime/store/images.py) makes a
 * plan and page files of it. The library is a program, too (loader.c): it is given both, builds the
 * memory anew and jumps to where the clone was, in a process that is frozen again.
 *
 * The plan is trusted by the loader: who passes it has authenticated it. */
#ifndef TT_IMAGE_H
#define TT_IMAGE_H

#include "keys.h"
#include "policies.h"
#include "rights.h"
#include "state.h"
#include "threads.h"

#define TT_IMAGE_FORMAT 1
#define TT_IMAGE_VDSO_MOST 16384
#define TT_IMAGE_SPECIALS 4
#define TT_IMAGE_PIECE ((uint64_t)1 << 20) /* no PAGES record crosses a multiple of this */

enum tt_image_tag {
  TT_IMAGE_HEAD = 1,  /* struct tt_image_head: the first */
  TT_IMAGE_MAP = 2,   /* struct tt_image_map, then the path, with a zero byte */
  TT_IMAGE_PAGES = 3, /* struct tt_image_range, then so many bytes of memory, not counted in size */
  TT_IMAGE_GUARD = 4, /* struct tt_image_range: MADV_GUARD_INSTALL */
  TT_IMAGE_LAZY = 5,  /* struct tt_image_range: may be mapped from a file, see image_pages.c */
  TT_IMAGE_END = 6    /* struct tt_image_end: the last */
};

struct tt_image_record {
  uint32_t tag, size;
};

struct tt_image_special { /* [vdso], [vvar], ...: memory of the kernel's */
  uint64_t start, end;
  char name[16];
};

struct tt_image_head {
  char magic[8]; /* "TTIMAGE" */
  uint32_t format, abi, machine, page;
  uint64_t landing;    /* address of struct tt_landing in the image */
  uint64_t context;    /* of what tt_context_save has filled */
  uint64_t highest_id; /* of the process and its threads */
  uint64_t hwcap[3];   /* AT_HWCAP, AT_HWCAP2, AT_HWCAP3 */
  uint32_t cpu[TT_CPU_WORDS];
  char release[72], version[72]; /* uname(2) */
  struct tt_image_special special[TT_IMAGE_SPECIALS];
  uint64_t vdso_size; /* of its pages, which may be larger than all there is in them */
  char vdso[TT_IMAGE_VDSO_MOST];
};

/* Without the zeros at its end. */
static inline size_t tt_vdso_used(const char *vdso, size_t size) {
  while (size && !vdso[size - 1]) size--;
  return size;
}

struct tt_image_map { /* a private mapping. From a file where there is a path */
  uint64_t start, end, offset;
  uint64_t file_size, mtime_ns, ctime_ns; /* of the file, as the clone sees it */
  uint32_t prot, flags;                   /* MAP_GROWSDOWN, MAP_NORESERVE */
  uint32_t advice;                        /* enum tt_advice, bits */
  uint32_t path_size;                     /* with the zero byte; 0: anonymous */
};

enum tt_advice {
  TT_ADVICE_HUGEPAGE = 1,
  TT_ADVICE_NOHUGEPAGE = 2,
  TT_ADVICE_WIPEONFORK = 4,
  TT_ADVICE_DONTDUMP = 8,
  TT_ADVICE_MERGEABLE = 16,
  TT_ADVICE_RANDOM = 32,
  TT_ADVICE_SEQUENTIAL = 64,
  TT_ADVICE_SEALED = 128 /* mseal(2): no advice, and given last */
};

#define TT_MSEAL 462 /* mseal(2), Linux 6.10: the same number on both machines */

struct tt_image_range {
  uint64_t start, size;
};

struct tt_image_end {
  int32_t error; /* 0 or an errno: then the image is not whole */
  uint32_t maps;
  uint64_t bytes; /* of pages */
};

/* The plan: this, then so many maps, runs and guards, then text. */
struct tt_plan {
  struct tt_image_head head;
  uint64_t size; /* of all */
  uint32_t maps, runs, guards, page_files;
};

struct tt_plan_map {
  struct tt_image_map map;
  uint64_t path; /* offset in the plan, where path_size is not 0 */
};

struct tt_plan_run { /* memory from a page file; sorted by start */
  uint64_t start, size, offset;
  uint32_t page_file, lazy; /* lazy: mapped; else read */
};

/* What the loader is told over its descriptor 3, a SOCK_SEQPACKET socket: first this, with the plan
 * and the listening socket; then one byte for each page file, with it. It answers once. */
struct tt_load {
  uint32_t size, page_files;
  int32_t supervisor_pid; /* as in struct tt_freeze, for the frozen process */
  uint32_t flags;         /* enum tt_load_flags */
};

enum tt_load_flags {
  TT_LOAD_KEEP_IDS = 1 /* keep clear of the ids of the image's process and threads; only in a pid
                        * namespace of our own: counting goes on behind them */
};

enum tt_loaded_flags { /* what was not put back, though the process is complete */
  TT_LOADED_NO_BREAK = 1,     /* program break and places of arguments */
  TT_LOADED_NO_EXECUTABLE = 2, /* /proc/self/exe */
  TT_LOADED_NO_FILTER = 4,     /* seccomp(2) */
  TT_LOADED_RIGHTS = 8,        /* user, groups or capabilities */
  TT_LOADED_POLICIES = 16,     /* of memory: mbind(2) */
  TT_LOADED_TAGS = 32          /* of memory (Armv8.5 MTE): they are not checked any more */
};

struct tt_loaded {
  int32_t error; /* 0 or an errno */
  int32_t pid;
  uint32_t flags; /* enum tt_loaded_flags */
  uint32_t reserved;
  char what[464]; /* with an error: which step, or the name of what differs */
};

/* Filled by the loader in the memory of the image. */
struct tt_landing {
  int32_t listen_fd, control_fd, supervisor_pid, reserved;
  uint64_t den, den_size; /* the loader's own memory, to be unmapped */
};

/* In the clone: write the image to fd and exit. In a process loaded from it: the listening socket. */
int tt_image_write(struct tt_state *state, int fd);

uint64_t tt_highest_id(const struct tt_state *state); /* of the process and its threads */

/* image_process.c: what the kernel keeps for a process, that a clone has from the one it is cloned
 * from and a program that is executed has not. */
struct tt_kept {
  struct tt_sigaction actions[64];
  uint64_t limits[16][2]; /* of setrlimit(2) */
  uint64_t break_and_more[11]; /* the addresses of struct prctl_mm_map */
  uint64_t auxv[64];
  uint32_t auxv_size;
  int mask; /* umask(2) */
  int dumpable, no_huge_pages, personality, no_new_privileges;
  int merge, core_filter, disk_priority, machine_checks, tagging;
  struct tt_sched sched; /* with the nice value */
  uint64_t slack, keeps, barriers, states; /* prctl(2), membarrier(2), ARCH_GET_XCOMP_PERM */
  uint64_t processors[16]; /* that it may run on: 1024 */
  uintptr_t thread_pointer;
  uint64_t filters; /* of seccomp(2), how many */
  struct tt_keys keys;
  struct tt_rights rights;
  struct tt_policies policies;
  char executable[4096];
};
void tt_kept_note(struct tt_kept *kept);
void tt_kept_note_process(struct tt_kept *kept); /* without keys, and policies of single mappings */
uint32_t tt_kept_places(const struct tt_kept *kept); /* of those that follow, the first two */
uint32_t tt_kept_restore(const struct tt_kept *kept); /* enum tt_loaded_flags */

/* image_pages.c: the mappings and their pages. */
struct tt_image_out {
  int fd, error;
  uint32_t maps;
  uint64_t bytes;
};
void tt_image_put(struct tt_image_out *out, enum tt_image_tag tag, const void *data, size_t size,
                  const void *more, size_t more_size);
void tt_image_pages(struct tt_image_out *out);
int tt_image_specials(struct tt_image_special specials[TT_IMAGE_SPECIALS]);

/* Processor features, kernel and auxiliary vector of this machine. 0 or -errno. */
int tt_image_machine(struct tt_image_head *head);

/* setjmp and longjmp; room for the registers of any machine. */
struct tt_context {
  uint64_t room[32];
};
int tt_context_save(struct tt_context *context) __attribute__((returns_twice));
void tt_context_jump(const struct tt_context *context) __attribute__((noreturn));

#endif
