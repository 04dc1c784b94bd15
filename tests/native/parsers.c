/* parsers.c: the parts of the library that read what others wrote, under sanitizers. The sources
 * are included, so that they are built with the same flags and static functions are in reach. */
#include "arena.c"
#include "procmap.c"
#include "report.c"
#include "state.c"
#include "text.c"
#include "unix_diag.c"

#include <stdio.h>
#include <stdlib.h>

#undef memcpy
static unsigned long state_of_random = 88172645463325252u;
static unsigned char random_byte(void) {
  state_of_random ^= state_of_random << 13;
  state_of_random ^= state_of_random >> 7;
  state_of_random ^= state_of_random << 17;
  return (unsigned char)(state_of_random >> 24);
}

#define CHECK(x)                                     \
  do                                                 \
    if (!(x)) {                                      \
      printf("%s:%d: %s\n", __FILE__, __LINE__, #x); \
      exit(1);                                       \
    }                                                \
  while (0)

static const char sample[] =
    "7f0012345000-7f0012346000 rw-s 00001000 fe:13 4242          /memfd:a b (deleted)\n"
    "7f0012346000-7f0012347000 r-xp 00000000 00:00 0 \n"
    "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n";

static int parse_maps(const char *at, size_t n) {
  struct tt_text text = {at, at + n};
  struct tt_maps_line line;
  int lines = 0;
  while (tt_maps_next(&text, &line)) {
    lines++;
    tt_text_ends(line.path, " (deleted)");
    tt_text_skip(&line.path, "/memfd:");
  }
  return lines;
}

static void test_maps(void) {
  struct tt_text text = {sample, sample + sizeof sample - 1};
  struct tt_maps_line m;
  CHECK(tt_maps_next(&text, &m));
  CHECK(m.start == 0x7f0012345000 && m.end == 0x7f0012346000 && m.shared && m.offset == 0x1000);
  CHECK(m.prot == (PROT_READ | PROT_WRITE) && m.ino == 4242 && m.dev == (0xfeull << 8 | 0x13));
  CHECK(tt_text_is(m.path, "/memfd:a b (deleted)"));
  CHECK(tt_maps_next(&text, &m) && !m.shared && m.path.at == m.path.end);
  CHECK(tt_maps_next(&text, &m) && tt_text_is(m.path, "[vsyscall]") && !tt_maps_next(&text, &m));
}

/* A copy in memory of its exact size, so that one byte too far is seen. */
static void on_exact_copy(const char *from, size_t n, int (*fn)(const char *, size_t)) {
  char *copy = malloc(n ? n : 1);
  for (size_t i = 0; i < n; i++) copy[i] = from[i];
  fn(copy, n);
  for (int round = 0; round < 20 && n; round++) {
    copy[(random_byte() * 256u + random_byte()) % n] = (char)random_byte();
    fn(copy, n);
  }
  free(copy);
}

static int parse_words(const char *at, size_t n) {
  struct tt_text text = {at, at + n}, line, value;
  tt_text_field(text, "pos:", &value);
  while (tt_text_line(&text, &line)) {
    tt_text_word(&line);
    tt_text_number(&line);
    tt_text_hex(&line);
    tt_text_blanks(&line);
  }
  return 0;
}

static int parse_diag(const char *at, size_t n) {
  struct tt_unix_facts facts;
  return tt_unix_parse(at, n, &facts);
}

static size_t diag_sample(char *to) {
  size_t n = NLMSG_LENGTH(sizeof(struct unix_diag_msg));
  struct nlmsghdr header = {0};
  struct rtattr peer = {8, UNIX_DIAG_PEER}, shut = {5, UNIX_DIAG_SHUTDOWN};
  uint32_t ino = 777;
  for (size_t i = 0; i < 128; i++) to[i] = 0;
  __builtin_memcpy(to + n, &peer, 4);
  __builtin_memcpy(to + n + 4, &ino, 4);
  __builtin_memcpy(to + n + 8, &shut, 4);
  to[n + 12] = 2;
  header.nlmsg_len = (uint32_t)n + 16;
  header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  __builtin_memcpy(to, &header, sizeof header);
  return n + 16;
}

static void test_report(void) {
  for (size_t size = 0; size < 300; size++) {
    char *buffer = malloc(size ? size : 1);
    struct tt_report r;
    tt_report_start(&r, buffer, size);
    for (int i = 0; i < 5; i++) tt_report(&r, "kind", "a\tb\\\xff", "detail\n");
    if (size) CHECK(strlen(buffer) < size);
    if (size >= 299) CHECK(!r.left_out);
    free(buffer);
  }
  char buffer[200];
  struct tt_report r;
  tt_report_start(&r, buffer, sizeof buffer);
  tt_report(&r, "k", "a\tb\\\xff", "d\n");
  CHECK(tt_text_same(buffer, "k\ta\\x09b\\x5c\\xff\td\\x0a\n"));
  struct tt_note note = {{0}, 0};
  for (int i = 0; i < 100; i++) tt_note_error(&note, -ENOENT), tt_note_hex(&note, ~0ull);
  CHECK(strlen(note.text) == sizeof note.text - 1);
}

static void test_numbers(void) {
  char to[64];
  CHECK(tt_text_decimal(to, 0) == 1 && tt_text_same(to, "0"));
  CHECK(tt_text_decimal(to, ~0ull) == 20 && tt_text_same(to, "18446744073709551615"));
  tt_text_path(to, "/proc/", 12, "/comm");
  CHECK(tt_text_same(to, "/proc/12/comm"));
}

static void test_arena(void) {
  struct tt_arena arena = {0};
  for (size_t n = 1; n < 2000000; n = n * 3 + 1) {
    char *p = tt_alloc(&arena, n);
    CHECK(p && (uintptr_t)p % 16 == 0 && p[0] == 0 && p[n - 1] == 0);
    p[0] = p[n - 1] = 1;
  }
  CHECK(!tt_alloc(&arena, (size_t)1 << 62));
  tt_arena_free(&arena);
  struct tt_buffer b = {0, 0, 0};
  CHECK(!tt_buffer_reserve(&b, 1) && !tt_buffer_reserve(&b, 100000) && b.capacity >= 100000);
  CHECK(tt_buffer_reserve(&b, (size_t)1 << 62) == -ENOMEM);
  tt_buffer_free(&b);
}

int main(void) {
  char diag[128];
  struct tt_unix_facts facts;
  test_maps();
  test_report();
  test_numbers();
  test_arena();
  size_t n = diag_sample(diag);
  CHECK(tt_unix_parse(diag, n, &facts) == 0 && facts.peer_ino == 777 && facts.shutdown == 2);
  for (size_t i = 0; i < sizeof sample; i++) {
    on_exact_copy(sample, i, parse_maps);
    on_exact_copy(sample, i, parse_words);
  }
  for (size_t i = 0; i <= n; i++) on_exact_copy(diag, i, parse_diag);
  puts("ok");
  return 0;
}
