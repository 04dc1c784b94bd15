/* wake.c: see wake.h. Single-threaded and without libc until the last thread is made; user code
 * runs only when nothing can fail any more. */
#include "copies.h"
#include "difference.h"
#include "fds.h"
#include "memory.h"
#include "mutexes.h"
#include "process.h"
#include "timers.h"
#include "wake.h"

void tt_answer(int connection, int error, int32_t pid, uint64_t started, uint64_t bytes) {
  struct tt_answer answer = {error < 0 ? -error : error, pid, tt_now_ns() - started, bytes};
  SC(SYS_sendto, connection, &answer, sizeof answer, MSG_NOSIGNAL, 0, 0);
}

void tt_state_free(struct tt_state *state, int shared) {
  struct tt_arena arena = state->arena; /* the state lies in it */
  tt_buffer_free(&state->text);
  tt_buffer_free(&state->maps_text);
  tt_arena_free(&arena);
  tt_pool_empty(shared);
}

static void tell(struct tt_waking *w, int error, enum tt_step step) {
  tt_answer(w->connection, error, (int32_t)SC(SYS_getpid), w->started, step);
  tt_close(w->connection);
}

__attribute__((noreturn)) static void give_up(struct tt_waking *w, int error, enum tt_step step) {
  tell(w, error, step);
  for (;;) SC(SYS_exit_group, 1);
}

static int park_all(struct tt_state *state, struct tt_waking *w) {
  int *all[] = {&w->connection, &w->passed[0], &w->passed[1], &w->passed[2]};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (*all[i] < 0) continue;
    int fd = tt_fds_park(state, *all[i]);
    *all[i] = fd;
    if (fd < 0) return fd;
  }
  return 0;
}

static int descriptors(struct tt_state *state, struct tt_waking *w) {
  struct rlimit limit;
  tt_fds_raise_limit(state, &limit);
  int error = park_all(state, w);
  if (!error) error = tt_objects_make(state);
  if (!error) error = tt_fds_rebuild(state, w->passed);
  if (!error && w->copy) error = tt_copies_streams(w->passed);
  if (!error) tt_maps_make(state);
  tt_objects_close(state);
  if (!error && !w->copy) tt_locked_again(state);
  for (int i = 0; i < 3; i++) tt_close(w->passed[i]);
  if (!error) tt_locks_take(state);
  SC(SYS_prlimit64, 0, RLIMIT_NOFILE, &limit, 0);
  return error;
}

static void report_threads(struct tt_state *state) {
  for (struct tt_slot *s = state->stopped.first; s; s = s->next) {
    if (!s->error) continue;
    struct tt_note subject = {{0}, 0};
    tt_note_number(&subject, (uint64_t)s->tid);
    tt_note(&subject, " ");
    tt_note(&subject, s->thread.name);
    tt_report(&state->report, "thread", subject.text,
              s->error & 1 ? "does not run on the processors it was bound to"
              : s->error & 2
                  ? "does not have its scheduling policy or nice value back"
                  : "does not have its priority at the disk back");
  }
}

int tt_wake(struct tt_state *state, struct tt_waking *w, int listen_fd) {
  struct tt_freeze *f = state->freeze;
  tt_close(listen_fd);
  tt_base_made(state, 0); /* that was of another process */
  tt_report_start(&state->report, state->report_text, state->report_size);
  int error = w->copy ? tt_copies_trim(state) : 0;
  if (!error) error = tt_process_start(state);
  if (error) give_up(w, error, TT_STEP_PROCESS);
  error = descriptors(state, w);
  if (error) give_up(w, error, TT_STEP_DESCRIPTORS);
  if (w->copy) error = tt_copies_confine(state);
  if (error) give_up(w, error, TT_STEP_PROCESS);
  tt_forget_signals();
  error = tt_threads_make(&state->stopped, &w->ids);
  if (error) give_up(w, error, TT_STEP_THREADS);
  if (!w->ids.kept && state->stopped.count) tt_mutexes_reown(state);
  report_threads(state);
  tt_timers_make(state);
  tt_fds_owners(state);
  tt_process_finish(state);
  int k = w->copy ? 1 : (int)state->wakes;
  uint64_t mask = state->mask;
  f->woken_ids_kept = (uint32_t)w->ids.kept;
  f->woken_copy = (uint32_t)w->copy;
  f->threads = state->stopped.count;
  f->frozen_fds = state->count_fds;
  f->pause_ns = tt_now_ns() - w->started;
  tell(w, 0, TT_STEP_NONE);
  tt_forget_slots(&state->stopped);
  tt_state_free(state, 1);
  tt_threads_go();
  SC(SYS_rt_sigprocmask, SIG_SETMASK, &mask, 0, 8);
  if (w->copy && f->in_copy) ((void (*)(void))(uintptr_t)f->in_copy)();
  return k;
}
