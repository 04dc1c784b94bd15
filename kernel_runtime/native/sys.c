/* sys.c: the few functions that a compiler calls on its own account. */
#include "sys.h"

#if defined(__x86_64__)

void *memcpy(void *to, const void *from, size_t n) {
  void *start = to;
  __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
  return start;
}

void *memset(void *to, int byte, size_t n) {
  void *start = to;
  __asm__ volatile("rep stosb" : "+D"(to), "+c"(n) : "a"(byte) : "memory");
  return start;
}

#else

/* The empty asm keeps the compiler from making a call to memcpy out of memcpy. */
void *memcpy(void *to, const void *from, size_t n) {
  char *d = to;
  const char *s = from;
  while (n >= 8) {
    uint64_t word;
    __builtin_memcpy(&word, s, 8);
    __builtin_memcpy(d, &word, 8);
    __asm__ volatile("" : : : "memory");
    d += 8, s += 8, n -= 8;
  }
  while (n--) {
    *d++ = *s++;
    __asm__ volatile("" : : : "memory");
  }
  return to;
}

void *memset(void *to, int byte, size_t n) {
  char *d = to;
  while (n--) {
    *d++ = (char)byte;
    __asm__ volatile("" : : : "memory");
  }
  return to;
}

#endif

void *memmove(void *to, const void *from, size_t n) {
  char *d = to;
  const char *s = from;
  if (d <= s || d >= s + n) return memcpy(to, from, n);
  while (n--) {
    d[n] = s[n];
    __asm__ volatile("" : : : "memory");
  }
  return to;
}

int memcmp(const void *a, const void *b, size_t n) {
  const unsigned char *x = a, *y = b;
  for (; n; n--, x++, y++) {
    if (*x != *y) return *x - *y;
    __asm__ volatile("" : : : "memory");
  }
  return 0;
}

int bcmp(const void *a, const void *b, size_t n) { return memcmp(a, b, n); }

size_t strlen(const char *s) {
  size_t n = 0;
  while (s[n]) {
    n++;
    __asm__ volatile("" : : : "memory");
  }
  return n;
}
