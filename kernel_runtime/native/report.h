/* report.h: the lines that say what is not faithful: "kind\tsubject\tdetail\n". */
#ifndef TT_REPORT_H
#define TT_REPORT_H

#include "sys.h"

struct tt_report {
  char *text; /* the caller's buffer, or NULL */
  size_t size, used;
  uint32_t left_out; /* lines that did not fit: the last line says so */
};

void tt_report_start(struct tt_report *report, char *text, size_t size);

/* Add a line. A whole line fits, or it is counted only. */
void tt_report(struct tt_report *report, const char *kind, const char *subject, const char *detail);

/* A short text in the making; what does not fit is cut off. */
struct tt_note {
  char text[512];
  size_t used;
};

void tt_note(struct tt_note *note, const char *text);
void tt_note_bytes(struct tt_note *note, const char *text, size_t n);
void tt_note_number(struct tt_note *note, uint64_t v);
void tt_note_hex(struct tt_note *note, uint64_t v);

/* "name (errno N)" for the errors that users meet, "errno N" for the rest. error may be negative.
 */
void tt_note_error(struct tt_note *note, int error);

#endif
