/* maps.c: shared mappings: recipes at the freeze, placeholders while frozen, mapped again at the
 * wake. See memory.h. */
#include "memory.h"
#include "objects.h"
#include "procmap.h"

#include <linux/prctl.h>

/* Room for the text of the live process, where a clone lacks something. */
#define TEXT_ROOM ((size_t)4 << 20)

/* --- describing ------------------------------------------------------------------------------ */

static int starts(struct tt_text text, const char *prefix) { return tt_text_skip(&text, prefix); }

static void report_path(struct tt_state *state, const char *kind, const struct tt_maps_line *m,
                        const char *detail) {
  struct tt_note subject = {{0}, 0};
  tt_note_bytes(&subject, m->path.at, (size_t)(m->path.end - m->path.at));
  tt_report(&state->report, kind, subject.text, detail);
}

/* Which kind of object a shared mapping is of; -1: a file to be mapped again by its path; -2: one
 * that cannot be. */
static int object_kind(struct tt_state *state, const struct tt_maps_line *m) {
  if (starts(m->path, "/dev/zero (deleted)")) return TT_OBJECT_ANONYMOUS;
  if (starts(m->path, "/SYSV")) {
    report_path(state, "memory", m, "a System V segment: kept, but as memory of this process only");
    return TT_OBJECT_ANONYMOUS;
  }
  if (starts(m->path, "/anon_hugepage")) {
    report_path(state, "memory", m, "shared huge pages: kept in ordinary pages");
    return TT_OBJECT_ANONYMOUS;
  }
  if (starts(m->path, "/[aio]")) {
    report_path(state, "aio", m, "asynchronous I/O contexts are not brought back");
    return -2;
  }
  if (starts(m->path, "/memfd:")) return TT_OBJECT_MEMFD;
  if (starts(m->path, "/dev/shm/") && !tt_text_ends(m->path, " (deleted)")) return TT_OBJECT_SHM;
  if (starts(m->path, "/dev/")) {
    if (!tt_text_ends(m->path, " (deleted)")) {
      report_path(state, starts(m->path, "/dev/nvidia") ? "cuda" : "device", m,
                  "a device's memory is not mapped again");
      return -2;
    }
  }
  if (!starts(m->path, "/")) {
    report_path(state, "memory", m, "is not mapped again");
    return -2;
  }
  return tt_text_ends(m->path, " (deleted)") ? TT_OBJECT_DELETED : -1;
}

/* An object that no descriptor is open on. A named one can be opened; of the others only what is
 * mapped can be had. */
static int first_sight(struct tt_state *state, struct tt_object *o) {
  struct stat st;
  if (o->kind != TT_OBJECT_SHM) return 0;
  int fd = tt_open(o->path, O_RDONLY | O_NOFOLLOW), error = 0;
  if (fd >= 0 && SC(SYS_fstat, fd, &st) == 0 && st.st_ino == o->ino) {
    error = tt_object_copy(state, o, fd);
    o->whole = 1;
  }
  tt_close(fd);
  return error;
}

static int describe_object(struct tt_state *state, struct tt_map *map, const struct tt_maps_line *m,
                           enum tt_object_kind kind) {
  struct tt_object *o = tt_object_find(state, m->dev, m->ino);
  if (!o) {
    o = tt_object_add(state, kind, m->dev, m->ino, m->path);
    if (!o) return -ENOMEM;
    int error = first_sight(state, o);
    if (error) return error;
  }
  map->object = o;
  if (o->whole) return 0;
  uint64_t size = map->offset + (map->end - map->start);
  if (size > o->size) o->size = size;
  return tt_object_copy_mapped(state, o, map);
}

static int is_file(const char *path, uint64_t ino) {
  struct stat st;
  return SC(SYS_newfstatat, AT_FDCWD, path, &st, 0) == 0 && st.st_ino == ino;
}

static int is_line_end(const char *at) {
  return at[0] == '\\' && at[1] == '0' && at[2] == '1' && at[3] == '2';
}

/* The path of a mapped file. A line end in a name is written as \012, which may be in a name as
 * well: the disk tells. NULL without room. */
static char *path_of(struct tt_state *state, const struct tt_maps_line *m) {
  size_t size = (size_t)(m->path.end - m->path.at);
  char *path = tt_copy_text(&state->arena, m->path.at, size), *from = path;
  if (!path) return NULL;
  while (*from && !is_line_end(from)) from++;
  if (!*from || is_file(path, m->ino)) return path;
  char *plain = tt_copy_text(&state->arena, path, size);
  if (!plain) return NULL;
  for (char *to = plain + (from - path); (*to = *from); to++, from++)
    if (is_line_end(from)) {
      *to = '\n';
      from += 3;
    }
  return is_file(plain, m->ino) ? plain : path;
}

static int describe(struct tt_state *state, const struct tt_maps_line *m) {
  struct tt_map *map = tt_alloc(&state->arena, sizeof *map);
  if (!map) return -ENOMEM;
  map->start = m->start;
  map->end = m->end;
  map->prot = m->prot;
  map->offset = m->offset;
  map->next = state->maps;
  state->maps = map;
  int kind = object_kind(state, m);
  if (kind == TT_OBJECT_DELETED || kind == -1) {
    map->path = path_of(state, m);
    if (!map->path) return -ENOMEM;
    /* a name may end like that; then the file is there */
    if (kind == TT_OBJECT_DELETED && is_file(map->path, m->ino)) return 0;
    if (kind == TT_OBJECT_DELETED) map->path = NULL;
  }
  if (kind < 0) return 0;
  struct tt_maps_line named = *m;
  if (kind == TT_OBJECT_DELETED) {
    int renamed = tt_object_renamed(state, &named.path, m->ino);
    if (renamed < 0) return renamed;
    if (renamed) kind = TT_OBJECT_SHM;
  }
  return describe_object(state, map, &named, (enum tt_object_kind)kind);
}

static int describe_all(struct tt_state *state, struct tt_walk *walk) {
  struct tt_maps_line m;
  int r, error = 0;
  state->maps = 0;
  while (!error && (r = tt_walk_next(walk, &m)) != 0) error = r < 0 ? r : describe(state, &m);
  tt_walk_end(walk);
  return error;
}

static void swap_texts(struct tt_state *state) {
  struct tt_buffer text = state->text;
  state->text = state->maps_text;
  state->maps_text = text;
}

/* Before Linux 6.11. The text is kept: tt_regions_find compares with it. */
static int describe_text(struct tt_state *state) {
  struct tt_walk walk;
  size_t capacity;
  int error;
  do { /* again when the buffer has moved meanwhile: it is in the text, too */
    capacity = state->text.capacity;
    error = tt_slurp(state, "/proc/self/maps");
  } while (!error && state->text.capacity != capacity);
  swap_texts(state);
  tt_walk_text(&walk, TT_WALK_SHARED, &state->maps_text);
  if (!error) error = describe_all(state, &walk);
  /* room for the same text in the frozen process: it must not map anything before it has seen
   * which regions are missing */
  if (!error) error = tt_buffer_reserve(&state->text, state->maps_text.size + 65536);
  return error;
}

int tt_maps_describe(struct tt_state *state) {
  struct tt_walk walk;
  /* what a clone lacks it could not ask: nobody else may look at such a process */
  if (SC(SYS_prctl, PR_GET_DUMPABLE) != 1) return describe_text(state);
  int error = tt_walk_ask(&walk, TT_WALK_SHARED, 1);
  if (!error) error = describe_all(state, &walk);
  if (!error) error = tt_buffer_reserve(&state->maps_text, TEXT_ROOM);
  return error ? describe_text(state) : 0;
}

/* --- frozen ----------------------------------------------------------------------------------- */

static void hold_place(uintptr_t start, uintptr_t end) {
  SC(SYS_mmap, start, end - start, PROT_NONE,
     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

void tt_maps_drop(struct tt_state *state) {
  for (struct tt_map *m = state->maps; m; m = m->next) hold_place(m->start, m->end);
}

static void add_region(struct tt_state *state, uintptr_t start, uintptr_t end, int prot) {
  struct tt_region *r = tt_alloc(&state->arena, sizeof *r);
  hold_place(start, end);
  if (!r) return;
  r->start = start;
  r->end = end;
  r->prot = prot;
  r->next = state->regions;
  state->regions = r;
}

/* What is marked not to be copied is not counted in a clone (dup_mmap in the kernel's kernel/fork.c). */
void tt_regions_note(struct tt_state *state) {
  state->mapped_pages = state->maps_text.size ? 0 : tt_mapped_pages("/proc/self");
}

int tt_regions_lack(const struct tt_state *state, int32_t pid) {
  char proc[32] = "/proc/self";
  if (!state->mapped_pages) return 0;
  if (pid) tt_text_path(proc, "/proc/", (uint64_t)pid, "");
  return tt_mapped_pages(proc) != state->mapped_pages;
}

void tt_regions_ask(struct tt_state *state) {
  char path[48];
  /* the live one waits, unchanged: another size, and this /proc is of another pid namespace */
  if (!tt_regions_lack(state, 0) || tt_regions_lack(state, state->leader.tid)) return;
  tt_text_path(path, "/proc/", (uint64_t)state->leader.tid, "/maps");
  swap_texts(state);
  if (tt_slurp(state, path)) state->text.size = 0;
  swap_texts(state);
}

static int walk_own(struct tt_state *state, struct tt_walk *walk) {
  if (state->mapped_pages) return tt_walk_ask(walk, 0, 0);
  int error = tt_slurp(state, "/proc/self/maps");
  tt_walk_text(walk, 0, &state->text);
  return error;
}

void tt_regions_find(struct tt_state *state) {
  struct tt_maps_line before, now = {0, 0, 0, 0, 0, 0, 0, {0, 0}, 0};
  struct tt_walk old, ours;
  if (!state->maps_text.size || walk_own(state, &ours)) return;
  tt_walk_text(&old, 0, &state->maps_text);
  while (tt_walk_next(&old, &before) > 0) {
    uintptr_t at = before.start;
    while (at < before.end) {
      while (now.end <= at && tt_walk_next(&ours, &now) > 0) {
      }
      uintptr_t next = now.end <= at || now.start > before.end ? before.end : now.start;
      if (next > at) {
        /* the last line of the text is the kernel's own, of which the kernel does not tell else */
        if (!before.shared && !starts(before.path, "[vsyscall]"))
          add_region(state, at, next, before.prot);
        at = next;
      } else {
        at = now.end;
      }
    }
  }
  tt_walk_end(&ours);
}

/* --- waking ------------------------------------------------------------------------------- */

static void report_failed(struct tt_state *state, const char *path, long error) {
  struct tt_note note = {{0}, 0};
  tt_note(&note, "not mapped again, ");
  tt_note_error(&note, (int)error);
  tt_report(&state->report, "memory", path, note.text);
}

static long map_file(const struct tt_map *m, const char *path, int fd) {
  int own = fd < 0;
  if (own) {
    fd = tt_open(path, m->prot & PROT_WRITE && !m->private ? O_RDWR : O_RDONLY);
    if (fd < 0) return fd;
  }
  int flags = (m->private ? MAP_PRIVATE : MAP_SHARED) | MAP_FIXED;
  long r = SC(SYS_mmap, m->start, m->end - m->start, m->prot, flags, fd, m->offset);
  if (own) tt_close(fd);
  return tt_failed(r) ? r : 0;
}

/* mremap with an old size of 0 maps the same shared memory a second time (mremap(2)). */
static long map_anonymous(const struct tt_map *m) {
  char *from = m->object->made_at + m->offset;
  if (!m->object->made_at) return -ENOENT;
  long r = SC(SYS_mremap, from, 0, m->end - m->start, MREMAP_MAYMOVE | MREMAP_FIXED, m->start);
  if (!tt_failed(r)) r = SC(SYS_mprotect, m->start, m->end - m->start, m->prot);
  return tt_failed(r) ? r : 0;
}

void tt_maps_make(struct tt_state *state) {
  for (struct tt_map *m = state->maps; m; m = m->next) {
    long r = 0;
    if (m->object && m->object->kind == TT_OBJECT_ANONYMOUS)
      r = map_anonymous(m);
    else if (m->object)
      r = m->object->made < 0 ? -ENOENT : map_file(m, 0, m->object->made);
    else if (m->path)
      r = map_file(m, m->path, -1);
    if (r) report_failed(state, m->path ? m->path : m->object->path, r);
  }
  for (struct tt_region *r = state->regions; r; r = r->next) {
    struct tt_note subject = {{0}, 0};
    SC(SYS_mmap, r->start, r->end - r->start, r->prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
       0);
    tt_note_hex(&subject, r->start);
    tt_note(&subject, "-");
    tt_note_hex(&subject, r->end);
    tt_report(&state->report, "memory", subject.text,
              "was marked not to be copied (MADV_DONTFORK): zeros now");
  }
}
