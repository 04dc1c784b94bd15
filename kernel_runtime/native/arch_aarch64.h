/* arch_aarch64.h: 64-bit Arm with glibc. System call number in x8, arguments in x0 to x5, result in
 * x0 (Linux, arch/arm64; syscall(2)). */
#ifndef TT_ARCH_AARCH64_H
#define TT_ARCH_AARCH64_H

#include <stdint.h>
#include <sys/syscall.h>

#define TT_THREADS 1
#define TT_RSEQ_SIGNATURE 0xd428bc00
#define TT_SA_RESTORER 0 /* the vdso has the return address */
#define TT_GCS_STATUS 74 /* PR_GET_SHADOW_STACK_STATUS */
#define TT_POINTER_KEYS 1
/* of a function in which the keys change, with which a return address would be signed */
#define TT_UNSIGNED __attribute__((noinline, target("branch-protection=none")))
#define TT_GET_VECTOR_LENGTH 51 /* prctl(2): PR_SVE_GET_VL */
#define TT_SET_VECTOR_LENGTH 50
#define TT_GET_STREAMING_LENGTH 64 /* PR_SME_GET_VL */
#define TT_SET_STREAMING_LENGTH 63

static inline long tt_syscall(long n, long a, long b, long c, long d, long e, long f) {
  register long x8 __asm__("x8") = n;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  register long x5 __asm__("x5") = f;
  __asm__ volatile("svc #0"
                   : "+r"(x0)
                   : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                   : "memory", "cc");
  return x0;
}

/* See arch_x86_64.h. */
static inline long tt_clone_leave(long call, long a, long b, long c, long d, long e) {
  register long x8 __asm__("x8") = call;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  __asm__ volatile(
      "svc #0\n\t"
      "cmp x0, #0\n\t"
      "b.le 1f\n"
      "2:\n\t"
      "mov x8, %[exit]\n\t"
      "mov x0, #0\n\t"
      "svc #0\n\t"
      "b 2b\n"
      "1:"
      : "+r"(x0), "+r"(x8)
      : "r"(x1), "r"(x2), "r"(x3), "r"(x4), [exit] "i"(SYS_exit_group)
      : "memory", "cc");
  return x0;
}

/* See arch_x86_64.h. */
static inline long tt_clone_call(long call, long a, long b, long c, long d, long e,
                                 void (*fn)(void *), void *arg) {
  register long x8 __asm__("x8") = call;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  register void *x20 __asm__("x20") = arg;
  register void (*x21)(void *) __asm__("x21") = fn;
  __asm__ volatile(
      "svc #0\n\t"
      "cbnz x0, 1f\n\t"
      "mov x29, #0\n\t"
      "mov x30, #0\n\t"
      "mov x0, x20\n\t"
      "blr x21\n\t"
      "brk #0\n"
      "1:"
      : "+r"(x0)
      : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x20), "r"(x21)
      : "memory", "cc", "x30");
  return x0;
}

/* struct rt_sigframe of arch/arm64/kernel/signal.c: siginfo (128 bytes), then the ucontext. */
__attribute__((noreturn)) static inline void tt_sigreturn(void *ucontext) {
  register long x8 __asm__("x8") = SYS_rt_sigreturn;
  __asm__ volatile(
      "mov sp, %0\n\t"
      "svc #0\n\t"
      "brk #0"
      :
      : "r"((char *)ucontext - 128), "r"(x8)
      : "memory");
  __builtin_unreachable();
}

static inline void tt_restorer(void) {}

/* order of the last two arguments of clone(2) differs by machine */
#define TT_CLONE_ARGS(flags, stack, ctid, tls) (flags), (stack), 0L, (tls), (ctid)

static inline uintptr_t tt_thread_pointer(void) {
  uintptr_t v;
  __asm__ volatile("mrs %0, tpidr_el0" : "=r"(v));
  return v;
}

/* Of each thread, and neither of clone nor of sigreturn, which fails where a context has another: the
 * lengths of vectors (SVE), and of streaming ones (SME) in the upper half. 0: there are none. */
static inline uintptr_t tt_extra_register(void) {
  long vector = tt_syscall(SYS_prctl, TT_GET_VECTOR_LENGTH, 0, 0, 0, 0, 0);
  long streaming = tt_syscall(SYS_prctl, TT_GET_STREAMING_LENGTH, 0, 0, 0, 0, 0);
  return (vector < 0 ? 0 : (uintptr_t)vector) | (streaming < 0 ? 0 : (uintptr_t)streaming << 32);
}

static inline void tt_set_extra_register(uintptr_t v) {
  if (v == tt_extra_register()) return;
  if ((uint32_t)v) tt_syscall(SYS_prctl, TT_SET_VECTOR_LENGTH, (uint32_t)v, 0, 0, 0, 0);
  if (v >> 32) tt_syscall(SYS_prctl, TT_SET_STREAMING_LENGTH, (long)(v >> 32), 0, 0, 0, 0);
}

static inline void tt_set_thread_pointer(uintptr_t v) {
  __asm__ volatile("msr tpidr_el0, %0" : : "r"(v));
}

/* --- for images (image.h); see arch_x86_64.h ------------------------------------------------ */

#define TT_MACHINE 183 /* EM_AARCH64 */
#define TT_CPU_WORDS 32

/* Features are in the auxiliary vector, which image_process.c compares on every machine. Besides them:
 * the length of vectors, which saved contexts have; how much `dc zva` clears, which glibc's memset
 * remembers; cache lines (CTR_EL0). */
static inline void tt_cpu(uint32_t words[TT_CPU_WORDS]) {
  uint64_t zeroed, caches, lengths = tt_extra_register();
  __asm__("mrs %0, dczid_el0" : "=r"(zeroed));
  __asm__("mrs %0, ctr_el0" : "=r"(caches));
  words[0] = (uint32_t)lengths;
  words[1] = (uint32_t)(lengths >> 32);
  words[2] = (uint32_t)zeroed;
  words[3] = (uint32_t)caches;
}

/* The lengths are a setting of the process. One that the processor lacks stays different. */
static inline void tt_cpu_take(const uint32_t words[TT_CPU_WORDS]) {
  tt_set_extra_register(words[0] | (uintptr_t)words[1] << 32);
}

/* AAPCS64, 6.1: x19 to x30, sp, d8 to d15, FPCR. */
#define TT_CONTEXT_CODE                 \
  ".globl tt_context_save\n"            \
  ".hidden tt_context_save\n"           \
  ".type tt_context_save, %function\n"  \
  "tt_context_save:\n"                  \
  "  stp x19, x20, [x0, #0]\n"          \
  "  stp x21, x22, [x0, #16]\n"         \
  "  stp x23, x24, [x0, #32]\n"         \
  "  stp x25, x26, [x0, #48]\n"         \
  "  stp x27, x28, [x0, #64]\n"         \
  "  stp x29, x30, [x0, #80]\n"         \
  "  mov x1, sp\n"                      \
  "  mrs x2, fpcr\n"                    \
  "  stp x1, x2, [x0, #96]\n"           \
  "  stp d8, d9, [x0, #112]\n"          \
  "  stp d10, d11, [x0, #128]\n"        \
  "  stp d12, d13, [x0, #144]\n"        \
  "  stp d14, d15, [x0, #160]\n"        \
  "  mov x0, #0\n"                      \
  "  ret\n"                             \
  ".globl tt_context_jump\n"            \
  ".hidden tt_context_jump\n"           \
  ".type tt_context_jump, %function\n"  \
  "tt_context_jump:\n"                  \
  "  ldp x19, x20, [x0, #0]\n"          \
  "  ldp x21, x22, [x0, #16]\n"         \
  "  ldp x23, x24, [x0, #32]\n"         \
  "  ldp x25, x26, [x0, #48]\n"         \
  "  ldp x27, x28, [x0, #64]\n"         \
  "  ldp x29, x30, [x0, #80]\n"         \
  "  ldp x1, x2, [x0, #96]\n"           \
  "  mov sp, x1\n"                      \
  "  msr fpcr, x2\n"                    \
  "  ldp d8, d9, [x0, #112]\n"          \
  "  ldp d10, d11, [x0, #128]\n"        \
  "  ldp d12, d13, [x0, #144]\n"        \
  "  ldp d14, d15, [x0, #160]\n"        \
  "  mov x0, #1\n"                      \
  "  ret\n"                             \
  ".globl tt_loader_start\n"            \
  ".hidden tt_loader_start\n"           \
  ".type tt_loader_start, %function\n"  \
  "tt_loader_start:\n"                  \
  "  mov x29, #0\n"                     \
  "  mov x30, #0\n"                     \
  "  bl tt_loader\n"                    \
  "  brk #0\n"

__attribute__((noreturn)) static inline void tt_call_on(void *stack_end, void (*fn)(void *),
                                                        void *arg) {
  register void *x0 __asm__("x0") = arg;
  __asm__ volatile(
      "mov sp, %0\n\t"
      "mov x29, #0\n\t"
      "mov x30, #0\n\t"
      "blr %1\n\t"
      "brk #0"
      :
      : "r"(stack_end), "r"(fn), "r"(x0)
      : "memory");
  __builtin_unreachable();
}

/* Floating point as a process begins: to nearest, denormals as they are, no traps. */
typedef uint64_t tt_rounding;

static inline void tt_round_as(tt_rounding mode) {
  __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory");
}

static inline tt_rounding tt_round_to_nearest(void) {
  tt_rounding was;
  __asm__ volatile("mrs %0, fpcr" : "=r"(was) : : "memory");
  tt_round_as(0);
  return was;
}

/* With a guarded control stack a thread cannot sigreturn from a frame that it did not receive. */
static inline const char *tt_unsupported(void) {
  unsigned long status = 0;
  long r = tt_syscall(SYS_prctl, TT_GCS_STATUS, (long)&status, 0, 0, 0, 0);
  return r == 0 && (status & 1) ? "guarded control stacks are enabled" : 0;
}

#endif
