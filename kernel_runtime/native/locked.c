/* locked.c: memory that mlock(2) keeps from being swapped out. See memory.h. */
#include "memory.h"
#include "procmap.h"

static int add(struct tt_state *state, const struct tt_maps_line *m) {
  struct tt_region *r = tt_alloc(&state->arena, sizeof *r);
  if (!r) return -ENOMEM;
  r->start = m->start;
  r->end = m->end;
  r->next = state->locked;
  state->locked = r;
  return 0;
}

static int is_locked(struct tt_text flags) {
  for (;;) {
    struct tt_text word = tt_text_word(&flags);
    if (word.at == word.end) return 0;
    if (tt_text_is(word, "lo")) return 1;
  }
}

int tt_locked_describe(struct tt_state *state) {
  struct tt_maps_line m = {0, 0, 0, 0, 0, 0, 0, {0, 0}, 0};
  struct tt_text line;
  int error = tt_slurp(state, "/proc/self/smaps");
  struct tt_text text = tt_slurped(state);
  while (!error && text.at < text.end) {
    if ((*text.at >= '0' && *text.at <= '9') || (*text.at >= 'a' && *text.at <= 'f'))
      tt_maps_next(&text, &m);
    else if (tt_text_line(&text, &line) && tt_text_skip(&line, "VmFlags:") && is_locked(line))
      error = add(state, &m);
  }
  return error;
}

/* What was locked on a fault (MLOCK_ONFAULT) is not told apart: it is all there afterwards. */
void tt_locked_again(struct tt_state *state) {
  for (struct tt_region *r = state->locked; r; r = r->next) {
    long error = SC(SYS_mlock, r->start, r->end - r->start);
    if (!error) continue;
    struct tt_note subject = {{0}, 0}, note = {{0}, 0};
    tt_note_hex(&subject, r->start);
    tt_note(&subject, "-");
    tt_note_hex(&subject, r->end);
    tt_note(&note, "was locked (mlock) and is not any more, ");
    tt_note_error(&note, (int)error);
    tt_report(&state->report, "memory", subject.text, note.text);
  }
}
