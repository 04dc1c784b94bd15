/* state.h: everything that a frozen process knows of the process it was: its recipes. Lives in an
 * arena, is copied or taken over with the memory, and is freed in the process that goes on. */
#ifndef TT_STATE_H
#define TT_STATE_H

#include "arena.h"
#include "report.h"
#include "stop.h"
#include "text.h"
#include "threads.h"
#include "timetravel.h"

/* --- contents that are copied aside ---------------------------------------------------------- */

struct tt_extent { /* a run of bytes of a file, pipe or queue */
  struct tt_extent *next;
  uint64_t offset, size;
  char *data;
};

struct tt_extents {
  struct tt_extent *first, **end;
};

/* --- memory objects: what shared mappings and some descriptors are backed by -------------------
 */

enum tt_object_kind {
  TT_OBJECT_ANONYMOUS, /* MAP_SHARED | MAP_ANONYMOUS, System V segments */
  TT_OBJECT_MEMFD,
  TT_OBJECT_DELETED, /* a regular file without a name */
  TT_OBJECT_SHM      /* a named file under /dev/shm */
};

struct tt_object {
  struct tt_object *next;
  enum tt_object_kind kind;
  uint64_t dev, ino, size;
  uint32_t mode;
  int32_t seals;    /* memfd; -1: cannot be sealed */
  int32_t left_out; /* contents were too large */
  int32_t whole;    /* contents are those of the file, not only of what is mapped */
  char *path;       /* as the kernel shows it, without " (deleted)" */
  struct tt_extents contents;
  int made;      /* while waking: a descriptor, or -1 */
  char *made_at; /* while waking: where an anonymous one is mapped whole */
};

struct tt_map { /* one shared mapping; private: not when it is made again */
  struct tt_map *next;
  uintptr_t start, end;
  int prot, private;
  uint64_t offset;
  struct tt_object *object; /* or NULL: path */
  char *path;               /* a file to map again, or NULL: cannot be mapped again */
};

struct tt_region { /* memory that a clone does not copy (MADV_DONTFORK), or that is locked */
  struct tt_region *next;
  uintptr_t start, end;
  int prot;
};

/* --- descriptors --------------------------------------------------------------------------- */

enum tt_kind {
  TT_KIND_DEAD,  /* cannot be brought back: using it fails */
  TT_KIND_ENDED, /* a pipe whose other end is closed */
  TT_KIND_LINK,
  TT_KIND_OUT,
  TT_KIND_ERR,    /* passed anew */
  TT_KIND_PATH,   /* opened again by its path */
  TT_KIND_OBJECT, /* a memory object */
  TT_KIND_PIPE,
  TT_KIND_FIFO,
  TT_KIND_SOCKET,
  TT_KIND_TERMINAL,
  TT_KIND_EPOLL,
  TT_KIND_EVENTFD,
  TT_KIND_TIMERFD,
  TT_KIND_SIGNALFD,
  TT_KIND_INOTIFY,
  TT_KIND_PIDFD /* of the process itself */
};

struct tt_number { /* one descriptor number */
  struct tt_number *next;
  int fd, flags; /* flags: FD_CLOEXEC */
};

struct tt_lock {
  struct tt_lock *next;
  int command; /* F_SETLK, F_OFD_SETLK, or 0: flock */
  short type;  /* F_RDLCK, F_WRLCK */
  int64_t start, length;
};

struct tt_watch { /* one entry of an epoll set */
  struct tt_watch *next;
  int fd;
  uint32_t events;
  uint64_t data;
};

struct tt_option { /* of a socket, with an int for a value, or a struct timeval */
  struct tt_option *next;
  int level, name, size;
  int64_t value[2];
};

struct tt_pipe { /* all that is open on one pipe or FIFO */
  struct tt_pipe *next;
  uint64_t ino;
  int size, has_reader, has_writer;
  struct tt_extents contents; /* one extent for each packet */
  int made[2];                /* while waking */
};

struct tt_letter { /* a datagram that waits; sender: none where it has no name */
  struct tt_letter *next;
  struct tt_desc *sender;
  char from[128];
  size_t size;
  char data[];
};

struct tt_socket {
  int domain, type, protocol, listening, backlog, shut;
  uint32_t address_size, peer_size, file_mode;
  char address[128], peer[128]; /* struct sockaddr_storage; size 0: none */
  struct tt_desc *other;        /* the other end, when that is ours too */
  struct tt_option *options;
  struct tt_extents queue; /* one extent for each message, or for the stream */
  struct tt_letter *letters;
  void *filter; /* steps of a classic filter of packets */
  uint32_t filter_steps, waiting; /* waiting: connections that were not accepted */
  int connected; /* at the freeze */
};

struct tt_desc { /* an open file description */
  struct tt_desc *next;
  enum tt_kind kind;
  struct tt_number *numbers; /* in falling order */
  int fd;                    /* one of them */
  int flags;                 /* F_GETFL */
  uint32_t mode;
  uint64_t dev, ino;
  int64_t offset; /* -1: none */
  char *path;
  int signal, owner[2]; /* F_GETSIG; F_GETOWN_EX: type and id, 0: nobody is signalled */
  int done;             /* while waking */
  struct tt_lock *locks;
  union {
    struct tt_object *object;
    struct tt_pipe *pipe;
    struct tt_socket *socket;
    struct tt_watch *watches; /* epoll */
    struct {
      uint64_t count;
      int semaphore;
    } event;
    struct {
      int clock, flags;
      uint64_t ticks;
      struct itimerspec left;
    } timer;
    uint64_t signals;
    int64_t size; /* of a regular file that is opened by its path */
    struct tt_terminal *terminal;
  } u;
};

/* --- the whole ------------------------------------------------------------------------------ */

struct tt_timer;

enum tt_freeze_step { TT_AT_STOP, TT_AT_DESCRIBE, TT_AT_CLONE };

struct tt_state {
  struct tt_arena arena;
  struct tt_freeze *freeze; /* the caller's, valid in each copy */
  char *report_text;
  size_t report_size;
  struct tt_report report;
  struct tt_buffer text; /* for reading /proc */
  struct tt_stopped stopped;
  struct tt_thread leader;
  stack_t altstack;
  uint64_t mask;    /* of the leader, when it called */
  uint64_t pending; /* signals of the process */
  uint32_t wakes;
  enum tt_freeze_step step; /* reached by tt_freeze */
  /* recipes */
  struct tt_desc *descs, **descs_end;
  int count_fds, highest_fd;
  struct tt_pipe *pipes;
  struct tt_object *objects;
  struct tt_map *maps;
  struct tt_region *regions, *locked;
  struct tt_timer *timers;
  struct itimerval itimers[3];
  char *directory; /* NULL: gone */
  char oom_score[16];
  int death_signal, subreaper, dumpable;
  int held; /* whoever switches mounts was told that all threads have stopped */
  int rseq_free; /* the frozen process has no rseq area registered: a woken one registers it */
  uint64_t aside_left, aside_bytes, aside_ns;
  struct tt_buffer maps_text; /* /proc/PID/maps at the freeze, where it was needed */
  uint64_t mapped_pages;      /* just before the clone; 0: maps_text tells all of it */
  struct tt_hot *hot;
};

/* Bytes of a page of memory. Set by tt_freeze. */
extern size_t tt_page;

/* Read the whole file at path into state->text. 0 or -errno. */
int tt_slurp(struct tt_state *state, const char *path);
struct tt_text tt_slurped(const struct tt_state *state);

/* Whether an id is that of a thread at the freeze; and which it has in the woken process, or 0. */
int tt_is_thread(const struct tt_state *state, int32_t tid);
int32_t tt_woken_tid(const struct tt_state *state, int32_t tid);

/* A report line about the descriptor fd. */
void tt_report_fd(struct tt_state *state, const char *kind, int fd, const char *detail);

/* A run of size bytes at offset, for the caller to fill. Counted against aside_limit; NULL: over
 * it, or out of memory. */
char *tt_extent_add(struct tt_state *state, struct tt_extents *to, uint64_t offset, uint64_t size);

#endif
