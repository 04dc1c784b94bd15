/* timetravel.h: freeze a process with all of its threads, and wake copies of it.
 *
 * The whole interface of libtimetravel.so. Called through ctypes.PyDLL by the executor, and over a
 * Unix socket by the supervisor. The layout of every structure here is part of the contract: a
 * change of any of them changes TT_ABI. How it works and what must hold is in docs/native.md. */
#ifndef TIMETRAVEL_H
#define TIMETRAVEL_H

#include <stddef.h>
#include <stdint.h>

#define TT_ABI 5
#define TT_EXPORT __attribute__((visibility("default")))

/* Flags of tt_freeze. */
enum {
  TT_MOVE = 1,   /* the calling process becomes the frozen one: nothing is copied, no return */
  TT_NEW_IDS = 2 /* waking never tries to give back the old process and thread ids */
};

#define TT_FILTER_PID 0x7fffffff

/* Argument of tt_freeze. Times in nanoseconds, sizes in bytes. */
struct tt_freeze {
  uint32_t size;          /* in: sizeof(struct tt_freeze) */
  uint32_t flags;         /* in */
  int32_t listen_fd;      /* in: listening AF_UNIX SOCK_SEQPACKET socket, for the frozen process */
  int32_t link_fd;        /* in: -1, or a descriptor that is passed anew with TT_WAKE */
  int32_t out_fd, err_fd; /* in: same; so is whatever else is open on the same pipe */
  int32_t supervisor_pid; /* in: who may connect; 0: from outside our pid namespace; -1: any */
  uint32_t stop_timeout_ms; /* in */
  uint64_t aside_limit;     /* in: bound for contents copied aside (shared memory, deleted files) */
  uint64_t hot_min;         /* in: mappings this large are sampled for TT_UNSHARE; 0: none are */
  int32_t hold_fd;          /* in: -1, or whom to wait for before the threads go on (tt_held) or a move
                               takes place (TT_LEAVE) */
  uint32_t hold_timeout_ms; /* in: for all of that together */
  /* in: for TT_WAKE_COPY. Address of pthread_self() of each thread that runs Python, the caller's
   * own first; 0 of them: no copy can be woken */
  uint64_t python_threads;
  /* in: address of the seccomp filter (struct sock_filter) that a copy takes before any thread is
   * made in it; 0 instructions: none. TT_FILTER_PID in it becomes the copy's own id */
  uint64_t filter;
  /* in: address of a function, void f(void), that a copy calls before tt_freeze returns in it; 0:
   * none. Python's PyOS_AfterFork_Child: its locks may be waited for by threads that are not there */
  uint64_t in_copy;
  uint32_t python_count, filter_count; /* in */
  /* in: -1, or a file that takes what was written since the freeze that made base_pid, in place of a
   * clone, from the byte difference_at on, where that can be told and is difference_most bytes at most.
   * With a file, and a clone all the same, that clone can be the base of later ones. TT_DIFFERENCE
   * makes a process of it */
  int32_t difference_fd, base_pid;
  uint64_t difference_at, difference_most;
  int32_t frozen_pid;       /* out, as seen inside; 0: there is none yet, but a difference */
  int32_t threads;          /* out: stopped besides the caller */
  int32_t blocking_tid;     /* out, with -ETIMEDOUT */
  char blocking_name[16];
  uint64_t stop_ns, describe_ns, aside_ns, clone_ns, pause_ns; /* out */
  uint64_t hold_ns;         /* out: of the pause, in which it was held */
  uint64_t aside_bytes, hot_bytes;                             /* out */
  uint64_t rewritten_bytes; /* out: of the hot ones, that were so at the freeze before too */
  uint64_t difference_bytes; /* out: how long it is in the file; 0: there is none */
  uint32_t woken_ids_kept; /* out, in a woken process: 1 = pid and thread ids are the old ones */
  int32_t frozen_fds;      /* out: descriptors that have a recipe */
  uint32_t woken_copy;     /* out, in a woken process: 1 = one of TT_WAKE_COPY */
  int32_t difference_why;  /* out: why it was a clone all the same, enum tt_why */
};

/* Why a freeze was no difference. */
enum tt_why {
  TT_WHY_NONE = 0,       /* it was one, or none was wanted */
  TT_WHY_NO_BASE = 1,    /* base_pid is not what the last clone made, or that cannot be one */
  TT_WHY_HOT = 2,        /* large arrays were rewritten */
  TT_WHY_UNKNOWN = 3,    /* the kernel does not tell all that must be known */
  TT_WHY_LAYOUT = 4,     /* something was mapped, unmapped or protected */
  TT_WHY_PROCESS = 5,    /* something else changed that a clone has from its maker */
  TT_WHY_SHARED = 6,     /* another process shares memory that was written since */
  TT_WHY_MUCH = 7        /* too much was written, or files may be only so large (RLIMIT_FSIZE) */
};

/* Freeze. Only the first thread of a process may call it.
 *
 * Returns 0 in the process that goes on; k >= 1 in the process woken for the k-th time; or a
 * negative errno, and then nothing has happened: the process runs on untouched.
 *   -EINVAL     wrong size, a bad descriptor, or not called by the thread group leader
 *   -ETIMEDOUT  a thread did not stop in time: blocking_tid, blocking_name
 *   -ECANCELED  it was not told in time to leave (TT_MOVE with hold_fd)
 *   -ENOTSUP    threads (or TT_MOVE) on a platform without them, or shadow stacks in use
 *   -ENOMEM, -EAGAIN, -EMFILE, -EPERM  as given by the kernel
 *
 * report receives lines "kind\tsubject\tdetail\n", always ended by a zero byte: what the frozen
 * process will not bring back (when 0 is returned), what could not be rebuilt (k >= 1), or why the
 * call failed. In a copy there is, for each descriptor of a file that has a name, a line
 * "file\tNUMBER\tFLAGS OFFSET PATH", the flags in octal (fcntl(2), F_GETFL). Bytes that are not printable ASCII, and '\', are written as \xNN. */
TT_EXPORT int tt_freeze(struct tt_freeze *f, char *report, size_t report_size);

/* Held: with hold_fd, a connected AF_UNIX SOCK_SEQPACKET socket, the process that goes on (not
 * after TT_MOVE) stays stopped while the other end, "init", mounts filesystems over what it uses.
 * One structure is one packet:
 *
 *   process -> init   tt_held       no thread runs; the frozen process, frozen_pid, is a copy
 *   init -> process   tt_switched   ids of the mounts that others were mounted over
 *   process -> init   tt_reopened   what lay on them is open on the new ones
 *   init -> process   any byte      the old mounts are gone: go on
 *
 * The last two only when count is not 0. Anything unexpected (the end, an error, too little time)
 * lets the process go on, with a line "environment\thold\t..." in the report; the socket is then
 * shut down, so that init can tell and no packet is taken for one of the next freeze. */
#define TT_MOUNTS_MOST 4096

struct tt_held {
  uint32_t size;      /* sizeof(struct tt_held) */
  int32_t frozen_pid; /* as seen inside */
};

struct tt_switched {
  uint32_t size;       /* sizeof(struct tt_switched), without the ids */
  uint32_t count;      /* TT_MOUNTS_MOST at most; 0: nothing was switched */
  int32_t mount_ids[]; /* "mnt_id" of /proc/PID/fdinfo/FD, first field of /proc/PID/mountinfo */
};

/* Open file descriptions, however many descriptors share one, and the working directory. */
struct tt_reopened {
  uint32_t size; /* sizeof(struct tt_reopened) */
  uint32_t reopened;
  uint32_t failed; /* stay on the old mount: each has an "environment" line in the report */
};

/* Before a move with hold_fd, such a socket, the process stands ready, stopped, until the other end
 * sends this byte: then it leaves. The end, anything else, or nothing in time: it goes on. */
#define TT_LEAVE 1

/* Note the pages of private writable mappings smaller than mapping_most bytes that were written
 * since the last freeze, pages_most at most; call it just before tt_freeze. Number or -errno. */
TT_EXPORT int tt_pages_note(uint64_t mapping_most, uint32_t pages_most);

/* In the process that goes on: make them its own again, before a cell needs them. Stops early when
 * watched_fd (-1: none) has something to read. Number of pages touched; 0 if they were before. */
TT_EXPORT int tt_pages_touch(int watched_fd);

/* Make huge pages again of what a fork has broken up, in private mappings of at least least bytes:
 * units that are wholly in memory and shared with nobody. Begins at *at (0: all), and stops when
 * until_ns (CLOCK_MONOTONIC) is over or watched_fd (-1: none) has something to read: then 1, and *at
 * is where to go on. 0 when all was looked at; -ENOMEM where no huge page can be had, another -errno
 * where this kernel or machine cannot do it. made: how many were made. Any thread may call it. */
TT_EXPORT int tt_huge_regain(uint64_t least, uint64_t *at, uint64_t until_ns, int watched_fd,
                             uint32_t *made);

/* Bytes of the next piece of a stream, which begins at data and ends after size bytes: 64 KiB to
 * 1 MiB, or all that is left. Cut where the content says so: a change leaves most other pieces as
 * they are. Any thread may call it. */
TT_EXPORT size_t tt_cut(const unsigned char *data, size_t size);

/* BLAKE2b-256 of four pieces of size bytes each, a multiple of 128, into out, 32 bytes for each.
 * 0, or -ENOTSUP where the processor cannot do four at once, -EINVAL for another size. Any thread
 * may call it. */
TT_EXPORT int tt_digest4(const unsigned char *const data[4], size_t size, unsigned char *out);

/* What is left of memory when it is foretold from an older version of it, into out, and back again:
 * size bytes each, a multiple of lane (1, 2, 4 or 8 bytes). how: 0, a lane is what it was; 1, constant
 * more; 2, so many times as much (IEEE 754, lanes of 4 and 8). 0, or -EINVAL. Any thread may call
 * them. */
TT_EXPORT int tt_delta_take(const unsigned char *new, const unsigned char *old, size_t size, int lane,
                            int how, double constant, unsigned char *out);
TT_EXPORT int tt_delta_put(const unsigned char *planes, const unsigned char *old, size_t size,
                           int lane, int how, double constant, unsigned char *out);

/* TT_ABI of the library that was loaded. */
TT_EXPORT int tt_abi(void);

/* What the frozen process is asked: one request per connection, answered by one tt_answer. */
enum tt_command {
  TT_PING = 1,    /* answers its pid */
  TT_WAKE = 2,    /* descriptors: link, out, err, as many of them as were given to tt_freeze */
  TT_TWIN = 3,    /* descriptor: a listening socket. Makes a frozen clone that serves it; arg: the id
                   * of the live process, whose next writes it gets ready for, or 0 */
  TT_UNSHARE = 4, /* arg64: bytes at most. Makes pages its own; the next connection ends it early */
  TT_QUIT = 5,    /* answers, then exits */
  TT_IMAGE = 6,   /* descriptor: a SOCK_STREAM socket. A clone writes an image to it (image.h); the
                   * answer, its pid, comes before it is written */
  TT_PARK = 7,    /* descriptor: a SOCK_SEQPACKET socket. A clone makes itself ready for another
                   * program to write it down (parked.h), and says over it when it is; the answer,
                   * its pid, comes before */
  TT_DIFFERENCE = 8  /* descriptors: a listening socket, and the file of a later freeze whose base this
                      * process is; arg64: difference_at. Makes the frozen process of that freeze,
                      * which serves it */
};

/* Flags of TT_WAKE. */
enum {
  TT_WAKE_NEW_IDS = 1, /* do not try the old ids */
  TT_WAKE_CONSUME = 2, /* the frozen process itself turns into the woken one: no copy */
  TT_WAKE_KEEP_IDS_OR_FAIL = 4,
  TT_WAKE_COPY = 8 /* a copy to be read: under new ids, without what reaches out of it; it does not
                    * count as a waking, and tt_freeze returns 1 in it. docs/native.md */
};

struct tt_request {
  uint32_t size; /* sizeof(struct tt_request) */
  uint32_t command;
  uint32_t flags;
  int32_t arg;
  uint64_t arg64;
};

struct tt_answer {
  int32_t error;  /* 0 or an errno */
  int32_t pid;    /* as seen inside */
  uint64_t ns;    /* from the request to the answer */
  uint64_t bytes; /* TT_UNSHARE: made its own. TT_WAKE that failed: the step, see enum tt_step */
};

/* Where a wake stopped. */
enum tt_step {
  TT_STEP_NONE = 0,
  TT_STEP_CLONE = 1,
  TT_STEP_PROCESS = 2,
  TT_STEP_DESCRIPTORS = 3,
  TT_STEP_MEMORY = 4,
  TT_STEP_THREADS = 5
};

#endif
