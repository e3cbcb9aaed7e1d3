// y = x W^T for bf16 weights laid out once: AMX tiles where the CPU has them, AVX-512 BF16 else.
//
// Weights: [pairs of 16-column blocks][K / 32][2][16 k-pairs][16 columns][2], zero-padded: one stream through memory.
// Activations: [M / 16][K / 32][16 rows][32]. Each output is the sum over k in order, whatever M is.
#pragma once
#include "simd.h"
#include <sys/syscall.h>
#include <unistd.h>

typedef struct {
  const bf16 *w;
  const float *bias;  // [N] or null
  int64_t n, k;       // padded: n to 32, k to 32
} Matrix;

typedef enum { SET, ADD, SILU } Epilogue;

typedef struct {
  Epilogue kind;
  float *y;        // SET, ADD: [M][ld] float32
  int64_t ld, n;   // n: columns that exist
  bf16 *act;       // SILU: the next activations, in their layout
  int64_t act_k;   // its padded K
} Sink;

static int use_amx;

// Asks the kernel for the tile registers; 1 if there are any.
int kernels_init(int allow_amx) {
  use_amx = 0;
#ifdef __AMX_BF16__
  if (allow_amx && syscall(SYS_arch_prctl, 0x1023, 18) == 0) use_amx = 1;
#endif
  return use_amx;
}

void pack_weights(const bf16 *w, int64_t n, int64_t k, bf16 *out) {
  int64_t np = (n + 31) / 32, kp = (k + 31) / 32;
  memset(out, 0, np * kp * 1024 * sizeof(bf16));
  for (int64_t r = 0; r < n; r++)
    for (int64_t c = 0; c < k; c++) {
      int64_t tile = ((r / 32) * kp + c / 32) * 2 + (r % 32) / 16;
      out[tile * 512 + (c % 32) / 2 * 32 + (r % 16) * 2 + c % 2] = w[r * k + c];
    }
}

static inline bf16 *a_row(bf16 *a, int64_t kp, int64_t m, int64_t kb) {
  return a + ((m / 16 * kp + kb) * 16 + m % 16) * 32;
}

// One block of 16 rows by 32 columns (c[0], c[1]) leaves for its sink.
static inline void drain(const Sink *s, const Matrix *w, int64_t m0, int64_t rows, int64_t n0, float c[2][256]) {
  for (int64_t i = 0; i < rows; i++) {
    __m512 v[2];
    for (int h = 0; h < 2; h++) {
      v[h] = _mm512_loadu_ps(c[h] + i * 16);
      if (w->bias) v[h] = _mm512_add_ps(v[h], _mm512_loadu_ps(w->bias + n0 + 16 * h));
    }
    if (s->kind == SILU) {  // the first block is the gate, the second the up projection
      __m512 zero = _mm512_setzero_ps();
      __m512 e = exp_neg(_mm512_sub_ps(zero, _mm512_abs_ps(v[0])));  // exp(-|g|)
      __mmask16 neg = _mm512_cmp_ps_mask(v[0], zero, _CMP_LT_OQ);
      __m512 one = _mm512_set1_ps(1.f);
      __m512 by = _mm512_add_ps(one, e), r = _mm512_rcp14_ps(by);
      r = _mm512_mul_ps(r, _mm512_fnmadd_ps(by, r, _mm512_set1_ps(2.f)));  // one Newton step: 28 bits
      __m512 gate = _mm512_mul_ps(_mm512_mul_ps(v[0], _mm512_mask_mov_ps(one, neg, e)), r);
      int64_t j = n0 / 2;
      store_bf16(a_row(s->act, s->act_k / 32, m0 + i, j / 32) + j % 32, 0xFFFF, _mm512_mul_ps(gate, v[1]));
      continue;
    }
    for (int h = 0; h < 2; h++) {
      int64_t n = n0 + 16 * h;
      __mmask16 m = first(s->n - n);
      float *y = s->y + (m0 + i) * s->ld + n;
      if (s->kind == ADD) v[h] = _mm512_add_ps(v[h], _mm512_maskz_loadu_ps(m, y));
      _mm512_mask_storeu_ps(y, m, v[h]);
    }
  }
}

#define IN_CACHE (512 << 10)  // bytes of activations
#define AHEAD 8192  // bytes of weights that are asked for ahead of use; into L2, as L1 belongs to the activations

#ifdef __AMX_BF16__
static void tiles_on(void) {
  struct { uint8_t palette, start, zero[14]; uint16_t colsb[16]; uint8_t rows[16]; } cfg;
  memset(&cfg, 0, sizeof cfg);
  cfg.palette = 1;
  for (int i = 0; i < 8; i++) cfg.colsb[i] = 64, cfg.rows[i] = 16;
  _tile_loadconfig(&cfg);
}

static void gemm_amx(const bf16 *a, int64_t m, const Matrix *w, const Sink *sink) {
  int64_t kp = w->k / 32, np = w->n / 32, mt = (m + 15) / 16;
  int64_t some = (IN_CACHE / (kp * 1024)) & ~1L;  // tiles of rows that stay in cache while all weights pass by
  if (some < 2) some = 2;
  float c[4][256] __attribute__((aligned(64)));
  tiles_on();
  for (int64_t t0 = 0; t0 < mt; t0 += some)
  for (int64_t n = 0; n < np; n++) {
    const bf16 *b = w->w + n * kp * 1024;
    int64_t t1 = t0 + some < mt ? t0 + some : mt;
    for (int64_t t = t0; t < t1; t += 2) {
      const bf16 *a0 = a + t * kp * 512, *a1 = a0 + kp * 512;
      int two = t + 1 < t1;
      _tile_zero(0);
      _tile_zero(1);
      if (two) {
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t k = 0; k < kp; k++) {
          const char *next = (const char *)(b + k * 1024) + AHEAD;
          if (t == t0)
            for (int i = 0; i < 2048; i += 64) _mm_prefetch(next + i, _MM_HINT_T1);
          _tile_loadd(4, a0 + k * 512, 64);
          _tile_loadd(6, b + k * 1024, 64);
          _tile_dpbf16ps(0, 4, 6);
          _tile_loadd(7, b + k * 1024 + 512, 64);
          _tile_dpbf16ps(1, 4, 7);
          _tile_loadd(5, a1 + k * 512, 64);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(2, c[2], 64);
        _tile_stored(3, c[3], 64);
      } else {
        for (int64_t k = 0; k < kp; k++) {
          const char *next = (const char *)(b + k * 1024) + AHEAD;
          if (t == t0)
            for (int i = 0; i < 2048; i += 64) _mm_prefetch(next + i, _MM_HINT_T1);
          _tile_loadd(4, a0 + k * 512, 64);
          _tile_loadd(6, b + k * 1024, 64);
          _tile_dpbf16ps(0, 4, 6);
          _tile_loadd(7, b + k * 1024 + 512, 64);
          _tile_dpbf16ps(1, 4, 7);
        }
      }
      _tile_stored(0, c[0], 64);
      _tile_stored(1, c[1], 64);
      int64_t left = m - t * 16;
      drain(sink, w, t * 16, left < 16 ? left : 16, n * 32, c);
      if (two) drain(sink, w, t * 16 + 16, left - 16 < 16 ? left - 16 : 16, n * 32, c + 2);
    }
  }
  _tile_release();
}
#endif

#define ROWS 8

// `rows` of them (a constant where this is expanded) by 32 columns: one pass over the columns' weights.
static inline __attribute__((always_inline)) void block(const bf16 *at, const bf16 *b, int64_t kp, int rows,
                                                        int ahead, float c[2][256]) {
  __m512 acc[ROWS][2];
#pragma GCC unroll 8
  for (int i = 0; i < rows; i++) acc[i][0] = acc[i][1] = _mm512_setzero_ps();
  for (int64_t k = 0; k < kp; k++)
    for (int r = 0; r < 16; r++) {
      __m512bh b0 = (__m512bh)_mm512_loadu_si512(b + k * 1024 + r * 32);
      __m512bh b1 = (__m512bh)_mm512_loadu_si512(b + k * 1024 + 512 + r * 32);
      if (ahead) {
        const char *next = (const char *)(b + k * 1024 + r * 64) + AHEAD;
        _mm_prefetch(next, _MM_HINT_T1);
        _mm_prefetch(next + 64, _MM_HINT_T1);
      }
#pragma GCC unroll 8
      for (int i = 0; i < rows; i++) {
        __m512bh x = (__m512bh)_mm512_set1_epi32(*(const int *)(at + k * 512 + i * 32 + r * 2));
        acc[i][0] = _mm512_dpbf16_ps(acc[i][0], x, b0);
        acc[i][1] = _mm512_dpbf16_ps(acc[i][1], x, b1);
      }
    }
#pragma GCC unroll 8
  for (int i = 0; i < rows; i++)
    for (int h = 0; h < 2; h++) _mm512_store_ps(c[h] + i * 16, acc[i][h]);
}

static void gemm_avx512(const bf16 *a, int64_t m, const Matrix *w, const Sink *sink) {
  int64_t kp = w->k / 32, np = w->n / 32;
  int64_t some = (IN_CACHE / (kp * 64)) & ~(ROWS - 1L);  // rows that stay in cache while all weights pass by
  if (some < ROWS) some = ROWS;
  float c[2][256] __attribute__((aligned(64)));
  for (int64_t t0 = 0; t0 < m; t0 += some)
    for (int64_t n = 0; n < np; n++)
      for (int64_t t = t0; t < m && t < t0 + some; t += ROWS) {
        const bf16 *b = w->w + n * kp * 1024, *at = a + t / 16 * kp * 512 + t % 16 * 32;
        int64_t left = m - t < ROWS ? m - t : ROWS;
        if (t > t0 && left > 4) block(at, b, kp, ROWS, 0, c);  // the first rows have brought the weights
        else if (left > 4) block(at, b, kp, ROWS, 1, c);
        else if (left > 2) block(at, b, kp, 4, t == t0, c);
        else if (left > 1) block(at, b, kp, 2, t == t0, c);
        else block(at, b, kp, 1, t == t0, c);
        drain(sink, w, t, left, n * 32, c);
      }
}

static void gemm(const bf16 *a, int64_t m, const Matrix *w, const Sink *sink) {
#ifdef __AMX_BF16__
  if (use_amx) {
    gemm_amx(a, m, w, sink);
    return;
  }
#endif
  gemm_avx512(a, m, w, sink);
}
