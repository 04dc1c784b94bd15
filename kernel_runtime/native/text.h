/* text.h: reading the text that /proc gives. Pure functions: no system calls, no state. A cursor
 * never leaves [at, end); the byte at end need not exist. */
#ifndef TT_TEXT_H
#define TT_TEXT_H

#include "sys.h"

struct tt_text {
  const char *at, *end;
};

/* Cut the next line off (without its newline). 0 when there is none. */
int tt_text_line(struct tt_text *text, struct tt_text *line);

/* Step over prefix; 0, and nothing moved, when it is not there. */
int tt_text_skip(struct tt_text *text, const char *prefix);

/* Step over blanks and tabs. */
void tt_text_blanks(struct tt_text *text);

/* Cut the next word (up to a blank or tab) off, after blanks. May be empty. */
struct tt_text tt_text_word(struct tt_text *text);

/* Whether the text is, begins with, or ends with that. */
int tt_text_is(struct tt_text text, const char *other);
int tt_text_ends(struct tt_text text, const char *suffix);

/* A number, after blanks; stops at the first byte that is no digit. */
uint64_t tt_text_hex(struct tt_text *text);
uint64_t tt_text_number(struct tt_text *text);

/* Find the line of key (such as "pos:") in text; the cursor stands behind the key and blanks.
 * 0 when there is none. */
int tt_text_field(struct tt_text text, const char *key, struct tt_text *value);

/* Decimal digits of v into to (at least 21 bytes), with a zero byte. Returns their number. */
size_t tt_text_decimal(char *to, uint64_t v);

/* prefix, then v in decimal, then suffix, then a zero byte; to is large enough. */
void tt_text_path(char *to, const char *prefix, uint64_t v, const char *suffix);

/* Whether two zero-ended strings are equal. */
int tt_text_same(const char *a, const char *b);

#endif
