// Attention over pages in place with AMX, for bf16 and even head sizes.
//
// A block of query tokens and the heads of one group are up to 16 rows. Scores come from tiles: 16 columns' keys as
// they lie in their page times the rows' queries, so scores stand as [column][row], rows padded to 4 or 16. Softmax and
// values are AVX-512 in float32. Sums over columns are kept in four parts (column mod 4) and joined in one order for
// both paddings, so that a row has the same bits in any block.
#pragma once
#ifdef __AMX_BF16__

// Tiles 0-3: scores; 4: keys; 6: queries; 5 and 7: the same for what a head size leaves over 32.
static void attention_tiles_on(int padded, int rest) {
  struct { uint8_t palette, start, zero[14]; uint16_t colsb[16]; uint8_t rows[16]; } cfg;
  memset(&cfg, 0, sizeof cfg);
  cfg.palette = 1;
  for (int i = 0; i < 8; i++) cfg.rows[i] = 16, cfg.colsb[i] = 4 * padded;
  cfg.colsb[4] = 64;
  cfg.colsb[5] = rest ? 2 * rest : 64;
  cfg.rows[7] = rest ? rest / 2 : 16;
  _tile_loadconfig(&cfg);
}

typedef struct {
  const bf16 *q, *k, *v;
  bf16 *o;
  const long *rows;  // [columns] row of each within one head's keys
  long cols;
  int heads, group, page_size, hd;
  float scale;
  float *score;        // [columns, to a multiple of 64][padded]
  bf16 *copy;          // [64][hd] keys of columns that don't lie together
  uint16_t *seen;      // [columns, to a multiple of 64] rows that see the column
  uint32_t *queries;   // [hd / 2][padded] words of two values
  long from, to;       // columns, multiples of 64, outside of which nothing is seen
} Block;

// Keys of 16 columns: as they lie if they lie together, else copied.
static inline const bf16 *keys_of(const Block *x, const bf16 *kh, long c, bf16 *copy) {
  const long *r = x->rows + c;
  if (c + 16 <= x->cols && r[15] == r[0] + 15) {
    int together = 1;
    for (int j = 1; j < 15; j++) together &= r[j] == r[0] + j;
    if (together) return kh + r[0] * x->hd;
  }
  for (int j = 0; j < 16; j++) {
    if (c + j < x->cols) memcpy(copy + j * x->hd, kh + r[j] * x->hd, x->hd * sizeof(bf16));
    else memset(copy + j * x->hd, 0, x->hd * sizeof(bf16));
  }
  return copy;
}

static inline void prefetch_row(const bf16 *row, int hd) {
  for (int i = 0; i < hd; i += 32) _mm_prefetch((const char *)(row + i), _MM_HINT_T0);
}

static inline void scores(const Block *x, const bf16 *kh, const bf16 *vh, int padded) {
  int hd = x->hd, stride = 4 * padded;
  for (long c = x->from; c < x->to; c += 64) {
    // Pages lie anywhere, so no hardware prefetcher sees the values coming.
    for (long j = c; j < c + 64 && j < x->cols; j++) prefetch_row(vh + x->rows[j] * hd, hd);
    const bf16 *k0 = keys_of(x, kh, c, x->copy), *k1 = keys_of(x, kh, c + 16, x->copy + 16 * hd);
    const bf16 *k2 = keys_of(x, kh, c + 32, x->copy + 32 * hd), *k3 = keys_of(x, kh, c + 48, x->copy + 48 * hd);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    int d = 0;
    for (; d + 32 <= hd; d += 32) {
      _tile_loadd(6, x->queries + d / 2 * padded, stride);
      _tile_loadd(4, k0 + d, 2 * hd);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(4, k1 + d, 2 * hd);
      _tile_dpbf16ps(1, 4, 6);
      _tile_loadd(4, k2 + d, 2 * hd);
      _tile_dpbf16ps(2, 4, 6);
      _tile_loadd(4, k3 + d, 2 * hd);
      _tile_dpbf16ps(3, 4, 6);
    }
    if (d < hd) {
      _tile_loadd(7, x->queries + d / 2 * padded, stride);
      _tile_loadd(5, k0 + d, 2 * hd);
      _tile_dpbf16ps(0, 5, 7);
      _tile_loadd(5, k1 + d, 2 * hd);
      _tile_dpbf16ps(1, 5, 7);
      _tile_loadd(5, k2 + d, 2 * hd);
      _tile_dpbf16ps(2, 5, 7);
      _tile_loadd(5, k3 + d, 2 * hd);
      _tile_dpbf16ps(3, 5, 7);
    }
    float *s = x->score + c * padded;
    _tile_stored(0, s, stride);
    _tile_stored(1, s + 16 * padded, stride);
    _tile_stored(2, s + 32 * padded, stride);
    _tile_stored(3, s + 48 * padded, stride);
  }
}

// Turns scores into weights exp(s - max), zero where not seen; total[row] is their sum.
static inline void softmax(const Block *x, int padded, float *total) {
  __m512 minus = _mm512_set1_ps(-INFINITY), scale = _mm512_set1_ps(x->scale);
  __m512 top = minus, sum[4];
  for (int i = 0; i < 4; i++) sum[i] = _mm512_setzero_ps();
  if (padded == 4) {  // four columns a vector, one token: every row sees the same
    static const uint16_t wide[16] = {0x0000, 0x000F, 0x00F0, 0x00FF, 0x0F00, 0x0F0F, 0x0FF0, 0x0FFF,
                                      0xF000, 0xF00F, 0xF0F0, 0xF0FF, 0xFF00, 0xFF0F, 0xFFF0, 0xFFFF};
    for (long c = x->from; c < x->to; c += 4) {
      unsigned m = !!x->seen[c] | !!x->seen[c + 1] << 1 | !!x->seen[c + 2] << 2 | !!x->seen[c + 3] << 3;
      __m512 s = _mm512_mask_mul_ps(minus, wide[m], _mm512_loadu_ps(x->score + c * 4), scale);
      top = _mm512_max_ps(top, s);
      _mm512_storeu_ps(x->score + c * 4, s);
    }
    top = _mm512_max_ps(top, _mm512_shuffle_f32x4(top, top, 0x4E));
    top = _mm512_max_ps(top, _mm512_shuffle_f32x4(top, top, 0xB1));
    for (long c = x->from; c < x->to; c += 4) {
      __m512 e = exp_neg(_mm512_sub_ps(_mm512_loadu_ps(x->score + c * 4), top));
      sum[0] = _mm512_add_ps(sum[0], e);
      _mm512_storeu_ps(x->score + c * 4, e);
    }
    sum[0] = _mm512_add_ps(sum[0], _mm512_shuffle_f32x4(sum[0], sum[0], 0x4E));
    sum[0] = _mm512_add_ps(sum[0], _mm512_shuffle_f32x4(sum[0], sum[0], 0xB1));
    _mm512_storeu_ps(total, sum[0]);
    return;
  }
  for (long c = x->from; c < x->to; c++) {
    __m512 s = _mm512_mask_mul_ps(minus, x->seen[c], _mm512_loadu_ps(x->score + c * 16), scale);
    top = _mm512_max_ps(top, s);
    _mm512_storeu_ps(x->score + c * 16, s);
  }
  for (long c = x->from; c < x->to; c += 4)
    for (int i = 0; i < 4; i++) {
      __m512 e = exp_neg(_mm512_sub_ps(_mm512_loadu_ps(x->score + (c + i) * 16), top));
      sum[i] = _mm512_add_ps(sum[i], e);
      _mm512_storeu_ps(x->score + (c + i) * 16, e);
    }
  _mm512_storeu_ps(total, _mm512_add_ps(_mm512_add_ps(sum[0], sum[2]), _mm512_add_ps(sum[1], sum[3])));
}

// Rows r .. r + SOME - 1, values d .. d + 32 * PARTS - 1. Even and odd values of a pair are kept apart until the end.
#define WEIGH(SOME, PARTS)                                                                                  \
  {                                                                                                         \
    __m512 even[4][2], odd[4][2];                                                                           \
    __mmask16 half[2] = {first((x->hd - d) / 2), first((x->hd - d) / 2 - 16)};                              \
    for (int a = 0; a < SOME; a++)                                                                          \
      for (int i = 0; i < PARTS; i++) even[a][i] = odd[a][i] = _mm512_setzero_ps();                         \
    for (long c = x->from; c < x->to; c++) {                                                                \
      if (!x->seen[c]) continue;                                                                            \
      if (next && !r) prefetch_row(next + x->rows[c] * x->hd + d, 32 * PARTS);                              \
      const bf16 *vr = vh + x->rows[c] * x->hd + d;                                                         \
      const float *w = x->score + c * padded + r;                                                           \
      _Pragma("GCC unroll 2") for (int i = 0; i < PARTS; i++) {                                             \
        __m512i two = _mm512_maskz_loadu_epi32(half[i], vr + 32 * i);                                       \
        __m512 lo = _mm512_castsi512_ps(_mm512_slli_epi32(two, 16));                                        \
        __m512 hi = _mm512_castsi512_ps(_mm512_and_si512(two, _mm512_set1_epi32(0xFFFF0000)));              \
        _Pragma("GCC unroll 4") for (int a = 0; a < SOME; a++) {                                            \
          __m512 by = _mm512_set1_ps(w[a]);                                                                 \
          even[a][i] = _mm512_fmadd_ps(by, lo, even[a][i]);                                                 \
          odd[a][i] = _mm512_fmadd_ps(by, hi, odd[a][i]);                                                   \
        }                                                                                                   \
      }                                                                                                     \
    }                                                                                                       \
    for (int a = 0; a < SOME; a++) {                                                                        \
      __m512 by = _mm512_set1_ps(total[r + a] > 0 ? 1.f / total[r + a] : 0.f);                              \
      bf16 *to = x->o + ((long)((r + a) / x->group) * x->heads + h * x->group + (r + a) % x->group) * x->hd + d; \
      for (int i = 0; i < PARTS; i++) {                                                                     \
        __m512i e = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_mul_ps(even[a][i], by)));      \
        __m512i o = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_mul_ps(odd[a][i], by)));       \
        _mm512_mask_storeu_epi32(to + 32 * i, half[i], _mm512_or_si512(e, _mm512_slli_epi32(o, 16)));       \
      }                                                                                                     \
    }                                                                                                       \
  }

static inline void values(const Block *x, const bf16 *vh, const bf16 *next, int h, int count, int padded, const float *total) {
  for (int d = 0; d < x->hd; d += 64)
    for (int r = 0; r < count; r += 4) {
      int some = count - r < 4 ? count - r : 4;
      if (x->hd - d <= 32) {
        if (some == 4) WEIGH(4, 1) else if (some == 3) WEIGH(3, 1) else if (some == 2) WEIGH(2, 1) else WEIGH(1, 1)
      } else {
        if (some == 4) WEIGH(4, 2) else if (some == 3) WEIGH(3, 2) else if (some == 2) WEIGH(2, 2) else WEIGH(1, 2)
      }
    }
}

// Which rows see which columns: bits of `seen`, rows of token i from i * group on.
static void look(Block *x, long tokens, const int32_t *at, const int32_t *position, const uint8_t *allowed, long width,
                 int32_t window) {
  long end = (x->cols + 63) & ~63L;
  memset(x->seen, 0, end * sizeof(uint16_t));
  x->from = end;
  x->to = 0;
  for (long i = 0; i < tokens; i++) {
    __m256i bits = _mm256_set1_epi16((short)(((1u << x->group) - 1) << (i * x->group)));
    __m512i me = _mm512_set1_epi32(at[i]);
    for (long c = 0; c < x->cols; c += 16) {
      __mmask16 m = first(x->cols - c);
      __m512i p = positions(position, c, m);
      if (allowed)
        m &= _mm_movemask_epi8(_mm_cmpgt_epi8(_mm_maskz_loadu_epi8(m, allowed + i * width + c), _mm_setzero_si128()));
      else
        m &= _mm512_cmple_epi32_mask(p, me);
      if (window > 0) m &= _mm512_cmplt_epi32_mask(_mm512_sub_epi32(me, p), _mm512_set1_epi32(window));
      if (!m) continue;
      __m256i *s = (__m256i *)(x->seen + c);
      _mm256_storeu_si256(s, _mm256_or_si256(_mm256_loadu_si256(s), _mm256_maskz_mov_epi16(m, bits)));
      long block = c & ~63L;
      if (block < x->from) x->from = block;
      if (block + 64 > x->to) x->to = block + 64;
    }
  }
}

// Arguments and result as of `attention`.
static int attend_amx(const bf16 *q, const bf16 *k, const bf16 *v, bf16 *o, long commands, const int64_t *indptr,
                       const int32_t *at, const int32_t *const *pages, long width, long most_pages,
                       const int32_t *num_pages, const int32_t *const *position, const uint8_t *const *allowed,
                       int32_t window, int heads, int kv_heads, int page_size, int hd, float scale) {
  static Scratch rows_s, score_s, seen_s, copy_s, queries_s;
  long columns = width * page_size, most = (most_pages * page_size + 127) & ~63L;
  long *rows = reserve(&rows_s, sizeof(long) * most);
  int group = heads / kv_heads, together = 16 / group, padded = 0;
  Block x = {0, k, v, 0, rows, 0, heads, group, page_size, hd, scale, reserve(&score_s, sizeof(float) * most * 16),
             reserve(&copy_s, sizeof(bf16) * 64 * hd), reserve(&seen_s, sizeof(uint16_t) * most),
             reserve(&queries_s, sizeof(uint32_t) * hd / 2 * 16), 0, 0};
  if (!rows || !x.score || !x.copy || !x.seen || !x.queries) return OUT_OF_MEMORY;
  float total[16];
  for (long b = 0; b < commands; b++) {
    x.cols = (long)num_pages[b] * page_size;
    for (long c = 0, p = 0; p < num_pages[b]; p++) {
      long base = (long)pages[b][p] * kv_heads * page_size;
      for (int s = 0; s < page_size; s++, c++) rows[c] = base + s;
    }
    for (long t = indptr[b]; t < indptr[b + 1]; t += together) {
      long tokens = indptr[b + 1] - t < together ? indptr[b + 1] - t : together;
      int count = (int)tokens * group, need = tokens == 1 && group <= 4 ? 4 : 16;
      if (need != padded) attention_tiles_on(padded = need, hd % 32);
      x.q = q + t * heads * hd;
      x.o = o + t * heads * hd;
      const uint8_t *mask = allowed && allowed[b] ? allowed[b] + (t - indptr[b]) * columns : 0;
      look(&x, tokens, at + t, position[b], mask, columns, window);
      memset(x.queries, 0, sizeof(uint32_t) * hd / 2 * padded);
      for (int h = 0; h < kv_heads; h++) {
        for (int r = 0; r < count; r++) {
          const uint32_t *w = (const uint32_t *)(x.q + ((long)(r / group) * heads + h * group + r % group) * hd);
          for (int i = 0; i < hd / 2; i++) x.queries[i * padded + r] = w[i];
        }
        const bf16 *kh = k + (long)h * page_size * hd, *vh = v + (long)h * page_size * hd;
        scores(&x, kh, vh, padded);
        softmax(&x, padded, total);
        values(&x, vh, h + 1 < kv_heads ? kh + (long)page_size * hd : 0, h, count, padded, total);
      }
    }
  }
  _tile_release();
  return 0;
}
#endif
