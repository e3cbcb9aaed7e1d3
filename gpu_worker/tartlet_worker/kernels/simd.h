// Small vector helpers shared by the kernels. AVX-512 with BF16; every sum has one fixed order.
#pragma once
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint16_t bf16;

static inline __m512 load_bf16(const bf16 *p, __mmask16 m) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, p)), 16));
}
static inline __m512 load_f32(const float *p, __mmask16 m) { return _mm512_maskz_loadu_ps(m, p); }
static inline void store_bf16(bf16 *p, __mmask16 m, __m512 v) {
  _mm256_mask_storeu_epi16(p, m, (__m256i)_mm512_cvtneps_pbh(v));
}
static inline void store_f32(float *p, __mmask16 m, __m512 v) { _mm512_mask_storeu_ps(p, m, v); }
static inline __mmask16 first(long n) { return n >= 16 ? 0xFFFF : n <= 0 ? 0 : (__mmask16)((1u << n) - 1); }

// Positions of columns c to c + 15; without an array column c is at position c.
static inline __m512i positions(const int32_t *position, long c, __mmask16 m) {
  if (position) return _mm512_maskz_loadu_epi32(m, position + c);
  return _mm512_add_epi32(_mm512_set1_epi32((int)c),
                          _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
}

// exp(x) for x <= 0, relative error about 2e-7; below -87 it is 0.
static inline __m512 exp_neg(__m512 x) {
  __mmask16 alive = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.f), _CMP_GE_OQ);
  x = _mm512_max_ps(x, _mm512_set1_ps(-87.f));
  __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f)), 8);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
  p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.f)));
  return _mm512_maskz_scalef_ps(alive, p, n);
}

// Lane j of the result is the sum of the lanes of a[j].
static inline __m512 sum_each(__m512 a[16]) {
  __m512 b[8], c[4], d[2];
  for (int i = 0; i < 8; i++)
    b[i] = _mm512_add_ps(_mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]), _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]));
  for (int i = 0; i < 4; i++) {
    __m512d lo = _mm512_unpacklo_pd(_mm512_castps_pd(b[2 * i]), _mm512_castps_pd(b[2 * i + 1]));
    __m512d hi = _mm512_unpackhi_pd(_mm512_castps_pd(b[2 * i]), _mm512_castps_pd(b[2 * i + 1]));
    c[i] = _mm512_add_ps(_mm512_castpd_ps(lo), _mm512_castpd_ps(hi));
  }
  // c[i]: in each 128-bit lane the partial sums of a[4i] .. a[4i + 3].
  for (int i = 0; i < 2; i++)
    d[i] = _mm512_add_ps(_mm512_shuffle_f32x4(c[2 * i], c[2 * i + 1], 0x88), _mm512_shuffle_f32x4(c[2 * i], c[2 * i + 1], 0xDD));
  return _mm512_add_ps(_mm512_shuffle_f32x4(d[0], d[1], 0x88), _mm512_shuffle_f32x4(d[0], d[1], 0xDD));
}

#define OUT_OF_MEMORY (-1)  // what a kernel returns that got no scratch; 0: done
#define KEPT_BYTES ((size_t)128 << 20)  // of scratch between two calls

// A buffer that grows and is kept: one per use, kernels run on one thread at a time.
typedef struct Scratch { void *p; size_t n; struct Scratch *next; } Scratch;
static Scratch *scratches;  // all that have memory
static size_t scratch_bytes;

// Room for so many bytes, or null. What was in it is lost where it grows.
static inline void *reserve(Scratch *s, size_t bytes) {
  if (s->p && s->n >= bytes) return s->p;
  if (bytes > SIZE_MAX / 2) return 0;
  if (s->p) {
    free(s->p);
    scratch_bytes -= s->n;
  } else {
    s->next = scratches;
    scratches = s;
  }
  s->n = (bytes + bytes / 4 + 4096) & ~(size_t)4095;
  s->p = aligned_alloc(64, s->n);
  if (!s->p) s->n = 0;  // the call fails, and `leave` forgets it
  scratch_bytes += s->n;
  return s->p;
}

// Ends an exported kernel: a large batch's scratch isn't kept for the small ones.
static inline int leave(int status) {
  if (scratch_bytes <= KEPT_BYTES && status == 0) return status;
  while (scratches) {
    Scratch *s = scratches;
    scratches = s->next;
    free(s->p);
    *s = (Scratch){0};
  }
  scratch_bytes = 0;
  return status;
}
