/* cut.c: where to cut a stream so that an insertion changes few pieces: at places that the bytes
 * before them choose, not their distance from the beginning.
 *
 * FastCDC (Xia et al., "FastCDC: a Fast and Efficient Content-Defined Chunking Approach for Data
 * Deduplication", USENIX ATC 2016): the gear hash of the last 64 bytes, none in the first MIN bytes
 * of a piece, and normalized chunking: harder to meet before the usual size than after it. Pure:
 * the same on every machine, as what was stored with one may be read with another. */
#include "sys.h"
#include "timetravel.h"

#define MIN ((size_t)64 << 10)
#define USUAL ((size_t)256 << 10)
#define MOST ((size_t)1 << 20)
#define WINDOW 64 /* bytes that a 64-bit gear hash depends on */

/* Bits that must be zero: the highest, which depend on the whole window. Two more, and two less,
 * than the 18 of USUAL. */
#define HARD (~(uint64_t)0 << (64 - 20))
#define EASY (~(uint64_t)0 << (64 - 16))

/* A random number for each byte: splitmix64 (Steele, Lea and Flood, OOPSLA 2014) from 0. Made at
 * each call: a thousandth of what a piece takes, and no state that threads would share. */
static void fill(uint64_t gear[256]) {
  uint64_t state = 0;
  for (int i = 0; i < 256; i++) {
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    gear[i] = z ^ z >> 31;
  }
}

size_t tt_cut(const unsigned char *data, size_t size) {
  uint64_t gear[256], hash = 0;
  if (size <= MIN) return size;
  if (size > MOST) size = MOST;
  size_t at = MIN - WINDOW, usual = size < USUAL ? size : USUAL;
  fill(gear);
  while (at < MIN) hash = (hash << 1) + gear[data[at++]];
  for (; at < usual; at++) {
    hash = (hash << 1) + gear[data[at]];
    if (!(hash & HARD)) return at + 1;
  }
  for (; at < size; at++) {
    hash = (hash << 1) + gear[data[at]];
    if (!(hash & EASY)) return at + 1;
  }
  return size;
}
