/* report.c: see report.h. */
#include "report.h"

#include "text.h"

#define LAST_LINE 48 /* room for "more\tN\tlines did not fit\n" */

static size_t escape(char *to, size_t room, const char *text) {
  static const char digits[] = "0123456789abcdef";
  size_t n = 0;
  for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
    int plain = *p >= ' ' && *p < 127 && *p != '\\';
    if (n + (plain ? 1 : 4) > room) return room + 1;
    if (plain) {
      to[n++] = (char)*p;
    } else {
      to[n++] = '\\', to[n++] = 'x';
      to[n++] = digits[*p >> 4], to[n++] = digits[*p & 15];
    }
  }
  return n;
}

void tt_report_start(struct tt_report *report, char *text, size_t size) {
  memset(report, 0, sizeof *report);
  report->text = text;
  report->size = text ? size : 0;
  if (report->size) text[0] = 0;
}

static void say_left_out(struct tt_report *report) {
  char line[LAST_LINE];
  if (report->size < LAST_LINE) return;
  tt_text_path(line, "more\t", report->left_out, "\tlines did not fit\n");
  memcpy(report->text + report->used, line, strlen(line) + 1);
}

void tt_report(struct tt_report *report, const char *kind, const char *subject,
               const char *detail) {
  const char *parts[] = {kind, subject, detail};
  size_t at = report->used, end = report->size < LAST_LINE ? 0 : report->size - LAST_LINE;
  for (int i = 0; i < 3 && at < end; i++) {
    at += escape(report->text + at, end - at, parts[i]);
    if (at < end)
      report->text[at++] = i < 2 ? '\t' : '\n';
    else
      at = end + 1;
  }
  if (report->left_out || at > end || !end) {
    report->left_out++;
    say_left_out(report);
    return;
  }
  report->used = at;
  report->text[at] = 0;
}

void tt_note_bytes(struct tt_note *note, const char *text, size_t n) {
  size_t room = sizeof note->text - 1 - note->used;
  if (n > room) n = room;
  memcpy(note->text + note->used, text, n);
  note->used += n;
  note->text[note->used] = 0;
}

void tt_note(struct tt_note *note, const char *text) { tt_note_bytes(note, text, strlen(text)); }

void tt_note_number(struct tt_note *note, uint64_t v) {
  char digits[21];
  tt_note_bytes(note, digits, tt_text_decimal(digits, v));
}

void tt_note_hex(struct tt_note *note, uint64_t v) {
  char digits[16];
  size_t n = 0;
  do digits[15 - n++] = "0123456789abcdef"[v & 15];
  while (v >>= 4);
  tt_note_bytes(note, digits + 16 - n, n);
}

void tt_note_error(struct tt_note *note, int error) {
  static const struct {
    int error;
    const char *words;
  } known[] = {
      {ENOENT, "not there"},         {EACCES, "not allowed"},      {EPERM, "not permitted"},
      {EADDRINUSE, "address taken"}, {EAGAIN, "taken or full"},    {EMFILE, "too many descriptors"},
      {ENOMEM, "out of memory"},     {ENOSPC, "no space"},         {ENXIO, "no such device"},
      {ENODEV, "no such device"},    {ENOTDIR, "not a directory"}, {EROFS, "read-only filesystem"},
      {ETXTBSY, "file is running"},  {EINVAL, "refused"},          {EEXIST, "id taken"},
  };
  if (error < 0) error = -error;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (known[i].error == error) {
      tt_note(note, known[i].words);
      tt_note(note, " ");
    }
  tt_note(note, "(errno ");
  tt_note_number(note, (uint64_t)error);
  tt_note(note, ")");
}
