/* stop.h: stop every other thread of the process, and let them go on.
 *
 * A thread is stopped by signal 33 and waits in our handler, where it has noted what the kernel
 * knows of it. Its record lives in a slot that is never unmapped, so a signal that arrives late
 * finds its slot cancelled and is swallowed. */
#ifndef TT_STOP_H
#define TT_STOP_H

#include "sys.h"

#define TT_STOP_SIGNAL 33 /* SIGSETXID of glibc: pthread_sigmask and sigaction leave it alone */
#define TT_NAME_SIZE 16   /* TASK_COMM_LEN */
#define TT_STACK_ROOM 1024

enum tt_slot_state { TT_SLOT_FREE, TT_SLOT_SENT, TT_SLOT_REPORTED, TT_SLOT_CANCELLED };

/* What a thread is besides its memory. */
struct tt_thread {
  int32_t tid;
  uintptr_t pointer, extra_register; /* thread pointer; see tt_extra_register */
  void *clear_tid;                   /* set_tid_address(2) */
  void *robust;                      /* get_robust_list(2) */
  size_t robust_size;
  uint64_t pending; /* signals sent to this thread */
  long slack;       /* PR_GET_TIMERSLACK, in ns */
  char name[TT_NAME_SIZE];
};

struct tt_sched;

struct tt_slot {
  struct tt_slot *next;   /* in the list of free, or of stopped ones */
  struct tt_slot *hashed; /* chain in the table of known ids */
  uint32_t state;         /* enum tt_slot_state; atomic */
  uint32_t turn;          /* the order word at the time of the signal */
  int32_t tid;            /* who was signalled */
  int32_t seen;           /* had reported before the present look at /proc/self/task */
  int32_t worker;         /* one of the kernel's: no signal reaches it */
  int32_t python;         /* runs Python: not made in a copy */
  uint32_t sent;          /* signals */
  uint64_t sent_ns;       /* since boot */
  struct tt_thread thread;
  void *ucontext; /* saved context, in the frame of our handler */
  void *room;     /* end of TT_STACK_ROOM bytes in that frame: stack of its waking */
  /* filled by the describing thread where they differ from the leader's */
  uint64_t *affinity;
  size_t affinity_size;
  struct tt_sched *sched;
  int32_t disk_priority; /* ioprio_get(2); -1: as the leader's */
  int32_t error; /* of noting, or of waking */
  int32_t woken_tid;
};

struct tt_stopped {
  struct tt_slot *first;
  int32_t count;
  int32_t workers;      /* threads that the kernel runs for the process: io_uring */
  int32_t blocking_tid; /* after -ETIMEDOUT */
};

/* Fill in what the calling thread knows of itself. -ENOTSUP when the kernel does not say. */
int tt_thread_note(struct tt_thread *thread);

/* The rseq area that glibc registered for the thread with that pointer: unregister or register it.
 * A process that shares memory with one that is ending must not have it registered twice. */
int tt_rseq(uintptr_t thread_pointer, int registered);

/* Its address; 0: there is none. */
uintptr_t tt_rseq_area(uintptr_t thread_pointer);

/* Stop all threads but the calling one, which must be the leader and have all signals blocked.
 * 0, or -ETIMEDOUT, -ENOMEM, -EMFILE, ...: then all of them go on. */
int tt_stop(struct tt_stopped *stopped, uint32_t timeout_ms);

/* Let them go on. */
void tt_release(struct tt_stopped *stopped);

/* Have each stopped thread give up, or take back, what the kernel would write to its memory when it
 * is killed: clear-tid address and robust list. For TT_MOVE. */
void tt_disarm(struct tt_stopped *stopped, int disarmed);

/* In a process that has no other thread any more: put the disposition of the signal back, forget
 * about signals on their way. Slots of the stopped threads stay valid until tt_forget_slots. */
void tt_forget_signals(void);
void tt_forget_slots(struct tt_stopped *stopped);

#endif
