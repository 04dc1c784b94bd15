/* arch.c: the machine code of arch_*.h by itself, so that it can be tried under an emulator. */
#include "sys.c"
#include "sys.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define CHECK(x)                                     \
  do                                                 \
    if (!(x)) {                                      \
      printf("%s:%d: %s\n", __FILE__, __LINE__, #x); \
      exit(1);                                       \
    }                                                \
  while (0)

#define THREAD (CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM)

static volatile int handled;
static uint32_t running;
static volatile uintptr_t seen_pointer, seen_argument;

/* Leaves by tt_sigreturn instead of returning. */
static void on_signal(int number, siginfo_t *info, void *context) {
  (void)number, (void)info;
  handled++;
  tt_sigreturn(context);
}

static void test_sigreturn(void) {
  struct sigaction action = {.sa_flags = SA_SIGINFO};
  action.sa_sigaction = on_signal;
  sigaction(SIGUSR1, &action, NULL);
  double sum = 0;
  for (int i = 1; i <= 100; i++) {
    sum += i;
    CHECK(SC(SYS_tgkill, SC(SYS_getpid), SC(SYS_gettid), SIGUSR1) == 0);
  }
  sigset_t now;
  sigprocmask(SIG_BLOCK, NULL, &now);
  CHECK(handled == 100 && sum == 5050 && !sigismember(&now, SIGUSR1));
}

static void in_thread(void *arg) {
  seen_argument = (uintptr_t)arg;
  seen_pointer = tt_thread_pointer();
  for (;;) SC(SYS_exit, 0);
}

static void test_thread(void) {
  static char stack[65536] __attribute__((aligned(64)));
  static char area[4096] __attribute__((aligned(64)));
  uintptr_t pointer = (uintptr_t)area + 2048;
  running = 1;
  long flags = THREAD | CLONE_SETTLS | CLONE_CHILD_CLEARTID;
  long r = tt_clone_call(
      SYS_clone, TT_CLONE_ARGS(flags, (long)(stack + sizeof stack), (long)&running, (long)pointer),
      in_thread, (void *)4711);
  CHECK(r > 0);
  while (__atomic_load_n(&running, __ATOMIC_ACQUIRE)) {
    struct timespec soon = {0, 1000000};
    SC(SYS_futex, &running, 0, 1, &soon);
  }
  CHECK(seen_argument == 4711 && seen_pointer == pointer);
}

static void test_takeover(void) {
  int ends[2];
  char said[8] = "";
  CHECK(pipe(ends) == 0);
  if (fork() == 0) {
    volatile long on_stack = 12345;
    pid_t before = (pid_t)SC(SYS_getpid);
    long r = tt_clone_leave(SYS_clone, TT_CLONE_ARGS((long)CLONE_VM, 0L, 0L, 0L));
    if (r < 0)
      dprintf(ends[1], "no");
    else if (on_stack == 12345 && (pid_t)SC(SYS_getpid) != before)
      dprintf(ends[1], "yes");
    for (;;) SC(SYS_exit_group, 0);
  }
  close(ends[1]);
  CHECK(read(ends[0], said, sizeof said - 1) > 0);
  wait(NULL);
  CHECK(said[0] == 'y' || said[0] == 'n');
  if (said[0] == 'n') puts("takeover: emulated, not supported here");
}

__asm__(".text\n" TT_CONTEXT_CODE);
int tt_context_save(uint64_t room[32]) __attribute__((returns_twice));
void tt_context_jump(const uint64_t room[32]) __attribute__((noreturn));
__attribute__((used, visibility("hidden"))) void tt_loader(void) {}

static uint64_t context[32];

__attribute__((noinline, noreturn)) static void jump_from_below(double x) {
  volatile double used[64];
  for (int i = 0; i < 64; i++) used[i] = x * i;
  (void)used[63];
  tt_context_jump(context);
}

/* What a function must preserve is there again, and the stack. */
static void test_context(void) {
  volatile int times = 0, here = 4711;
  register double kept = handled / 8.0;
  if (!tt_context_save(context)) {
    times++;
    jump_from_below(kept);
  }
  CHECK(times == 1 && here == 4711 && kept == handled / 8.0);
}

/* A choice of the process is taken over; what is equal stays. */
static void test_cpu(void) {
  uint32_t before[TT_CPU_WORDS] = {0}, after[TT_CPU_WORDS] = {0};
  tt_cpu(before);
#if defined(__aarch64__)
  uint32_t other[TT_CPU_WORDS] = {before[0] > 16 ? 16 : before[0]};
  tt_cpu_take(other);
  tt_cpu(after);
  CHECK(after[0] == other[0] && after[2] == before[2] && before[3]);
#endif
  tt_cpu_take(before);
  tt_cpu(after);
  CHECK(!memcmp(before, after, sizeof before));
}

int main(void) {
  CHECK(SC(SYS_getpid) == getpid());
  CHECK(SC(SYS_close, -1) == -EBADF);
  long m = SC(SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(!tt_failed(m) && SC(SYS_munmap, m, 4096) == 0);
  CHECK(tt_thread_pointer() == (uintptr_t)__builtin_thread_pointer());
  CHECK(tt_unsupported() == 0);
  test_sigreturn();
  test_thread();
  test_takeover();
  test_context();
  test_cpu();
  puts("ok");
  return 0;
}
