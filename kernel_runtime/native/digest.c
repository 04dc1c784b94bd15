/* digest.c: BLAKE2b-256 of four pieces at once, one in each lane of a vector register.
 *
 * BLAKE2b (RFC 7693) of one piece is a chain: its vector instructions are half used. Pieces of a
 * large array have one size, so four of them go through in step, at three to five times the rate of
 * Python's own. The digests are those of hashlib.blake2b(piece, digest_size=32). */
#include "sys.h"
#include "timetravel.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(TT_PLAIN)
#include <cpuid.h>

#define LANES 4
#define BLOCK 128 /* bytes */
#define PARAMETERS 0x01010020u /* no key, one leaf, digests of 32 bytes */

typedef uint64_t lanes __attribute__((vector_size(8 * LANES)));

static const uint64_t IV[8] = {0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b,
                               0xa54ff53a5f1d36f1, 0x510e527fade682d1, 0x9b05688c2b3e6c1f,
                               0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};

#define TURN(x, n) ((x) >> (n) | (x) << (64 - (n)))

/* Whole bytes are turned by one instruction of AVX2's instead of three. GCC does not find it. */
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
typedef unsigned char octets __attribute__((vector_size(8 * LANES)));
#define WORD(n, at) (n) + (at), ((n) + 1) % 8 + (at), ((n) + 2) % 8 + (at), ((n) + 3) % 8 + (at), \
  ((n) + 4) % 8 + (at), ((n) + 5) % 8 + (at), ((n) + 6) % 8 + (at), ((n) + 7) % 8 + (at)
#define TURN_BYTES(x, n)                                                                   \
  (lanes) __builtin_shufflevector((octets)(x), (octets)(x), WORD(n, 0), WORD(n, 8), WORD(n, 16), \
                                  WORD(n, 24))
#endif
#endif
#ifndef TURN_BYTES
#define TURN_BYTES(x, n) TURN(x, 8 * (n))
#endif
#define MIX(a, b, c, d, x, y)                    \
  a += b + m[x], d ^= a, d = TURN_BYTES(d, 4),        \
  c += d, b ^= c, b = TURN_BYTES(b, 3),               \
  a += b + m[y], d ^= a, d = TURN_BYTES(d, 2),        \
  c += d, b ^= c, b = TURN(b, 63)
#define ROUND(A, B, C, D, E, F, G, H, I, J, K, L, M, N, O, P) \
  MIX(v[0], v[4], v[8], v[12], A, B);                         \
  MIX(v[1], v[5], v[9], v[13], C, D);                         \
  MIX(v[2], v[6], v[10], v[14], E, F);                        \
  MIX(v[3], v[7], v[11], v[15], G, H);                        \
  MIX(v[0], v[5], v[10], v[15], I, J);                        \
  MIX(v[1], v[6], v[11], v[12], K, L);                        \
  MIX(v[2], v[7], v[8], v[13], M, N);                         \
  MIX(v[3], v[4], v[9], v[14], O, P)

static inline __attribute__((always_inline)) uint64_t word(const unsigned char *at) {
  uint64_t found;
  __builtin_memcpy(&found, at, sizeof found);
  return found;
}

static inline __attribute__((always_inline)) void
digest(const unsigned char *const data[LANES], size_t size, unsigned char *out) {
  lanes h[8], m[16], v[16];
  for (int i = 0; i < 8; i++) h[i] = (lanes){0} + (IV[i] ^ (i ? 0 : PARAMETERS));
  for (size_t at = 0; at < size; at += BLOCK) {
    for (int i = 0; i < 16; i++)
      m[i] = (lanes){word(data[0] + at + 8 * i), word(data[1] + at + 8 * i),
                     word(data[2] + at + 8 * i), word(data[3] + at + 8 * i)};
    for (int i = 0; i < 8; i++) v[i] = h[i], v[i + 8] = (lanes){0} + IV[i];
    v[12] ^= at + BLOCK;
    if (at + BLOCK == size) v[14] = ~v[14];
    ROUND(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    ROUND(14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3);
    ROUND(11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4);
    ROUND(7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8);
    ROUND(9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13);
    ROUND(2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9);
    ROUND(12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11);
    ROUND(13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10);
    ROUND(6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5);
    ROUND(10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0);
    ROUND(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    ROUND(14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3);
    for (int i = 0; i < 8; i++) h[i] ^= v[i] ^ v[i + 8];
  }
  for (int lane = 0; lane < LANES; lane++)
    for (int i = 0; i < 4; i++) {
      uint64_t value = h[i][lane];
      __builtin_memcpy(out + 32 * lane + 8 * i, &value, sizeof value);
    }
}

__attribute__((target("avx2"))) static void
digest_avx2(const unsigned char *const data[LANES], size_t size, unsigned char *out) {
  digest(data, size, out);
}

/* The same with 32 registers and an instruction that rotates. */
__attribute__((target("avx2,avx512f,avx512vl"))) static void
digest_avx512(const unsigned char *const data[LANES], size_t size, unsigned char *out) {
  digest(data, size, out);
}

/* 0: neither; 1: AVX2; 2: AVX-512 too. The processor has them and the kernel keeps the registers
 * (Intel SDM, volume 1, 14.3 and 15.2). Not __builtin_cpu_supports: zig's runtime has it not. */
static int width(void) {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 0;
  unsigned kept, high;
  __asm__("xgetbv" : "=a"(kept), "=d"(high) : "c"(0));
  if ((kept & 0x06) != 0x06 || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2)) return 0;
  const unsigned wanted = 1u << 16 | 1u << 31; /* AVX512F, AVX512VL */
  return (kept & 0xe6) == 0xe6 && (b & wanted) == wanted ? 2 : 1;
}

int tt_digest4(const unsigned char *const data[4], size_t size, unsigned char *out) {
  if (!size || size % BLOCK) return -EINVAL;
  int found = width();
  if (!found) return -ENOTSUP;
  (found == 2 ? digest_avx512 : digest_avx2)(data, size, out);
  return 0;
}

#else

int tt_digest4(const unsigned char *const data[4], size_t size, unsigned char *out) {
  (void)data, (void)size, (void)out;
  return -ENOTSUP;
}

#endif
