/* arch.h: picks the one header with machine-specific code. Each defines
 *   TT_THREADS              1 where threads can be stopped and made anew
 *   tt_syscall              a raw system call: result or -errno, no errno, no libc
 *   tt_clone_leave          clone that, in the parent, ends the process without using the stack
 *   tt_clone_call           clone a task on a stack of its own and call a function in it
 *   tt_sigreturn            leave a signal handler by its saved context
 *   tt_thread_pointer       the thread pointer of the calling thread
 *   tt_set_thread_pointer   set it
 *   TT_CONTEXT_CODE         tt_context_save, tt_context_jump and the loader's entry (image.h)
 *   tt_call_on              leave for a function on another stack
 *   tt_cpu                  what must be equal where an image is loaded
 *   tt_cpu_take             make equal what a process can choose of that
 *   TT_POINTER_KEYS         1 where addresses on the stack may be signed (keys.h)
 *   tt_round_to_nearest     for the calling thread; tt_round_as takes back what it returns
 *   tt_unsupported          why this process cannot be frozen although the platform can, or NULL */
#ifndef TT_ARCH_H
#define TT_ARCH_H

#include <features.h>

/* TT_PLAIN: the plain build, for testing it on a machine that has more. */
#if defined(__x86_64__) && defined(__LP64__) && defined(__GLIBC__) && !defined(TT_PLAIN)
#include "arch_x86_64.h"
#elif defined(__aarch64__) && defined(__LP64__) && defined(__GLIBC__) && !defined(TT_PLAIN)
#include "arch_aarch64.h"
#else
#include "arch_plain.h"
#endif

#endif
