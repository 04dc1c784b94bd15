/* timers.c: see timers.h. The kernel lists timers in /proc/PID/timers (proc(5)). A program holds on
 * to the number of a timer, so each is made again under its own. */
#include "timers.h"

#define PR_TIMER_CREATE_RESTORE_IDS_ 77 /* Linux 6.15: the next timers take the numbers we name */
#define MOST_TRIES 100000               /* before: numbers rise with each timer that is made */

struct tt_timer {
  struct tt_timer *next;
  int32_t id, clock;
  int32_t target; /* thread id, or 0: the process */
  struct itimerspec left;
  struct { /* struct sigevent as the kernel has it (64 bytes) */
    uint64_t value;
    int32_t signal, notify, tid;
    char rest[44];
  } event;
};

/* --- describing ------------------------------------------------------------------------------ */

/* "signal: 14/000055d0c0ffee00", "notify: signal/pid.1234", "ClockID: 1" */
static void read_line(struct tt_timer *t, struct tt_text line) {
  if (tt_text_skip(&line, "signal:")) {
    t->event.signal = (int32_t)tt_text_number(&line);
    tt_text_skip(&line, "/");
    t->event.value = tt_text_hex(&line);
  } else if (tt_text_skip(&line, "notify:")) {
    tt_text_blanks(&line);
    t->event.notify = tt_text_skip(&line, "none") ? SIGEV_NONE : SIGEV_SIGNAL;
    tt_text_skip(&line, "signal");
    tt_text_skip(&line, "/");
    if (!tt_text_skip(&line, "tid.")) return;
    t->event.notify = 4; /* SIGEV_THREAD_ID */
    t->target = (int32_t)tt_text_number(&line);
  } else if (tt_text_skip(&line, "ClockID:")) {
    tt_text_blanks(&line);
    int negative = tt_text_skip(&line, "-");
    t->clock = (int32_t)tt_text_number(&line);
    if (negative) t->clock = -t->clock;
  }
}

int tt_timers_describe(struct tt_state *state) {
  struct tt_timer *t = 0;
  if (tt_slurp(state, "/proc/self/timers")) return 0;
  struct tt_text text = tt_slurped(state), line;
  while (tt_text_line(&text, &line)) {
    if (tt_text_skip(&line, "ID:")) {
      t = tt_alloc(&state->arena, sizeof *t);
      if (!t) return -ENOMEM;
      t->id = (int32_t)tt_text_number(&line);
      SC(SYS_timer_gettime, t->id, &t->left);
      t->next = state->timers;
      state->timers = t;
    } else if (t) {
      read_line(t, line);
    }
  }
  return 0;
}

/* --- waking ------------------------------------------------------------------------------- */

static long make(struct tt_timer *t) {
  int32_t id = t->id;
  if (SC(SYS_prctl, PR_TIMER_CREATE_RESTORE_IDS_, 1) == 0) {
    long r = SC(SYS_timer_create, t->clock, &t->event, &id);
    SC(SYS_prctl, PR_TIMER_CREATE_RESTORE_IDS_, 0);
    return r;
  }
  for (int tries = 0; tries < MOST_TRIES; tries++) {
    long r = SC(SYS_timer_create, t->clock, &t->event, &id);
    if (r || id == t->id) return r;
    SC(SYS_timer_delete, id);
    if (id > t->id) break;
  }
  return -EEXIST;
}

/* From the lowest number up: the list is in falling order when the kernel lists them rising. */
static struct tt_timer *take_lowest(struct tt_timer **list) {
  struct tt_timer **lowest = list;
  for (struct tt_timer **t = list; *t; t = &(*t)->next)
    if ((*t)->id < (*lowest)->id) lowest = t;
  struct tt_timer *found = *lowest;
  *lowest = found->next;
  return found;
}

void tt_timers_make(struct tt_state *state) {
  while (state->timers) {
    struct tt_timer *t = take_lowest(&state->timers);
    if (t->target) t->event.tid = tt_woken_tid(state, t->target);
    long r = make(t);
    if (!r) r = SC(SYS_timer_settime, t->id, 0, &t->left, 0);
    if (!r) continue;
    struct tt_note subject = {{0}, 0}, note = {{0}, 0};
    tt_note_number(&subject, (uint64_t)t->id);
    tt_note(&note, "a timer of timer_create was not made again, ");
    tt_note_error(&note, (int)r);
    tt_report(&state->report, "timer", subject.text, note.text);
  }
}
