// Attention over pages in place, included once a storage type. Keys and values: [pages][kv_heads][page_size][hd].
// For one query token and one key head, all query heads of the group at once: scores of all columns, softmax, values.
// Every score, sum and output value is computed in one order that depends on the column numbers alone.
//
// Needs: T, NAME(x), LOAD, STORE, and for bf16 USE_DOT (dot products on bf16 pairs).

#define MAX_GROUP 32

static __attribute__((noinline)) void NAME(attend_token)(
    const T *q, const T *k, const T *v, T *o, const long *rows, long cols, const int32_t *position, int32_t at,
    const uint8_t *allowed, int32_t window, int heads, int kv_heads, int page_size, int hd, float scale, float *score,
    long stride, __mmask16 *seen) {
  int group = heads / kv_heads;
  long chunks = (cols + 15) / 16;
  // Which columns this token sees, and the range of chunks that hold any.
  long from = chunks, to = 0;
  for (long c = 0; c < chunks; c++) {
    __mmask16 m = first(cols - 16 * c);
    __m512i p = positions(position, 16 * c, m), me = _mm512_set1_epi32(at);
    if (allowed)
      m &= _mm_movemask_epi8(_mm_cmpgt_epi8(_mm_maskz_loadu_epi8(m, allowed + 16 * c), _mm_setzero_si128()));
    else
      m &= _mm512_cmple_epi32_mask(p, me);
    if (window > 0) m &= _mm512_cmplt_epi32_mask(_mm512_sub_epi32(me, p), _mm512_set1_epi32(window));
    seen[c] = m;
    if (m) {
      if (from == chunks) from = c;
      to = c + 1;
    }
  }
  __m512 minus = _mm512_set1_ps(-INFINITY);
  for (int h = 0; h < kv_heads; h++) {
    const T *kh = k + (long)h * page_size * hd, *vh = v + (long)h * page_size * hd;
    const T *qh = q + (long)h * group * hd;
    T *oh = o + (long)h * group * hd;
    float top[MAX_GROUP], total[MAX_GROUP];
    __m512 best[MAX_GROUP];
    for (int g = 0; g < group; g++) best[g] = minus;
    for (long c = from; c < to; c++) {
      if (!seen[c]) {
        for (int g = 0; g < group; g++) _mm512_storeu_ps(score + g * stride + 16 * c, minus);
        continue;
      }
      const T *kr[16];
      for (int j = 0; j < 16; j++) kr[j] = kh + rows[16 * c + j < cols ? 16 * c + j : 0] * hd;
      for (int g = 0; g < group; g++) {
        __m512 acc[16];
        for (int j = 0; j < 16; j++) acc[j] = _mm512_setzero_ps();
#ifdef USE_DOT
        for (int d = 0; d < hd; d += 32) {
          __mmask32 m = hd - d >= 32 ? 0xFFFFFFFFu : (1u << (hd - d)) - 1;
          __m512bh a = (__m512bh)_mm512_maskz_loadu_epi16(m, qh + (long)g * hd + d);
#pragma GCC unroll 16
          for (int j = 0; j < 16; j++)
            acc[j] = _mm512_dpbf16_ps(acc[j], a, (__m512bh)_mm512_maskz_loadu_epi16(m, kr[j] + d));
        }
#else
        for (int d = 0; d < hd; d += 16) {
          __mmask16 m = first(hd - d);
          __m512 a = LOAD(qh + (long)g * hd + d, m);
#pragma GCC unroll 16
          for (int j = 0; j < 16; j++) acc[j] = _mm512_fmadd_ps(a, LOAD(kr[j] + d, m), acc[j]);
        }
#endif
        __m512 s = _mm512_mul_ps(sum_each(acc), _mm512_set1_ps(scale));
        s = _mm512_mask_mov_ps(minus, seen[c], s);
        best[g] = _mm512_max_ps(best[g], s);
        _mm512_storeu_ps(score + g * stride + 16 * c, s);
      }
    }
    for (int g = 0; g < group; g++) {
      top[g] = _mm512_reduce_max_ps(best[g]);
      __m512 sum = _mm512_setzero_ps(), t = _mm512_set1_ps(top[g]);
      for (long c = from; c < to; c++) {
        float *s = score + g * stride + 16 * c;
        __m512 e = seen[c] ? exp_neg(_mm512_sub_ps(_mm512_loadu_ps(s), t)) : _mm512_setzero_ps();
        e = _mm512_maskz_mov_ps(seen[c], e);
        sum = _mm512_add_ps(sum, e);
        _mm512_storeu_ps(s, e);
      }
      total[g] = _mm512_reduce_add_ps(sum);
    }
    for (int d = 0; d < hd; d += 64) {
      int parts = hd - d >= 64 ? 4 : (hd - d + 15) / 16;
      __mmask16 m[4];
      for (int i = 0; i < 4; i++) m[i] = first(hd - d - 16 * i);
      for (int g = 0; g < group; g += 4) {
        int some = group - g < 4 ? group - g : 4;
        __m512 acc[4][4];
        for (int a = 0; a < 4; a++)
          for (int i = 0; i < 4; i++) acc[a][i] = _mm512_setzero_ps();
#define VALUES(SOME, PARTS)                                                                              \
  for (long c = from; c < to; c++) {                                                                     \
    unsigned left = seen[c];                                                                             \
    while (left) {                                                                                       \
      int j = __builtin_ctz(left);                                                                       \
      left &= left - 1;                                                                                  \
      const T *vr = vh + rows[16 * c + j] * hd + d;                                                      \
      __m512 x[4];                                                                                       \
      _Pragma("GCC unroll 4") for (int i = 0; i < PARTS; i++) x[i] = LOAD(vr + 16 * i, m[i]);            \
      _Pragma("GCC unroll 4") for (int a = 0; a < SOME; a++) {                                           \
        __m512 w = _mm512_set1_ps(score[(g + a) * stride + 16 * c + j]);                                 \
        _Pragma("GCC unroll 4") for (int i = 0; i < PARTS; i++) acc[a][i] = _mm512_fmadd_ps(w, x[i], acc[a][i]); \
      }                                                                                                  \
    }                                                                                                    \
  }
        if (parts == 4 && some == 4) { VALUES(4, 4) }
        else if (parts == 4 && some == 3) { VALUES(3, 4) }
        else if (parts == 4 && some == 2) { VALUES(2, 4) }
        else if (parts == 4) { VALUES(1, 4) }
        else if (parts == 2 && some == 2) { VALUES(2, 2) }
        else { VALUES(some, parts) }
        for (int a = 0; a < some; a++) {
          __m512 by = _mm512_set1_ps(total[g + a] > 0 ? 1.f / total[g + a] : 0.f);
          for (int i = 0; i < parts; i++)
            STORE(oh + (long)(g + a) * hd + d + 16 * i, m[i], _mm512_mul_ps(acc[a][i], by));
        }
#undef VALUES
      }
    }
  }
}

// q, o: [T][heads][hd]; see AttentionBatch for the columns. pages, position: [B] pointers to a command's pages and to the
// positions of its columns, null for columns at their own numbers. allowed: [B] pointers to [tokens][width * page_size]
// bytes, or null. most: pages of the longest command.
static int NAME(attention)(const T *q, const T *k, const T *v, T *o, long commands, const int64_t *indptr,
                           const int32_t *at, const int32_t *const *pages, long width, long most_pages,
                           const int32_t *num_pages, const int32_t *const *position, const uint8_t *const *allowed,
                           int32_t window, int heads, int kv_heads, int page_size, int hd, float scale) {
#if defined(USE_DOT) && defined(__AMX_BF16__)
  if (use_amx && hd % 2 == 0 && heads / kv_heads <= 16)
    return attend_amx(q, k, v, o, commands, indptr, at, pages, width, most_pages, num_pages, position, allowed, window,
                      heads, kv_heads, page_size, hd, scale);
#endif
  static Scratch rows_s, score_s, seen_s;
  long most = most_pages * page_size + 16, stride = (most + 31) & ~15L;
  long *rows = reserve(&rows_s, sizeof(long) * most);
  float *score = reserve(&score_s, sizeof(float) * stride * (heads / kv_heads));
  __mmask16 *seen = reserve(&seen_s, sizeof(__mmask16) * (most / 16 + 2));
  if (!rows || !score || !seen) return OUT_OF_MEMORY;
  for (long b = 0; b < commands; b++) {
    long cols = (long)num_pages[b] * page_size;
    for (long c = 0, p = 0; p < num_pages[b]; p++) {
      long base = (long)pages[b][p] * kv_heads * page_size;
      for (int s = 0; s < page_size; s++, c++) rows[c] = base + s;
    }
    for (long t = indptr[b]; t < indptr[b + 1]; t++)
      NAME(attend_token)(q + t * heads * hd, k, v, o + t * heads * hd, rows, cols, position[b], at[t],
                         allowed && allowed[b] ? allowed[b] + (t - indptr[b]) * width * page_size : 0, window,
                         heads, kv_heads, page_size, hd, scale, score, stride, seen);
  }
  return 0;
}

int NAME(attend)(const T *q, const T *k, const T *v, T *o, long commands, const int64_t *indptr, const int32_t *at,
                 const int32_t *const *pages, long width, long most_pages, const int32_t *num_pages,
                 const int32_t *const *position, const uint8_t *const *allowed, int32_t window, int heads, int kv_heads, int page_size, int hd,
                 float scale) {
  return leave(NAME(attention)(q, k, v, o, commands, indptr, at, pages, width, most_pages, num_pages, position, allowed,
                               window, heads, kv_heads, page_size, hd, scale));
}
