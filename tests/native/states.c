/* states.c: threads and memory in states that Python cannot make. Loaded by targets with ctypes.
 * Every thread counts in ticks[]; tests look whether the counts grow. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST 2048

volatile uint64_t ticks[MOST];
volatile int stop_all;
static volatile uint64_t errors;

uint64_t state_errors(void) { return errors; }
uint64_t state_ticks(int i) { return ticks[i]; }

struct start {
  int slot, kind, fd;
};

static sem_t sem;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t barrier;

enum {
  SPIN,
  MALLOC,
  NANOSLEEP,
  SEM,
  COND,
  READ,
  EPOLL,
  FLOAT,
  STACK,
  BIRTH,
  VFORK,
  MUTEX,
  BLOCKED,
  ALTSTACK,
  SETXID
};

static void pause_us(long us) {
  struct timespec t = {us / 1000000, us % 1000000 * 1000};
  nanosleep(&t, NULL);
}

static void *empty(void *arg) { return arg; }

static void allocate(int slot) {
  char *p[32];
  for (int i = 0; i < 32; i++) {
    size_t n = (size_t)(i * 977 + slot * 131) % 20000 + 1;
    p[i] = malloc(n);
    memset(p[i], slot, n);
  }
  for (int i = 0; i < 32; i++) {
    if (p[i][0] != (char)slot) errors++;
    free(p[i]);
  }
}

/* registers: sums that go wrong when a vector register is not what it was */
static void compute(void) {
  double a[8] = {1, 2, 3, 4, 5, 6, 7, 8}, sum = 0;
  for (int n = 0; n < 20000; n++)
    for (int i = 0; i < 8; i++) sum += a[i];
  if (sum != 36.0 * 20000) errors++;
}

static int recurse(int depth) {
  volatile char block[512];
  memset((void *)block, depth & 127, sizeof block);
  int below = depth ? recurse(depth - 1) : 0;
  for (size_t i = 0; i < sizeof block; i++)
    if (block[i] != (depth & 127)) errors++;
  return below + 1;
}

static void on_altstack(int number) { (void)number; }

static void use_altstack(void) {
  stack_t s = {.ss_sp = malloc(65536), .ss_size = 65536};
  sigaltstack(&s, NULL);
  struct sigaction a = {.sa_handler = on_altstack, .sa_flags = SA_ONSTACK};
  sigaction(SIGUSR2, &a, NULL);
}

static void step(struct start *s) {
  char byte;
  switch (s->kind) {
    case SPIN: break;
    case MALLOC: allocate(s->slot); break;
    case NANOSLEEP: pause_us(2000); break;
    case SEM:
      while (sem_wait(&sem) && errno == EINTR) {
      }
      sem_post(&sem);
      pause_us(500);
      break;
    case COND: {
      struct timespec t;
      clock_gettime(CLOCK_REALTIME, &t);
      t.tv_nsec += 3000000;
      if (t.tv_nsec >= 1000000000) t.tv_nsec -= 1000000000, t.tv_sec++;
      pthread_mutex_lock(&mutex);
      pthread_cond_timedwait(&cond, &mutex, &t);
      pthread_mutex_unlock(&mutex);
      break;
    }
    case READ:
      while (read(s->fd, &byte, 1) < 0)
        if (errno != EINTR) errors++;
      break;
    case EPOLL: {
      struct epoll_event e;
      if (epoll_wait(s->fd, &e, 1, 2) < 0 && errno != EINTR) errors++;
      break;
    }
    case FLOAT: compute(); break;
    case STACK: recurse(100); break;
    case BIRTH: {
      pthread_t t;
      if (pthread_create(&t, NULL, empty, s))
        pause_us(1000);
      else
        pthread_join(t, NULL);
      break;
    }
    case VFORK: {
      int status;
      pid_t pid = vfork();
      if (pid == 0) {
        execl("/bin/true", "true", NULL);
        _exit(1);
      }
      while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
      }
      break;
    }
    case MUTEX:
      pthread_mutex_lock(&mutex);
      pthread_mutex_unlock(&mutex);
      break;
    case SETXID: /* glibc has every thread do it, by the very signal that we use */
      if (setresgid(-1, -1, -1)) errors++;
      pause_us(100);
      break;
    case ALTSTACK: {
      stack_t now;
      sigaltstack(NULL, &now);
      if (now.ss_size != 65536) errors++;
      pthread_kill(pthread_self(), SIGUSR2);
      pause_us(300);
      break;
    }
  }
}

static void *work(void *arg) {
  struct start *s = arg;
  if (s->kind == BLOCKED) {
    uint64_t all = ~(uint64_t)0, none = 0;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, 8);
    while (!stop_all) ticks[s->slot]++, pause_us(1000);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, 8);
    for (;;) ticks[s->slot]++, pause_us(1000);
  }
  if (s->kind == ALTSTACK) use_altstack();
  for (;;) {
    step(s);
    ticks[s->slot]++;
  }
  return NULL;
}

/* Start a thread of that kind that counts in that slot. */
int state_start(int slot, int kind, int fd) {
  struct start *s = malloc(sizeof *s);
  pthread_t t;
  pthread_attr_t attr;
  if (slot == 0) sem_init(&sem, 0, 1);
  *s = (struct start){slot, kind, fd};
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, 256 << 10);
  pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
  int r = pthread_create(&t, &attr, work, s);
  pthread_attr_destroy(&attr);
  return r;
}

void state_unblock(void) { stop_all = 1; }

/* A mutex of the robust and error-checking kind, locked by a thread that waits for a post: ids and
 * robust lists matter to it. */
static pthread_mutex_t robust;
static sem_t let_go, held;
static volatile int robust_result = -1;

static void *hold(void *arg) {
  pthread_mutex_lock(&robust);
  sem_post(&held);
  while (sem_wait(&let_go) && errno == EINTR) {
  }
  robust_result = pthread_mutex_unlock(&robust);
  return arg;
}

void state_hold_robust(void) {
  pthread_mutexattr_t a;
  pthread_t t;
  pthread_mutexattr_init(&a);
  pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
  pthread_mutexattr_settype(&a, PTHREAD_MUTEX_ERRORCHECK);
  pthread_mutex_init(&robust, &a);
  sem_init(&let_go, 0, 0);
  sem_init(&held, 0, 0);
  pthread_create(&t, NULL, hold, NULL);
  while (sem_wait(&held) && errno == EINTR) {
  }
}

int state_release_robust(void) {
  int busy = pthread_mutex_trylock(&robust);
  sem_post(&let_go);
  for (int i = 0; i < 60000 && robust_result < 0; i++) pause_us(1000);
  return busy == EBUSY ? robust_result : 1000 + busy;
}

/* pthread_join of a thread that ends only after the wake: needs the clear-tid address. */
static pthread_t joinable;
static sem_t end_it;

static void *wait_for_end(void *arg) {
  while (sem_wait(&end_it) && errno == EINTR) {
  }
  return arg;
}

void state_start_joinable(void) {
  sem_init(&end_it, 0, 0);
  pthread_create(&joinable, NULL, wait_for_end, (void *)77);
}

long state_join(void) {
  void *result = NULL;
  sem_post(&end_it);
  int r = pthread_join(joinable, &result);
  return r ? -r : (long)result;
}

/* What a container's default profile does: clone3 is not there, kcmp is refused. */
int state_container_profile(void) {
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 435, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_kcmp, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof code / sizeof *code, code};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* From now on that system call fails with that error, in this process and its copies. */
int state_fail(int number, int error) {
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof code / sizeof *code, code};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* An io_uring with a kernel thread of its own. Its descriptor, or -errno. */
int state_io_uring(void) {
  char parameters[120];
  memset(parameters, 0, sizeof parameters);
  uint32_t flags = 2, idle = 50; /* IORING_SETUP_SQPOLL, milliseconds */
  memcpy(parameters + 8, &flags, 4);
  memcpy(parameters + 16, &idle, 4);
  long r = syscall(425, 8, parameters);
  return r < 0 ? -errno : (int)r;
}

/* POSIX timers: one for the process, one for a thread. fired counts their signals. */
static volatile int fired[2];
static timer_t timer_ids[2];

static void on_timer(int number, siginfo_t *info, void *context) {
  (void)number, (void)context;
  fired[info->si_value.sival_int]++;
}

int state_fired(int i) { return fired[i]; }

static int set_timer(int i, int notify, long seconds) {
  struct sigevent event = {.sigev_notify = notify, .sigev_signo = SIGRTMIN + 3};
  struct itimerspec when = {{seconds, 250000000}, {seconds, 250000000}};
  event.sigev_value.sival_int = i;
  event._sigev_un._tid = (int)syscall(SYS_gettid);
  int r = timer_create(CLOCK_MONOTONIC, &event, &timer_ids[i]);
  return r ? r : timer_settime(timer_ids[i], 0, &when, NULL);
}

static void *wait_with_timer(void *arg) {
  set_timer(1, 4, 0); /* SIGEV_THREAD_ID */
  for (;;) pause_us(10000);
  return arg;
}

int state_timers(void) {
  struct sigaction action = {.sa_sigaction = on_timer, .sa_flags = SA_SIGINFO | SA_RESTART};
  pthread_t t;
  timer_t unused;
  sigaction(SIGRTMIN + 3, &action, NULL);
  timer_create(CLOCK_MONOTONIC, NULL, &unused);
  timer_delete(unused); /* so that numbers do not start at the lowest */
  int r = set_timer(0, SIGEV_SIGNAL, 0);
  return r ? r : pthread_create(&t, NULL, wait_with_timer, NULL);
}

int state_stop_timers(void) { return timer_delete(timer_ids[0]) | timer_delete(timer_ids[1]); }

/* Two threads meet at a barrier again and again. */
static void *meet(void *arg) {
  int slot = (int)(intptr_t)arg;
  for (;;) {
    pthread_barrier_wait(&barrier);
    ticks[slot]++;
    pause_us(200);
  }
  return NULL;
}

void state_barrier(int first, int second) {
  pthread_t t;
  pthread_barrier_init(&barrier, NULL, 2);
  pthread_create(&t, NULL, meet, (void *)(intptr_t)first);
  pthread_create(&t, NULL, meet, (void *)(intptr_t)second);
}

/* A static recursive mutex that another thread holds while it waits. */
static pthread_mutex_t recursive = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static sem_t recursive_held, recursive_go, recursive_done;
static volatile int recursive_result = -1;

static void *hold_recursive(void *arg) {
  pthread_mutex_lock(&recursive);
  pthread_mutex_lock(&recursive);
  sem_post(&recursive_held);
  while (sem_wait(&recursive_go) && errno == EINTR) {
  }
  recursive_result = pthread_mutex_unlock(&recursive) | pthread_mutex_unlock(&recursive);
  sem_post(&recursive_done);
  return arg;
}

void state_hold_recursive(void) {
  pthread_t t;
  sem_init(&recursive_held, 0, 0);
  sem_init(&recursive_go, 0, 0);
  sem_init(&recursive_done, 0, 0);
  pthread_create(&t, NULL, hold_recursive, NULL);
  while (sem_wait(&recursive_held) && errno == EINTR) {
  }
}

/* 0 when it was held, could be unlocked by its holder, and is free then. */
int state_release_recursive(void) {
  if (pthread_mutex_trylock(&recursive) != EBUSY) return 1000;
  sem_post(&recursive_go);
  while (sem_wait(&recursive_done) && errno == EINTR) {
  }
  return recursive_result ? recursive_result : pthread_mutex_trylock(&recursive);
}

/* A pointer as each key of pointer authentication signs it (hints: where there is none, as it is). */
uint64_t state_signed(int key) {
  uint64_t value = 0x123456789000;
#if defined(__aarch64__)
  register uint64_t x16 __asm__("x16") = 42, x17 __asm__("x17") = value;
  if (key == 0) __asm__ volatile("hint #8" : "+r"(x17) : "r"(x16)); /* pacia1716 */
  if (key == 1) __asm__ volatile("hint #10" : "+r"(x17) : "r"(x16)); /* pacib1716 */
  value = x17;
#endif
  (void)key;
  return value;
}

/* The length of vectors that is not the usual one; 0 where there is but one. */
int state_other_vectors(void) {
#if defined(__aarch64__)
  int usual = prctl(51, 0, 0, 0, 0) & 0xffff; /* PR_SVE_GET_VL */
  if (usual > 16 && prctl(50, 16, 0, 0, 0) == 16) return 16;
#endif
  return 0;
}

int state_vectors(void) {
#if defined(__aarch64__)
  return prctl(51, 0, 0, 0, 0) & 0xffff;
#else
  return 0;
#endif
}
