/* One guest for many tests: the first delivery says what to do. */
#include "tartlet.h"

static uint8_t big[8 << 20];
TL_IMPORT(no_such_call) void no_such_call(void);

__attribute__((noinline)) static int deep(int n, volatile int *up) {
  volatile int here[64];
  here[n & 63] = n;
  return n == -1 ? 0 : deep(n + 1, here) + here[0] + *up;
}

__attribute__((noinline)) static uint32_t down(uint32_t n) {
  return n == 0 ? 0 : down(n + 3) * down(n + 5) + 1;
}

int32_t tartlet_main(void) {
  uint8_t *buffer = tl.in;
  int32_t n = tl_host_wait(buffer, TL_INBOX_BYTES, 7, 1234);
  volatile int zero = 0;
  switch (n > 0 ? buffer[0] : 0) {
    case 'e': /* echo until an empty delivery; 'e' alone first */
      while ((n = tl_host_wait(buffer, TL_INBOX_BYTES, 64, -1)) != 0) tl_host_submit(buffer, (uint32_t)n);
      return 0;
    case 's': /* a delivery that does not fit: its size, then itself */
      n = tl_host_wait(buffer, 4, 64, -1);
      tl_host_submit(&n, 4);
      n = tl_host_wait(buffer, TL_INBOX_BYTES, 64, -1);
      tl_host_submit(buffer, (uint32_t)n);
      return 0;
    case 'r': /* status */
      return buffer[1];
    case 'l': /* endless loop */
      for (volatile uint32_t i = 0;; i++) {}
    case 'c': { /* count for a while, then say so */
      for (volatile uint32_t i = 0; i < 30000000; i++) {}
      tl_host_submit("counted", 7);
      return 0;
    }
    case 'm': /* memory hog */
      for (;;)
        if (__builtin_wasm_memory_grow(0, 16) == (size_t)-1) __builtin_trap();
    case 'd': /* too deep for the stack in its memory */
      return deep(0, &zero);
    case 'D': /* too deep for the sandbox's own stack */
      return (int32_t)down((uint32_t)n);
    case 'u': __builtin_trap();
    case 'z': return 100000 / zero;
    case 'o': return *(volatile int *)0xFFFFFFF0u;
    case 'x': no_such_call(); return 0;
    case 'b': tl_host_submit((void *)0xFFFFFFF0u, 64); return 0;
    case 'B': return tl_host_wait((void *)0xFFFFFFF0u, 64, 1, -1);
    case 'L': tl_host_submit(big, sizeof big); return 0; /* over the limit of one submission */
    case 'f': /* flood: submissions without ever waiting */
      for (;;) tl_host_submit(big, 4096);
    case 'F': /* many, in order */
      for (uint32_t i = 0; i < 20000; i++) {
        big[0] = (uint8_t)i, big[1] = (uint8_t)(i >> 8);
        tl_host_submit(big, 64);
      }
      return 0;
    case 't': { /* time and chance */
      int64_t t[2] = {tl_clock_ns(), tl_clock_ns()};
      tl_host_submit(t, sizeof t);
      tl_random(buffer, 40);
      tl_host_submit(buffer, 40);
      return 0;
    }
    case 'w': /* wake-ups, for the benchmark */
      while (tl_host_wait(buffer, TL_INBOX_BYTES, 64, -1) != 0) {}
      return 0;
    case 'S': { /* submit 64 records, again and again, for the benchmark */
      for (uint32_t k = 0; k < 10000; k++) tl_host_submit(big, 16 + 64 * 32);
      return 0;
    }
  }
  return 99;
}
