/* text.c: see text.h. */
#include "text.h"

int tt_text_line(struct tt_text *text, struct tt_text *line) {
  if (text->at >= text->end) return 0;
  line->at = text->at;
  while (text->at < text->end && *text->at != '\n') text->at++;
  line->end = text->at;
  if (text->at < text->end) text->at++;
  return 1;
}

int tt_text_skip(struct tt_text *text, const char *prefix) {
  const char *p = text->at;
  for (; *prefix; prefix++, p++)
    if (p >= text->end || *p != *prefix) return 0;
  text->at = p;
  return 1;
}

void tt_text_blanks(struct tt_text *text) {
  while (text->at < text->end && (*text->at == ' ' || *text->at == '\t')) text->at++;
}

struct tt_text tt_text_word(struct tt_text *text) {
  tt_text_blanks(text);
  struct tt_text word = {text->at, text->at};
  while (text->at < text->end && *text->at != ' ' && *text->at != '\t') text->at++;
  word.end = text->at;
  return word;
}

int tt_text_is(struct tt_text text, const char *other) {
  return tt_text_skip(&text, other) && text.at == text.end;
}

int tt_text_ends(struct tt_text text, const char *suffix) {
  size_t n = strlen(suffix);
  if ((size_t)(text.end - text.at) < n) return 0;
  text.at = text.end - n;
  return tt_text_is(text, suffix);
}

uint64_t tt_text_hex(struct tt_text *text) {
  uint64_t v = 0;
  tt_text_blanks(text);
  for (; text->at < text->end; text->at++) {
    char c = *text->at;
    if (c >= '0' && c <= '9')
      v = v * 16 + (uint64_t)(c - '0');
    else if (c >= 'a' && c <= 'f')
      v = v * 16 + (uint64_t)(c - 'a' + 10);
    else
      break;
  }
  return v;
}

uint64_t tt_text_number(struct tt_text *text) {
  uint64_t v = 0;
  tt_text_blanks(text);
  for (; text->at < text->end && *text->at >= '0' && *text->at <= '9'; text->at++)
    v = v * 10 + (uint64_t)(*text->at - '0');
  return v;
}

int tt_text_field(struct tt_text text, const char *key, struct tt_text *value) {
  struct tt_text line;
  while (tt_text_line(&text, &line))
    if (tt_text_skip(&line, key)) {
      tt_text_blanks(&line);
      *value = line;
      return 1;
    }
  return 0;
}

size_t tt_text_decimal(char *to, uint64_t v) {
  char digits[20];
  size_t n = 0, i;
  do digits[n++] = (char)('0' + v % 10);
  while (v /= 10);
  for (i = 0; i < n; i++) to[i] = digits[n - 1 - i];
  to[n] = 0;
  return n;
}

void tt_text_path(char *to, const char *prefix, uint64_t v, const char *suffix) {
  size_t n = strlen(prefix);
  memcpy(to, prefix, n);
  n += tt_text_decimal(to + n, v);
  memcpy(to + n, suffix, strlen(suffix) + 1);
}

int tt_text_same(const char *a, const char *b) {
  size_t n = strlen(a);
  return n == strlen(b) && memcmp(a, b, n) == 0;
}
