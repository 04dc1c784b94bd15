/* image.c: a clone of a frozen process writes itself down, and what it does first where it was
 * loaded again. See image.h. Raw system calls only. */
#include "image.h"

#include <linux/prctl.h>

#include "copies.h"
#include "memory.h"
#include "process.h"
#include "wake.h"

#if TT_THREADS

__asm__(".text\n" TT_CONTEXT_CODE);

/* Part of the image: what the loader and the loaded process find in it. */
static struct tt_landing landing;
static struct tt_context context;
static struct tt_kept kept;

/* --- writing ---------------------------------------------------------------------------------- */

static int copy_vdso(struct tt_image_head *head) {
  for (int i = 0; i < TT_IMAGE_SPECIALS; i++) {
    const struct tt_image_special *s = &head->special[i];
    if (!tt_text_same(s->name, "[vdso]")) continue;
    head->vdso_size = s->end - s->start;
    size_t used = tt_vdso_used((const char *)(uintptr_t)s->start, head->vdso_size);
    if (used > sizeof head->vdso) return -ENOTSUP;
    memcpy(head->vdso, (const void *)(uintptr_t)s->start, used);
  }
  return 0;
}

uint64_t tt_highest_id(const struct tt_state *state) {
  int32_t highest = state->leader.tid;
  for (const struct tt_slot *s = state->stopped.first; s; s = s->next)
    if (s->tid > highest) highest = s->tid;
  return (uint64_t)highest;
}

static void write_all(struct tt_state *state, int fd) {
  struct tt_image_out out = {fd, 0, 0, 0};
  struct tt_image_head *head = tt_alloc(&state->arena, sizeof *head);
  struct tt_image_end end;
  tt_step_back();
  SC(SYS_prctl, PR_SET_NAME, "tt-image");
  memset(&end, 0, sizeof end);
  if (head) {
    out.error = tt_image_machine(head);
    head->page = (uint32_t)tt_page;
    head->landing = (uintptr_t)&landing;
    head->context = (uintptr_t)&context;
    head->highest_id = tt_highest_id(state);
    if (!out.error && kept.keys.error) out.error = -EKEYREJECTED; /* image_taking.py has the words */
    if (!out.error) out.error = tt_image_specials(head->special);
    if (!out.error) out.error = copy_vdso(head);
    if (!out.error) tt_image_put(&out, TT_IMAGE_HEAD, head, sizeof *head, 0, 0);
    if (!out.error) tt_image_pages(&out);
    end.error = -out.error;
  } else {
    end.error = ENOMEM;
  }
  end.maps = out.maps;
  end.bytes = out.bytes;
  out.error = 0;
  tt_image_put(&out, TT_IMAGE_END, &end, sizeof end, 0, 0);
}

/* --- loaded ----------------------------------------------------------------------------------- */

static void fail(int error, const char *what) {
  struct tt_loaded answer;
  memset(&answer, 0, sizeof answer);
  answer.error = -error;
  answer.pid = (int32_t)SC(SYS_getpid);
  memcpy(answer.what, what, strlen(what));
  SC(SYS_sendto, landing.control_fd, &answer, sizeof answer, MSG_NOSIGNAL, 0, 0);
  for (;;) SC(SYS_exit_group, 1);
}

static int land(struct tt_state *state, int keys) {
  struct tt_loaded answer;
  memset(&answer, 0, sizeof answer);
  if (keys) fail(keys, "setting the keys of pointer authentication");
  SC(SYS_munmap, landing.den, landing.den_size);
  answer.flags = tt_kept_restore(&kept);
  state->freeze->supervisor_pid = landing.supervisor_pid;
  answer.pid = (int32_t)SC(SYS_getpid);
  /* what tt_frozen has done in the process that was cloned */
  SC(SYS_setsid);
  SC(SYS_chdir, "/");
  tt_process_dim();
  long sent = SC(SYS_sendto, landing.control_fd, &answer, sizeof answer, MSG_NOSIGNAL, 0, 0);
  while (sent < 0) SC(SYS_exit_group, 1); /* nobody waits for it any more */
  tt_close(landing.control_fd);
  return landing.listen_fd;
}

int tt_image_write(struct tt_state *state, int fd) {
  tt_kept_note(&kept);
  if (tt_context_save(&context)) return land(state, tt_keys_set(&kept.keys));
  write_all(state, fd);
  for (;;) SC(SYS_exit_group, 0);
}

#else

int tt_image_write(struct tt_state *state, int fd) {
  (void)state, (void)fd;
  for (;;) SC(SYS_exit_group, 1);
}

#endif
