/* Preload this to run a program as if the processor lacked instructions: every CPUID traps and is answered without them.
 *
 *     cc -shared -fPIC -O1 -o processor.so .ci/processor.c -ldl
 *     PROCESSOR=avx2 LD_PRELOAD=./processor.so python -m pytest ...
 *
 * PROCESSOR   avx512: AVX512 without VNNI (Skylake-X); avx2: neither (Haswell, AMD EPYC before Zen 4); sse: no AVX.
 * Needs x86-64 Linux and a processor that can fault on CPUID (arch_prctl ARCH_SET_CPUID); ends with 99 elsewhere.
 * Only what asks CPUID is misled, as onnxruntime and numpy do; /proc/cpuinfo stays as it is.
 */
#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef ARCH_SET_CPUID
#define ARCH_SET_CPUID 0x1012
#endif
#define BIT(n) (1u << (n))

enum { NONE, AVX512, AVX2, SSE };
static int level = NONE;
static struct sigaction theirs; /* what the program itself wants done about SIGSEGV */
static int (*real_sigaction)(int, const struct sigaction *, struct sigaction *);

static void leave_out(unsigned leaf, unsigned sub, unsigned r[4]) {
  unsigned *ebx = r + 1, *ecx = r + 2, *edx = r + 3;
  if (leaf == 1 && level >= SSE) *ecx &= ~(BIT(28) | BIT(12) | BIT(29)); /* AVX, FMA, F16C */
  if (leaf == 7 && sub == 0) {
    /* AVX512_VNNI, VBMI, VBMI2, BITALG, VPOPCNTDQ; IFMA; AMX, AVX512_FP16 */
    *ecx &= ~(BIT(11) | BIT(1) | BIT(6) | BIT(12) | BIT(14));
    *ebx &= ~BIT(21);
    *edx &= ~(BIT(22) | BIT(23) | BIT(24) | BIT(25));
    if (level >= AVX2) { /* AVX512 F, DQ, PF, ER, CD, BW, VL; 4VNNIW, 4FMAPS, VP2INTERSECT */
      *ebx &= ~(BIT(16) | BIT(17) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31));
      *edx &= ~(BIT(2) | BIT(3) | BIT(8));
    }
    if (level >= SSE) { /* AVX2; VAES, VPCLMULQDQ */
      *ebx &= ~BIT(5);
      *ecx &= ~(BIT(9) | BIT(10));
    }
  }
  if (leaf == 7 && sub == 1) {
    r[0] &= ~(BIT(4) | BIT(5) | BIT(21) | BIT(23)); /* AVX_VNNI, AVX512_BF16, AMX_FP16, AVX_IFMA */
    *edx &= ~(BIT(4) | BIT(5) | BIT(10));           /* AVX_VNNI_INT8, AVX_NE_CONVERT, AVX_VNNI_INT16 */
  }
}

static void caught(int number, siginfo_t *info, void *raw) {
  greg_t *reg = ((ucontext_t *)raw)->uc_mcontext.gregs;
  const unsigned char *at = (const unsigned char *)reg[REG_RIP];
  if (info->si_code > 0 && info->si_addr == 0 && at && at[0] == 0x0f && at[1] == 0xa2) {
    unsigned r[4], leaf = (unsigned)reg[REG_RAX], sub = (unsigned)reg[REG_RCX];
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 1UL);
    __cpuid_count(leaf, sub, r[0], r[1], r[2], r[3]);
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0UL);
    leave_out(leaf, sub, r);
    reg[REG_RAX] = r[0], reg[REG_RBX] = r[1], reg[REG_RCX] = r[2], reg[REG_RDX] = r[3];
    reg[REG_RIP] += 2;
    return;
  }
  if (theirs.sa_flags & SA_SIGINFO) {
    if (theirs.sa_sigaction) {
      theirs.sa_sigaction(number, info, raw);
      return;
    }
  } else if (theirs.sa_handler != SIG_DFL && theirs.sa_handler != SIG_IGN) {
    theirs.sa_handler(number);
    return;
  }
  signal(number, SIG_DFL);
  raise(number);
}

/* The program (Python's faulthandler) may set its own handler: it is kept, and called for every other fault. */
int sigaction(int number, const struct sigaction *new, struct sigaction *old) {
  if (!real_sigaction) real_sigaction = dlsym(RTLD_NEXT, "sigaction");
  if (number != SIGSEGV || level == NONE) return real_sigaction(number, new, old);
  if (old) *old = theirs;
  if (new) theirs = *new;
  return 0;
}

__attribute__((constructor)) static void start(void) {
  const char *kind = getenv("PROCESSOR");
  if (!kind) return;
  level = !strcmp(kind, "avx512") ? AVX512 : !strcmp(kind, "avx2") ? AVX2 : !strcmp(kind, "sse") ? SSE : NONE;
  if (level == NONE) return;
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = caught;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  real_sigaction = dlsym(RTLD_NEXT, "sigaction");
  real_sigaction(SIGSEGV, &action, 0);
  if (syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0UL)) {
    perror("CPUID cannot be made to fault here");
    _exit(99);
  }
}
