/* process.c: see process.h. */
#include "process.h"

#include "memory.h"

#include <linux/keyctl.h>
#include <linux/prctl.h>
#include <sys/wait.h>

#define OOM_SCORE "/proc/self/oom_score_adj"
#define DIRECTORY_SIZE 4096

/* Sent by people to the process that was live then: not to be delivered at each wake. */
#define NOT_KEPT                                                                                 \
  (1ull << (SIGINT - 1) | 1ull << (SIGTERM - 1) | 1ull << (SIGHUP - 1) | 1ull << (SIGQUIT - 1) | \
   1ull << (SIGTSTP - 1))

/* --- describing ------------------------------------------------------------------------------ */

static void report_child(struct tt_state *state, uint64_t pid) {
  char path[48], subject[24];
  struct tt_note detail = {{0}, 0};
  tt_text_path(path, "/proc/", pid, "/comm");
  if (tt_slurp(state, path) == 0 && state->text.size)
    tt_note_bytes(&detail, state->text.data, state->text.size - 1);
  tt_text_path(path, "/proc/", pid, "/cmdline");
  if (tt_slurp(state, path) == 0 && state->text.size) {
    for (size_t i = 0; i < state->text.size; i++)
      if (!state->text.data[i]) state->text.data[i] = ' ';
    tt_note(&detail, ": ");
    tt_note_bytes(&detail, state->text.data, state->text.size - 1);
  }
  tt_text_decimal(subject, pid);
  tt_report(&state->report, "child", subject, detail.text);
}

/* /proc/PID/task/TID/children needs CONFIG_PROC_CHILDREN; each thread has its own. */
static int report_children_of(struct tt_state *state, int32_t tid) {
  char path[64];
  uint64_t pids[64];
  size_t count = 0;
  tt_text_path(path, "/proc/self/task/", (uint64_t)tid, "/children");
  int error = tt_slurp(state, path);
  if (error) return error;
  struct tt_text text = tt_slurped(state);
  while (text.at < text.end && count < sizeof pids / sizeof *pids) {
    uint64_t pid = tt_text_number(&text);
    if (!pid) break;
    pids[count++] = pid;
    tt_text_blanks(&text);
  }
  for (size_t i = 0; i < count; i++) report_child(state, pids[i]);
  if (text.at < text.end) tt_report(&state->report, "child", "more", "than 64 of one thread");
  return 0;
}

static void report_children(struct tt_state *state) {
  siginfo_t info;
  long r = SC(SYS_waitid, P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL, 0);
  if (r == -ECHILD) return;
  if (report_children_of(state, state->leader.tid))
    tt_report(&state->report, "child", "unknown", "this kernel does not list child processes");
  for (struct tt_slot *s = state->stopped.first; s; s = s->next) report_children_of(state, s->tid);
}

/* Keys that belong to a thread or a process do not go to a clone of it: keyrings(7). */
static void report_keyrings(struct tt_state *state) {
  static const char *const rings[] = {"of the thread", "of the process"};
  for (long i = 0; i < 2; i++)
    if (SC(SYS_keyctl, KEYCTL_GET_KEYRING_ID, -1 - i, 0) > 0)
      tt_report(&state->report, "keyring", rings[i], "its keys are not brought back");
}

static uint64_t hex_field(struct tt_state *state, const char *key) {
  struct tt_text value;
  return tt_text_field(tt_slurped(state), key, &value) ? tt_text_hex(&value) : 0;
}

/* Signals that are pending now that every thread has stopped; before, others could still send some.
 * Most often the kernel has none queued for this user at all (SigQ), and no thread is looked at. */
static int note_signals(struct tt_state *state) {
  struct tt_text queued, kibibytes;
  char path[48];
  int error = tt_slurp(state, "/proc/self/status"), none;
  if (error) return error;
  int locked = tt_text_field(tt_slurped(state), "VmLck:", &kibibytes) && tt_text_number(&kibibytes);
  none = tt_text_field(tt_slurped(state), "SigQ:", &queued) && !tt_text_number(&queued);
  state->pending = hex_field(state, "ShdPnd:") & ~NOT_KEPT;
  state->leader.pending = hex_field(state, "SigPnd:") & ~NOT_KEPT;
  for (struct tt_slot *s = state->stopped.first; s && !none && !error; s = s->next) {
    tt_text_path(path, "/proc/self/task/", (uint64_t)s->tid, "/status");
    error = tt_slurp(state, path);
    s->thread.pending = error ? 0 : hex_field(state, "SigPnd:") & ~NOT_KEPT;
  }
  return error || !locked ? error : tt_locked_describe(state);
}

static void note_interval_timers(struct tt_state *state) {
  for (int i = 0; i < 3; i++) SC(SYS_getitimer, i, &state->itimers[i]);
  /* While its signal waits to be taken ITIMER_REAL stands still, with nothing left of its time: the kernel
   * starts it again with the signal, which another process is only sent. */
  struct itimerval *real = &state->itimers[ITIMER_REAL];
  if (!real->it_value.tv_sec && !real->it_value.tv_usec) real->it_value = real->it_interval;
}

int tt_process_describe(struct tt_state *state) {
  note_interval_timers(state);
  SC(SYS_prctl, PR_GET_PDEATHSIG, &state->death_signal);
  SC(SYS_prctl, PR_GET_CHILD_SUBREAPER, &state->subreaper);
  SC(SYS_sigaltstack, 0, &state->altstack);
  int error = tt_buffer_reserve(&state->text, DIRECTORY_SIZE);
  if (error) return error;
  long n = SC(SYS_getcwd, state->text.data, DIRECTORY_SIZE);
  if (n > 0) {
    state->directory = tt_copy_text(&state->arena, state->text.data, (size_t)n - 1);
    if (!state->directory) return -ENOMEM;
  }
  report_children(state);
  report_keyrings(state);
  if (state->stopped.workers)
    tt_report(&state->report, "io_uring", "threads",
              "work that the kernel had in hand is not kept");
  return note_signals(state);
}

/* --- frozen ----------------------------------------------------------------------------------- */

static void set_oom_score(const char *text) {
  int fd = tt_open(OOM_SCORE, O_WRONLY);
  if (fd >= 0) SC(SYS_write, fd, text, strlen(text));
  tt_close(fd);
}

static void close_all_but(int keep, int highest) {
  long r = keep ? SC(SYS_close_range, 0, keep - 1, 0) : 0;
  if (r == 0) r = SC(SYS_close_range, keep + 1, ~0u, 0);
  for (int fd = 0; r && fd < highest + 64; fd++)
    if (fd != keep) tt_close(fd);
}

void tt_process_freeze(struct tt_state *state, int keep) {
  if (!state->rseq_free) state->rseq_free = tt_rseq(state->leader.pointer, 0) == 0;
  SC(SYS_setsid);
  SC(SYS_chdir, "/"); /* before the last close, for which the live process waits */
  close_all_but(keep, state->highest_fd);
  /* else files of /proc/self are root's, and the memory could not be written down */
  state->dumpable = (int)SC(SYS_prctl, PR_GET_DUMPABLE);
  if (state->dumpable != 1) SC(SYS_prctl, PR_SET_DUMPABLE, 1);
  tt_process_note_score(state);
  tt_process_dim();
}

void tt_process_note_score(struct tt_state *state) {
  int fd = tt_open(OOM_SCORE, O_RDONLY);
  long n = fd < 0 ? 0 : tt_retry_read(fd, state->oom_score, sizeof state->oom_score - 1);
  state->oom_score[n > 0 ? n : 0] = 0;
  tt_close(fd);
}

void tt_process_dim(void) {
  set_oom_score("1000"); /* the first that is taken when memory runs out */
  SC(SYS_prctl, PR_SET_NAME, "tt-frozen");
}

/* --- waking ------------------------------------------------------------------------------- */

int tt_process_start(struct tt_state *state) {
  SC(SYS_setsid);
  if (state->oom_score[0]) set_oom_score(state->oom_score);
  if (!state->directory || SC(SYS_chdir, state->directory))
    tt_report(&state->report, "cwd", state->directory ? state->directory : "(deleted)",
              "is not there: the working directory is / now");
  SC(SYS_prctl, PR_SET_NAME, state->leader.name);
  if (state->dumpable != 1) SC(SYS_prctl, PR_SET_DUMPABLE, 0);
  if (state->death_signal) SC(SYS_prctl, PR_SET_PDEATHSIG, state->death_signal);
  if (state->subreaper) SC(SYS_prctl, PR_SET_CHILD_SUBREAPER, 1);
  if (state->leader.robust_size)
    SC(SYS_set_robust_list, state->leader.robust, state->leader.robust_size);
  SC(SYS_sigaltstack, &state->altstack, 0);
  return state->rseq_free ? tt_rseq(state->leader.pointer, 1) : 0;
}

static void send_again(uint64_t signals, int32_t tid) {
  long pid = SC(SYS_getpid);
  for (int s = 1; s <= 64; s++) {
    if (!(signals >> (s - 1) & 1)) continue;
    if (tid)
      SC(SYS_tgkill, pid, tid, s);
    else
      SC(SYS_kill, pid, s);
  }
}

void tt_process_finish(struct tt_state *state) {
  for (int i = 0; i < 3; i++) {
    struct itimerval *t = &state->itimers[i];
    if (t->it_value.tv_sec || t->it_value.tv_usec) SC(SYS_setitimer, i, t, 0);
  }
  send_again(state->pending, 0);
  send_again(state->leader.pending, (int32_t)SC(SYS_gettid));
}
