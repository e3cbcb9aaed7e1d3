// Top-K and sampling on rows of logits (the rules stand in sampling.py).
#pragma once
#include "simd.h"

// Larger keys come first: value bits made monotonic, above the id counted down.
static inline uint64_t key_of(float v, int64_t id) {
  uint32_t b;
  memcpy(&b, &v, 4);
  b ^= (uint32_t)((int32_t)b >> 31) >> 1;
  return (uint64_t)(b ^ 0x80000000u) << 32 | (0xFFFFFFFFu - (uint32_t)id);
}
static inline float value_of(uint64_t key) {
  uint32_t b = (uint32_t)(key >> 32) ^ 0x80000000u;
  b ^= (uint32_t)((int32_t)b >> 31) >> 1;
  float v;
  memcpy(&v, &b, 4);
  return v;
}
static inline int64_t id_of(uint64_t key) { return 0xFFFFFFFFu - (uint32_t)key; }

static void sort_down(uint64_t *a, int64_t n) {
  while (n > 24) {
    uint64_t x = a[0], y = a[n / 2], z = a[n - 1];
    uint64_t pivot = x > y ? (y > z ? y : x > z ? z : x) : (x > z ? x : y > z ? z : y);
    int64_t i = 0, j = n - 1;
    while (i <= j) {
      while (a[i] > pivot) i++;
      while (a[j] < pivot) j--;
      if (i <= j) {
        uint64_t t = a[i];
        a[i++] = a[j];
        a[j--] = t;
      }
    }
    if (j + 1 < n - i) {
      sort_down(a, j + 1);
      a += i;
      n -= i;
    } else {
      sort_down(a + i, n - i);
      n = j + 1;
    }
  }
  for (int64_t i = 1; i < n; i++) {
    uint64_t t = a[i];
    int64_t j = i;
    for (; j > 0 && a[j - 1] < t; j--) a[j] = a[j - 1];
    a[j] = t;
  }
}

// Splits a [lo, hi] around one of its keys: larger ones up to *j, smaller ones from *i on, at most one between.
static inline void split(uint64_t *a, int64_t lo, int64_t hi, int64_t *i, int64_t *j) {
  uint64_t pivot = a[(lo + hi) / 2];
  int64_t x = lo, y = hi;
  while (x <= y) {
    while (a[x] > pivot) x++;
    while (a[y] < pivot) y--;
    if (x <= y) {
      uint64_t t = a[x];
      a[x++] = a[y];
      a[y--] = t;
    }
  }
  *i = x;
  *j = y;
}

// Brings the k largest of a [n] to its front, in no order; the k-th largest stands at k - 1.
static void select_top(uint64_t *a, int64_t n, int64_t k) {
  int64_t lo = 0, hi = n - 1, i, j;
  while (lo < hi) {
    split(a, lo, hi, &i, &j);
    if (k - 1 <= j) hi = j;
    else if (k - 1 >= i) lo = i;
    else break;
  }
}

// How many of x [n] are at least `bound`.
static inline int64_t count_from(const float *x, int64_t n, float bound) {
  __m512 least = _mm512_set1_ps(bound);
  int64_t count = 0;
  for (int64_t i = 0; i < n; i += 16)
    count += _mm_popcnt_u32(_mm512_mask_cmp_ps_mask(first(n - i), _mm512_loadu_ps(x + i), least, _CMP_GE_OQ));
  return count;
}

// A value that at least k of x [n] reach, and not many more; x has room for 16 more. Halving takes no guesses of
// branches, which selecting would get wrong every other time.
static float reached_by(const float *x, int64_t n, int64_t k) {
  float low = x[0], high = x[0];
  for (int64_t i = 1; i < n; i++) {
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
  }
  for (int i = 0; i < 12; i++) {
    float middle = low / 2 + high / 2;
    int64_t count = count_from(x, n, middle);
    if (count < k) high = middle;
    else low = middle;
    if (count == k) break;
  }
  return low;
}

// Sorts keys that are in order of their ids, larger ones first, by the bytes of their values; b is room for as many.
static void sort_values_down(uint64_t *a, int64_t n, uint64_t *b) {
  uint32_t counts[4][256] = {0};
  for (int64_t i = 0; i < n; i++)
    for (int digit = 0; digit < 4; digit++) counts[digit][a[i] >> (32 + 8 * digit) & 255]++;
  uint64_t *from = a, *to = b;
  for (int digit = 0; digit < 4; digit++) {
    uint32_t *count = counts[digit], next = 0;
    if (count[from[0] >> (32 + 8 * digit) & 255] == n) continue;
    for (int value = 255; value >= 0; value--) {
      uint32_t here = count[value];
      count[value] = next;
      next += here;
    }
    for (int64_t i = 0; i < n; i++) to[count[from[i] >> (32 + 8 * digit) & 255]++] = from[i];
    uint64_t *t = from;
    from = to;
    to = t;
  }
  if (from != a) memcpy(a, from, n * sizeof(uint64_t));
}

// Adds the keys of those of v (of ids from `id` on) that m names; writes up to 8 keys behind them.
static inline int64_t add_keys(uint64_t *keys, int64_t have, __m512 v, int64_t id, __mmask16 m) {
  v = _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), _mm512_set1_ps(-INFINITY));
  __m512i bits = _mm512_castps_si512(v);
  bits = _mm512_xor_si512(bits, _mm512_srli_epi32(_mm512_srai_epi32(bits, 31), 1));
  bits = _mm512_xor_si512(bits, _mm512_set1_epi32((int)0x80000000u));
  __m512i count = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m512i ids = _mm512_sub_epi32(_mm512_set1_epi32((int)(0xFFFFFFFFu - (uint32_t)id)), count);
  for (int half = 0; half < 2; half++) {
    __m256i upper = half ? _mm512_extracti64x4_epi64(bits, 1) : _mm512_castsi512_si256(bits);
    __m256i lower = half ? _mm512_extracti64x4_epi64(ids, 1) : _mm512_castsi512_si256(ids);
    __m512i key = _mm512_or_si512(_mm512_slli_epi64(_mm512_cvtepu32_epi64(upper), 32), _mm512_cvtepu32_epi64(lower));
    __mmask8 some = (__mmask8)(half ? m >> 8 : m);
    _mm512_storeu_si512(keys + have, _mm512_maskz_compress_epi64(some, key));
    have += _mm_popcnt_u32(some);
  }
  return have;
}

// Keys of the k largest of row [n] into keys (room for n + 16), sorted. Not-a-number counts as the smallest value.
// What at least k of the maxima of more than k blocks reach, at least k values reach: only these are sorted.
static int top_keys(const float *row, int64_t n, int64_t k, uint64_t *keys) {
  static Scratch maxima_s, sorted_s;
  float bound = -INFINITY;
  int64_t size = n / (2 * k) / 16 * 16, have = 0;
  if (size >= 16) {
    int64_t blocks = (n + size - 1) / size;
    float *maxima = reserve(&maxima_s, (blocks + 16) * sizeof(float));
    if (!maxima) return OUT_OF_MEMORY;
    for (int64_t b = 0; b < blocks; b++) {
      __m512 top = _mm512_set1_ps(-INFINITY);
      int64_t end = b * size + size < n ? b * size + size : n;
      for (int64_t i = b * size; i < end; i += 16)
        top = _mm512_max_ps(_mm512_mask_loadu_ps(top, first(end - i), row + i), top);
      maxima[b] = _mm512_reduce_max_ps(top);
    }
    bound = reached_by(maxima, blocks, k);
  }
  __m512 least = _mm512_set1_ps(bound);
  for (int64_t i = 0; i < n; i += 16) {
    __mmask16 m = first(n - i);
    __m512 v = _mm512_maskz_loadu_ps(m, row + i);
    if (size >= 16) m = _mm512_mask_cmp_ps_mask(m, v, least, _CMP_GE_OQ);
    if (m) have = add_keys(keys, have, v, i, m);
  }
  if (have < k) {  // not-a-number in the row: take them all
    have = 0;
    for (int64_t i = 0; i < n; i += 16) {
      __mmask16 m = first(n - i);
      have = add_keys(keys, have, _mm512_maskz_loadu_ps(m, row + i), i, m);
    }
  }
  if (k > 64 && have <= 4 * k) {
    uint64_t *sorted = reserve(&sorted_s, have * sizeof(uint64_t));
    if (!sorted) return OUT_OF_MEMORY;
    sort_values_down(keys, have, sorted);
    return 0;
  }
  select_top(keys, have, k);
  sort_down(keys, k);
  return 0;
}

// The smallest key of the nucleus: the largest keys whose weights reach limit. Keys are those of w [n], reordered.
static uint64_t nucleus_edge(const float *w, int64_t n, double limit, uint64_t *keys) {
  for (int64_t i = 0; i < n; i++) keys[i] = key_of(w[i] == w[i] ? w[i] : 0.f, i);
  int64_t lo = 0, hi = n - 1, i, j;
  double before = 0;
  while (lo < hi) {
    split(keys, lo, hi, &i, &j);
    double upper = before;
    for (int64_t x = lo; x <= j; x++) upper += w[id_of(keys[x])];
    if (upper >= limit && j >= lo) {
      hi = j;
      continue;
    }
    before = upper;
    for (int64_t x = j + 1; x < i; x++)
      if ((before += w[id_of(keys[x])]) >= limit) return keys[x];
    lo = i;
  }
  return keys[lo < n ? lo : n - 1];
}

int top_rows(const float *y, int64_t m, int64_t n, int64_t k, int64_t *ids) {
  static Scratch keys_s;
  uint64_t *keys = reserve(&keys_s, (n + 16) * sizeof(uint64_t));
  if (!keys) return leave(OUT_OF_MEMORY);
  for (int64_t i = 0; i < m; i++) {
    if (top_keys(y + i * n, n, k, keys)) return leave(OUT_OF_MEMORY);
    for (int64_t j = 0; j < k; j++) ids[i * k + j] = id_of(keys[j]);
  }
  return leave(0);
}

// One draw from row [n] with largest value `top`, or OUT_OF_MEMORY; w is room for n floats, keys for n keys.
static int64_t draw(const float *row, int64_t n, float top, float temperature, int64_t top_k, float top_p, float min_p,
                    double u, float *w, uint64_t *keys) {
  __m512 by = _mm512_set1_ps(temperature), t = _mm512_set1_ps(top);
  double total = 0;
  for (int64_t i = 0; i < n; i += 16) {
    __mmask16 m = first(n - i);
    __m512 e = exp_neg(_mm512_div_ps(_mm512_sub_ps(_mm512_maskz_loadu_ps(m, row + i), t), by));
    e = _mm512_maskz_mov_ps(m, e);
    _mm512_mask_storeu_ps(w + i, m, e);
    total += _mm512_reduce_add_ps(e);
  }
  uint64_t last = 0;  // the smallest key that is kept
  if (top_k < n || top_p < 1) {
    int64_t want = top_k < n ? top_k : n < 64 ? n : 64, kept = 0;
    if (top_keys(w, n, want, keys)) return OUT_OF_MEMORY;
    if (top_k < n) {
      total = 0;
      for (int64_t j = 0; j < want; j++) total += w[id_of(keys[j])];
    }
    double sum = 0, limit = top_p < 1 ? (double)top_p * total : INFINITY;
    for (; kept < want && (kept == 0 || sum < limit); kept++) sum += w[id_of(keys[kept])];
    if (sum < limit && top_k >= n && want < n) last = nucleus_edge(w, n, limit, keys);  // too flat to be worth sorting
    else last = keys[kept - 1];
  }
  float least = min_p;
  double kept_total = 0, running = 0;
  int64_t answer = -1;
  for (int pass = 0; pass < 2; pass++)
    for (int64_t i = 0; i < n; i += 16) {
      __mmask16 m = first(n - i);
      __m512 v = _mm512_maskz_loadu_ps(m, w + i);
      m = _mm512_mask_cmp_ps_mask(m, v, _mm512_set1_ps(least), _CMP_GE_OQ);
      if (last) {
        float edge = value_of(last);
        __mmask16 above = _mm512_mask_cmp_ps_mask(m, v, _mm512_set1_ps(edge), _CMP_GT_OQ);
        __mmask16 equal = _mm512_mask_cmp_ps_mask(m, v, _mm512_set1_ps(edge), _CMP_EQ_OQ);
        m = above | (equal & first(id_of(last) + 1 - i));
      }
      if (!m) continue;
      double block = _mm512_mask_reduce_add_ps(m, v);
      if (!pass) {
        kept_total += block;
        continue;
      }
      if (running + block > u * kept_total) {
        for (unsigned left = m; left; left &= left - 1) {
          int64_t id = i + __builtin_ctz(left);
          if (w[id] > 0) answer = id;
          running += w[id];
          if (running > u * kept_total) return answer;
        }
      } else {
        running += block;
        for (unsigned left = m; left; left &= left - 1)
          if (w[i + __builtin_ctz(left)] > 0) answer = i + __builtin_ctz(left);
      }
    }
  return answer < 0 ? 0 : answer;  // rounding put u * total at the total: the last that has any weight
}

// For rows with temperature > 0; best and log_sum are those of row_stats. token [m] is overwritten where drawn.
int draw_rows(const float *y, int64_t m, int64_t n, const float *temperature, const int32_t *top_k, const float *top_p,
               const float *min_p, const double *u, const int64_t *best, int64_t *token) {
  static Scratch w_s, keys_s;
  float *w = reserve(&w_s, (n + 16) * sizeof(float));
  uint64_t *keys = reserve(&keys_s, (n + 16) * sizeof(uint64_t));
  if (!w || !keys) return leave(OUT_OF_MEMORY);
  for (int64_t i = 0; i < m; i++) {
    token[i] = best[i];
    if (!(temperature[i] > 0)) continue;
    int64_t k = top_k[i] <= 0 || top_k[i] > n ? n : top_k[i];
    token[i] = draw(y + i * n, n, y[i * n + best[i]], temperature[i], k, top_p[i], min_p[i], u[i], w, keys);
    if (token[i] < 0) return leave(OUT_OF_MEMORY);
  }
  return leave(0);
}
