/* arch_x86_64.h: x86-64 with glibc. System calls clobber rcx and r11; arguments in rdi, rsi, rdx,
 * r10, r8, r9 (System V ABI, AMD64 supplement, A.2.1). */
#ifndef TT_ARCH_X86_64_H
#define TT_ARCH_X86_64_H

#include <stdint.h>
#include <sys/syscall.h>

#define TT_POINTER_KEYS 0
#define TT_THREADS 1
#define TT_RSEQ_SIGNATURE 0x53053053
#define TT_SA_RESTORER 0x04000000
#define TT_ARCH_SHSTK_STATUS 0x5005
#define TT_ARCH_SET_GS 0x1001
#define TT_ARCH_SET_FS 0x1002
#define TT_ARCH_GET_FS 0x1003
#define TT_ARCH_GET_GS 0x1004

static inline long tt_syscall(long n, long a, long b, long c, long d, long e, long f) {
  long r;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  __asm__ volatile("syscall"
                   : "=a"(r)
                   : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return r;
}

/* clone or clone3 (call, with its first five arguments) for a child that shares our memory and goes
 * on with this very stack: returns 0 in the child, -errno when there is none. The parent ends here
 * and uses registers only, as the stack belongs to the child by now. */
static inline long tt_clone_leave(long call, long a, long b, long c, long d, long e) {
  long r;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  __asm__ volatile(
      "syscall\n\t"
      "test %%rax, %%rax\n\t"
      "jle 1f\n"
      "2:\n\t"
      "mov %[exit], %%eax\n\t"
      "xor %%edi, %%edi\n\t"
      "syscall\n\t"
      "jmp 2b\n"
      "1:"
      : "=a"(r), "+D"(a)
      : "a"(call), "S"(b), "d"(c), "r"(r10), "r"(r8), [exit] "i"(SYS_exit_group)
      : "rcx", "r11", "memory");
  return r;
}

/* clone or clone3 for a task that starts on a stack of its own, there calls fn(arg), which never
 * returns. call and its first five arguments as in tt_clone_leave. Returns the id or -errno. */
static inline long tt_clone_call(long call, long a, long b, long c, long d, long e,
                                 void (*fn)(void *), void *arg) {
  long r;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register void *r12 __asm__("r12") = arg;
  register void (*r13)(void *) __asm__("r13") = fn;
  __asm__ volatile(
      "syscall\n\t"
      "test %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "xor %%ebp, %%ebp\n\t"
      "mov %%r12, %%rdi\n\t"
      "call *%%r13\n\t"
      "hlt\n"
      "1:"
      : "=a"(r)
      : "a"(call), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r12), "r"(r13)
      : "rcx", "r11", "memory");
  return r;
}

/* The kernel finds the frame of rt_sigreturn right at the stack pointer: pretcode was popped. */
__attribute__((noreturn)) static inline void tt_sigreturn(void *ucontext) {
  __asm__ volatile(
      "mov %0, %%rsp\n\t"
      "mov %1, %%eax\n\t"
      "syscall\n\t"
      "hlt"
      :
      : "r"(ucontext), "i"(SYS_rt_sigreturn)
      : "memory");
  __builtin_unreachable();
}

/* Return address of our signal handler. */
__attribute__((naked, unused)) static void tt_restorer(void) {
  __asm__("mov $15, %eax\n\tsyscall"); /* rt_sigreturn; a naked function takes no operands */
}

/* order of the last two arguments of clone(2) differs by machine */
#define TT_CLONE_ARGS(flags, stack, ctid, tls) (flags), (stack), 0L, (ctid), (tls)

static inline uintptr_t tt_thread_pointer(void) {
  uintptr_t v = 0;
  tt_syscall(SYS_arch_prctl, TT_ARCH_GET_FS, (long)&v, 0, 0, 0, 0);
  return v;
}

/* A second per-thread register that neither clone nor sigreturn gives back: the gs base. */
static inline uintptr_t tt_extra_register(void) {
  uintptr_t v = 0;
  tt_syscall(SYS_arch_prctl, TT_ARCH_GET_GS, (long)&v, 0, 0, 0, 0);
  return v;
}

static inline void tt_set_extra_register(uintptr_t v) {
  if (v) tt_syscall(SYS_arch_prctl, TT_ARCH_SET_GS, (long)v, 0, 0, 0, 0);
}

static inline void tt_set_thread_pointer(uintptr_t v) {
  tt_syscall(SYS_arch_prctl, TT_ARCH_SET_FS, (long)v, 0, 0, 0, 0);
}

/* --- for images (image.h) ------------------------------------------------------------------- */

#define TT_MACHINE 62 /* EM_X86_64 */
#define TT_CPU_WORDS 32
#define TT_REQUEST_STATE 0x1023 /* ARCH_REQ_XCOMP_PERM; arch/x86 xstate.rst */
#define TT_PERMITTED_STATE 0x1022

/* What code that chose its way by the processor can have seen. Word for word equal, or the
 * processor is another one. Leaves of cpuid: vendor (0), features (1, 7, 0x80000001), size and kind of
 * the saved state (0xd), which is also the layout of saved contexts. Of the last word of leaf 7 only
 * instructions count: the rest is about mitigations, and comes and goes with microcode. */
static inline void tt_cpu(uint32_t words[TT_CPU_WORDS]) {
  static const uint32_t all = 0xffffffffu, instructions = 0x03c1413cu;
  const uint32_t leaves[][6] = {
      /* leaf, subleaf, what counts of eax, ebx, ecx, edx */
      {0, 0, 0, all, all, all},     {1, 0, 0, 0, all, all},
      {7, 0, 0, all, all, instructions}, {7, 1, all, all, all, all},
      {0xd, 0, all, all, 0, all},   {0xd, 1, all, 0, 0, 0},
      {0x80000001u, 0, 0, 0, all, all},
  };
  unsigned n = 0, most, most_extended;
  __asm__ volatile("cpuid" : "=a"(most) : "a"(0) : "ebx", "ecx", "edx");
  __asm__ volatile("cpuid" : "=a"(most_extended) : "a"(0x80000000u) : "ebx", "ecx", "edx");
  for (unsigned i = 0; i < sizeof leaves / sizeof *leaves; i++) {
    uint32_t r[4], leaf = leaves[i][0];
    if (leaf > (leaf >> 31 ? most_extended : most)) continue;
    __asm__ volatile("cpuid"
                     : "=a"(r[0]), "=b"(r[1]), "=c"(r[2]), "=d"(r[3])
                     : "a"(leaf), "c"(leaves[i][1]));
    for (int k = 0; k < 4; k++) words[n++] = r[k] & leaves[i][2 + k];
  }
}

static inline void tt_cpu_take(const uint32_t words[TT_CPU_WORDS]) { (void)words; }

/* int tt_context_save(void *room): 0; and 1 once tt_context_jump(room) is called, as setjmp(3). What
 * a function must preserve (AMD64 ABI, 3.2.1): rbx, rbp, rsp, r12 to r15, MXCSR, x87 control word. */
#define TT_CONTEXT_CODE                  \
  ".globl tt_context_save\n"             \
  ".hidden tt_context_save\n"            \
  ".type tt_context_save, @function\n"   \
  "tt_context_save:\n"                   \
  "  mov %rbx, 0(%rdi)\n"                \
  "  mov %rbp, 8(%rdi)\n"                \
  "  mov %r12, 16(%rdi)\n"               \
  "  mov %r13, 24(%rdi)\n"               \
  "  mov %r14, 32(%rdi)\n"               \
  "  mov %r15, 40(%rdi)\n"               \
  "  lea 8(%rsp), %rax\n"                \
  "  mov %rax, 48(%rdi)\n"               \
  "  mov (%rsp), %rax\n"                 \
  "  mov %rax, 56(%rdi)\n"               \
  "  stmxcsr 64(%rdi)\n"                 \
  "  fnstcw 68(%rdi)\n"                  \
  "  xor %eax, %eax\n"                   \
  "  ret\n"                              \
  ".globl tt_context_jump\n"             \
  ".hidden tt_context_jump\n"            \
  ".type tt_context_jump, @function\n"   \
  "tt_context_jump:\n"                   \
  "  mov 0(%rdi), %rbx\n"                \
  "  mov 8(%rdi), %rbp\n"                \
  "  mov 16(%rdi), %r12\n"               \
  "  mov 24(%rdi), %r13\n"               \
  "  mov 32(%rdi), %r14\n"               \
  "  mov 40(%rdi), %r15\n"               \
  "  mov 48(%rdi), %rsp\n"               \
  "  ldmxcsr 64(%rdi)\n"                 \
  "  fldcw 68(%rdi)\n"                   \
  "  mov $1, %eax\n"                     \
  "  jmp *56(%rdi)\n"                    \
  ".globl tt_loader_start\n"             \
  ".hidden tt_loader_start\n"            \
  ".type tt_loader_start, @function\n"   \
  "tt_loader_start:\n"                   \
  "  xor %ebp, %ebp\n"                   \
  "  and $-16, %rsp\n"                   \
  "  call tt_loader\n"                   \
  "  hlt\n"

__attribute__((noreturn)) static inline void tt_call_on(void *stack_end, void (*fn)(void *),
                                                        void *arg) {
  __asm__ volatile(
      "mov %0, %%rsp\n\t"
      "xor %%ebp, %%ebp\n\t"
      "call *%1\n\t"
      "hlt"
      :
      : "r"(stack_end), "r"(fn), "D"(arg)
      : "memory");
  __builtin_unreachable();
}

/* Floating point as a process begins: to nearest, denormals as they are, no traps. */
typedef unsigned tt_rounding;

static inline void tt_round_as(tt_rounding mode) {
  __asm__ volatile("ldmxcsr %0" : : "m"(mode) : "memory");
}

static inline tt_rounding tt_round_to_nearest(void) {
  tt_rounding was;
  __asm__ volatile("stmxcsr %0" : "=m"(was) : : "memory");
  tt_round_as(0x1f80);
  return was;
}

/* With user shadow stacks a thread cannot sigreturn from a frame that it did not receive. */
static inline const char *tt_unsupported(void) {
  uint64_t features = 0;
  long r = tt_syscall(SYS_arch_prctl, TT_ARCH_SHSTK_STATUS, (long)&features, 0, 0, 0, 0);
  return r == 0 && (features & 1) ? "user shadow stacks are enabled" : 0;
}

#endif
