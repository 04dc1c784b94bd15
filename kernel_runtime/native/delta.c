/* delta.c: what is left of memory when it is foretold from an older version of it.
 *
 * Both are taken as lanes of 1, 2, 4 or 8 bytes. A lane is foretold from the old one: the same, or,
 * as IEEE 754 has it, a constant more or so many times as much. What is left is the difference of
 * the two as whole numbers, folded so that small ones of either sign are small (zigzag, as Protocol
 * Buffers do), and written byte by byte in planes (shuffle, as Blosc does): mostly zeros, where a
 * cell has added something to an array, which a compressor makes nearly nothing of.
 *
 * Read again on another machine, years later, a lane must be foretold as it was: so nothing is
 * foretold by arithmetic that processors or their modes do in more than one way (NaN, denormals),
 * and a thread for which a library has chosen another way of rounding does not use that here. */
#include "sys.h"
#include "timetravel.h"

#include <string.h>

enum { SAME, PLUS, TIMES };

/* Where the old number or the new one is none, infinite or denormal, the lane stays what it was.
 * Likewise where the new one is among the smallest that are not: just below them some round up to
 * them, and some make zero of what is to be a denormal. */
#define FORETELL(bits, number, exponent_at, exponent)                                              \
  static inline bits foretell_##number(bits old, int how, double constant) {                       \
    number value, other = (number)constant;                                                        \
    bits left = old >> (exponent_at) & (exponent);                                                 \
    if (how == SAME || left == (exponent) || (!left && (bits)(old << 1))) return old;              \
    memcpy(&value, &old, sizeof value);                                                            \
    value = how == PLUS ? value + other : value * other;                                           \
    bits found;                                                                                    \
    memcpy(&found, &value, sizeof found);                                                          \
    left = found >> (exponent_at) & (exponent);                                                    \
    return left <= 1 || left == (exponent) ? old : found;                                          \
  }

FORETELL(uint64_t, double, 52, 0x7ffu)
FORETELL(uint32_t, float, 23, 0xffu)
static inline uint16_t foretell_16(uint16_t old, int how, double constant) {
  return (void)how, (void)constant, old;
}
static inline uint8_t foretell_8(uint8_t old, int how, double constant) {
  return (void)how, (void)constant, old;
}

/* No arithmetic is moved to where another way of rounding is in force. */
#define TT_APART __attribute__((noinline))

/* Lanes go through a block that stays in the caches, as planes are far apart. */
#define BLOCK 512

#define LANES(bits, whole, foretell)                                                               \
  TT_APART static void take_##bits(const unsigned char *new, const unsigned char *old,             \
                                   size_t count, int how, double constant, unsigned char *out) {   \
    unsigned char block[sizeof(bits)][BLOCK];                                                      \
    for (size_t start = 0; start < count; start += BLOCK) {                                        \
      size_t here = count - start < BLOCK ? count - start : BLOCK;                                 \
      for (size_t at = 0; at < here; at++) {                                                       \
        bits is, was;                                                                              \
        memcpy(&is, new + (start + at) * sizeof is, sizeof is);                                    \
        memcpy(&was, old + (start + at) * sizeof was, sizeof was);                                 \
        bits left = (bits)(is - foretell(was, how, constant));                                     \
        left = (bits)(left << 1) ^ (bits)-(whole)(left >> (8 * sizeof left - 1));                  \
        for (size_t plane = 0; plane < sizeof left; plane++)                                       \
          block[plane][at] = (unsigned char)(left >> 8 * plane);                                   \
      }                                                                                            \
      for (size_t plane = 0; plane < sizeof(bits); plane++)                                        \
        memcpy(out + plane * count + start, block[plane], here);                                   \
    }                                                                                              \
  }                                                                                                \
  TT_APART static void put_##bits(const unsigned char *planes, const unsigned char *old,           \
                                  size_t count, int how, double constant, unsigned char *out) {    \
    for (size_t at = 0; at < count; at++) {                                                        \
      bits left = 0, was;                                                                          \
      for (size_t plane = 0; plane < sizeof left; plane++)                                         \
        left |= (bits)((bits)planes[plane * count + at] << 8 * plane);                             \
      left = (bits)(left >> 1) ^ (bits)-(whole)(left & 1);                                         \
      memcpy(&was, old + at * sizeof was, sizeof was);                                             \
      left = (bits)(left + foretell(was, how, constant));                                          \
      memcpy(out + at * sizeof left, &left, sizeof left);                                          \
    }                                                                                              \
  }

LANES(uint8_t, unsigned, foretell_8)
LANES(uint16_t, unsigned, foretell_16)
LANES(uint32_t, uint32_t, foretell_float)
LANES(uint64_t, uint64_t, foretell_double)

static int is_known(size_t size, int lane, int how) {
  if (lane != 1 && lane != 2 && lane != 4 && lane != 8) return 0;
  return !(size % (size_t)lane) && how >= SAME && how <= TIMES && (how == SAME || lane >= 4);
}

#define EACH(doing, from, old, out)                                                                \
  if (!is_known(size, lane, how)) return -EINVAL;                                                  \
  size_t count = size / (size_t)lane;                                                              \
  tt_rounding was = tt_round_to_nearest();                                                         \
  switch (lane) {                                                                                  \
  case 1: doing##_uint8_t(from, old, count, how, constant, out); break;                            \
  case 2: doing##_uint16_t(from, old, count, how, constant, out); break;                           \
  case 4: doing##_uint32_t(from, old, count, how, constant, out); break;                           \
  default: doing##_uint64_t(from, old, count, how, constant, out);                                 \
  }                                                                                                \
  tt_round_as(was);                                                                                \
  return 0;

int tt_delta_take(const unsigned char *new, const unsigned char *old, size_t size, int lane,
                  int how, double constant, unsigned char *out) {
  EACH(take, new, old, out)
}

int tt_delta_put(const unsigned char *planes, const unsigned char *old, size_t size, int lane,
                 int how, double constant, unsigned char *out) {
  EACH(put, planes, old, out)
}
