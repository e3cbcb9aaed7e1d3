// The Llama-family decoder on one CPU thread in bf16: all layers in one call. The residual stream, norms, rotary
// embedding and every sum are float32; weights, keys, values and what enters a multiplication are bf16.
#include "gemm.h"
#include "attention_amx.h"
#include "sampling.h"

#define T bf16
#define NAME(x) x##_bf16
#define LOAD load_bf16
#define USE_DOT
#define STORE store_bf16
#include "attention.h"
#undef T
#undef NAME
#undef LOAD
#undef USE_DOT
#undef STORE
#define T float
#define NAME(x) x##_f32
#define LOAD load_f32
#define STORE store_f32
#include "attention.h"
#undef T
#undef NAME
#undef LOAD
#undef STORE

typedef struct {
  const float *input_norm, *q_norm, *k_norm, *post_norm;
  Matrix qkv, out, gate_up, down;  // gate_up: blocks of 16 columns of gate and up in turn
  int64_t window;                  // 0: full attention
} Layer;

typedef struct {
  int64_t dim, layers, heads, kv_heads, hd, page_size;
  int64_t kv_layer, kv_half;  // elements of one layer of the pool, and of its keys
  float eps;
  const Layer *layer;
  const float *final_norm;
} Model;

typedef struct {
  int64_t tokens, commands, width, most, outs;
  const bf16 *x;                // [tokens][dim] embeds
  const float *cos, *sin;       // [tokens][hd / 2]
  const int64_t *row;           // [tokens] page * kv_heads * page_size + slot
  bf16 *kv;
  const int64_t *indptr;        // as in AttentionBatch, from here
  const int32_t *at, *const *pages, *num_pages, *const *position;
  const uint8_t *const *allowed;
  const int64_t *out_token;     // [outs]
  bf16 *out;                    // [outs][dim], after the last norm
} Pass;

// 1 / rms of x [n].
static float inverse_rms(const float *x, int64_t n, float eps) {
  __m512 s = _mm512_setzero_ps();
  for (int64_t i = 0; i < n; i += 16) {
    __m512 v = _mm512_maskz_loadu_ps(first(n - i), x + i);
    s = _mm512_fmadd_ps(v, v, s);
  }
  return 1.f / sqrtf(_mm512_reduce_add_ps(s) / (float)n + eps);
}

// Rows of x [m][dim], normed, as activations [m / 16][dim / 32][16][32]; `index` picks the rows, or null.
static void norm_pack(const float *x, const int64_t *index, int64_t m, int64_t dim, const float *w, float eps, bf16 *a) {
  int64_t kp = (dim + 31) / 32;
  for (int64_t i = 0; i < m; i++) {
    const float *row = x + (index ? index[i] : i) * dim;
    __m512 by = _mm512_set1_ps(inverse_rms(row, dim, eps));
    for (int64_t d = 0; d < kp * 32; d += 16) {
      __mmask16 k = first(dim - d);
      __m512 v = _mm512_mul_ps(_mm512_mul_ps(_mm512_maskz_loadu_ps(k, row + d), by), _mm512_maskz_loadu_ps(k, w + d));
      store_bf16(a_row(a, kp, i, d / 32) + d % 32, 0xFFFF, v);
    }
  }
}

static void pack_rows(const bf16 *x, const int64_t *index, int64_t m, int64_t n, bf16 *a) {
  int64_t kp = (n + 31) / 32;
  for (int64_t i = 0; i < m; i++) {
    const bf16 *row = x + (index ? index[i] : i) * n;
    for (int64_t k = 0; k < kp; k++) {
      __mmask32 mask = n - k * 32 >= 32 ? 0xFFFFFFFFu : (1u << (n - k * 32)) - 1;
      _mm512_storeu_si512(a_row(a, kp, i, k), _mm512_maskz_loadu_epi16(mask, row + k * 32));
    }
  }
}

// One head: optional norm, rotation of halves, to bf16.
static void rotate_head(float *x, const float *norm, const float *cos, const float *sin, int64_t hd, float eps, bf16 *out) {
  int64_t half = hd / 2;
  __m512 by = _mm512_set1_ps(norm ? inverse_rms(x, hd, eps) : 1.f);
  for (int64_t d = 0; d < half; d += 16) {
    __mmask16 m = first(half - d);
    __m512 a = _mm512_maskz_loadu_ps(m, x + d), b = _mm512_maskz_loadu_ps(m, x + half + d);
    if (norm) {
      a = _mm512_mul_ps(_mm512_mul_ps(a, by), _mm512_maskz_loadu_ps(m, norm + d));
      b = _mm512_mul_ps(_mm512_mul_ps(b, by), _mm512_maskz_loadu_ps(m, norm + half + d));
    }
    __m512 c = _mm512_maskz_loadu_ps(m, cos + d), s = _mm512_maskz_loadu_ps(m, sin + d);
    store_bf16(out + d, m, _mm512_fnmadd_ps(b, s, _mm512_mul_ps(a, c)));
    store_bf16(out + half + d, m, _mm512_fmadd_ps(a, s, _mm512_mul_ps(b, c)));
  }
}

static void rotate_store(const Model *mo, const Layer *l, const Pass *p, float *qkv, bf16 *q, bf16 *kv) {
  int64_t hd = mo->hd, width = (mo->heads + 2 * mo->kv_heads) * hd;
  for (int64_t t = 0; t < p->tokens; t++) {
    float *row = qkv + t * width;
    const float *c = p->cos + t * hd / 2, *s = p->sin + t * hd / 2;
    for (int64_t h = 0; h < mo->heads; h++)
      rotate_head(row + h * hd, l->q_norm, c, s, hd, mo->eps, q + (t * mo->heads + h) * hd);
    for (int64_t h = 0; h < mo->kv_heads; h++) {
      int64_t at = (p->row[t] + h * mo->page_size) * hd;
      rotate_head(row + (mo->heads + h) * hd, l->k_norm, c, s, hd, mo->eps, kv + at);
      const float *v = row + (mo->heads + mo->kv_heads + h) * hd;
      for (int64_t d = 0; d < hd; d += 16) {
        __mmask16 m = first(hd - d);
        store_bf16(kv + mo->kv_half + at + d, m, _mm512_maskz_loadu_ps(m, v + d));
      }
    }
  }
}

static int layer_run(const Model *mo, const Layer *l, const Pass *p, float *x, bf16 *kv, const int64_t *keep, int64_t kept,
                      float *x_kept) {
  static Scratch a_s, qkv_s, q_s, o_s, act_s;
  int64_t n = p->tokens, dim = mo->dim, tiles = (n + 31) / 16 + 1, q_dim = mo->heads * mo->hd;
  int64_t width = (mo->heads + 2 * mo->kv_heads) * mo->hd;
  int64_t widest = l->qkv.k > l->out.k ? l->qkv.k : l->out.k;
  bf16 *a = reserve(&a_s, tiles * 16 * widest * sizeof(bf16));
  float *qkv = reserve(&qkv_s, n * width * sizeof(float));
  bf16 *q = reserve(&q_s, n * q_dim * sizeof(bf16)), *o = reserve(&o_s, n * q_dim * sizeof(bf16));
  bf16 *act = reserve(&act_s, tiles * 16 * l->down.k * sizeof(bf16));
  if (!a || !qkv || !q || !o || !act) return OUT_OF_MEMORY;
  norm_pack(x, 0, n, dim, l->input_norm, mo->eps, a);
  gemm(a, n, &l->qkv, &(Sink){SET, qkv, width, width, 0, 0});
  rotate_store(mo, l, p, qkv, q, kv);
  if (attention_bf16(q, kv, kv + mo->kv_half, o, p->commands, p->indptr, p->at, p->pages, p->width, p->most, p->num_pages,
                     p->position, p->allowed, (int32_t)l->window, mo->heads, mo->kv_heads, mo->page_size, mo->hd,
                     1.f / sqrtf((float)mo->hd)))
    return OUT_OF_MEMORY;
  if (keep) {  // the last layer: from here on only tokens whose output is wanted
    for (int64_t i = 0; i < kept; i++) memcpy(x_kept + i * dim, x + keep[i] * dim, dim * sizeof(float));
    x = x_kept;
    n = kept;
  }
  pack_rows(o, keep, n, q_dim, a);
  gemm(a, n, &l->out, &(Sink){ADD, x, dim, dim, 0, 0});
  norm_pack(x, 0, n, dim, l->post_norm, mo->eps, a);
  gemm(a, n, &l->gate_up, &(Sink){SILU, 0, 0, 0, act, l->down.k});
  gemm(act, n, &l->down, &(Sink){ADD, x, dim, dim, 0, 0});
  return 0;
}

int decoder_run(const Model *mo, const Pass *p) {
  static Scratch x_s, kept_s;
  int64_t dim = mo->dim;
  float *x = reserve(&x_s, p->tokens * dim * sizeof(float));
  float *kept = reserve(&kept_s, (p->outs + 1) * dim * sizeof(float));
  if (!x || !kept) return leave(OUT_OF_MEMORY);
  for (int64_t i = 0; i < p->tokens * dim; i += 16)
    _mm512_mask_storeu_ps(x + i, first(p->tokens * dim - i), load_bf16(p->x + i, first(p->tokens * dim - i)));
  for (int64_t i = 0; i < mo->layers; i++)
    if (layer_run(mo, mo->layer + i, p, x, p->kv + i * mo->kv_layer, i == mo->layers - 1 ? p->out_token : 0, p->outs,
                  kept))
      return leave(OUT_OF_MEMORY);
  for (int64_t i = 0; i < p->outs; i++) {
    __m512 by = _mm512_set1_ps(inverse_rms(kept + i * dim, dim, mo->eps));
    for (int64_t d = 0; d < dim; d += 16) {
      __mmask16 m = first(dim - d);
      __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, kept + i * dim + d), by);
      store_bf16(p->out + i * dim + d, m, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(m, mo->final_norm + d)));
    }
  }
  return leave(0);
}

// y [m][n] float32 = x [m][k] bf16 times w.
int linear(const bf16 *x, int64_t m, int64_t k, const Matrix *w, float *y, int64_t n) {
  static Scratch a_s;
  bf16 *a = reserve(&a_s, ((m + 31) / 16 + 1) * 16 * w->k * sizeof(bf16));
  if (!a) return leave(OUT_OF_MEMORY);
  pack_rows(x, 0, m, k, a);
  gemm(a, m, w, &(Sink){SET, y, n, n, 0, 0});
  return leave(0);
}

// Bytes of scratch that are kept.
int64_t kernels_scratch(void) { return (int64_t)scratch_bytes; }

// Of each row of y [m][n]: the index of its largest value, the smallest among equals, and log(sum(exp(y))).
void row_stats(const float *y, int64_t m, int64_t n, int64_t *best, float *log_sum) {
  for (int64_t i = 0; i < m; i++) {
    const float *row = y + i * n;
    __m512 top = _mm512_set1_ps(-INFINITY);
    for (int64_t j = 0; j < n; j += 16)
      top = _mm512_max_ps(top, _mm512_mask_loadu_ps(top, first(n - j), row + j));
    float t = _mm512_reduce_max_ps(top);
    __m512 sum = _mm512_setzero_ps(), tv = _mm512_set1_ps(t);
    best[i] = -1;
    for (int64_t j = 0; j < n; j += 16) {
      __mmask16 m16 = first(n - j);
      __m512 v = _mm512_maskz_loadu_ps(m16, row + j);
      __mmask16 hit = _mm512_mask_cmp_ps_mask(m16, v, tv, _CMP_EQ_OQ);
      if (best[i] < 0 && hit) best[i] = j + __builtin_ctz(hit);
      sum = _mm512_add_ps(sum, _mm512_maskz_mov_ps(m16, exp_neg(_mm512_sub_ps(v, tv))));
    }
    if (best[i] < 0) best[i] = 0;  // not a number
    log_sum[i] = t + logf(_mm512_reduce_add_ps(sum));
  }
}
