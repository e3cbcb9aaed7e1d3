/* The boundary in C: no GIL, no ctypes conversion (10 ns a call against 300).
 *
 * Links against nothing: symbols are resolved from the wasmtime library that the process has loaded already.
 * ctypes_boundary.py holds the same logic in Python for machines without a compiler; both pass the same tests.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SHIM_VERSION 7

typedef union { int32_t i32; int64_t i64; uint64_t words[2]; } raw_t;                         /* wasmtime_val_raw_t */
typedef struct { uint8_t kind; union { int32_t i32; int64_t i64; uint64_t words[3]; } of; } val_t; /* wasmtime_val_t */
typedef struct { bool (*callback)(void *); void *env; void (*finalizer)(void *); } continuation_t;
typedef struct { size_t size; uint8_t *data; } bytes_t;                                        /* wasm_byte_vec_t */
typedef struct { uint8_t kind; union { uint64_t u64; bytes_t string; uint64_t words[3]; } of; } component_val_t;

/* Mirrored by boundary.GuestState; the first member must stay `ready`, which is what continuations look at. */
typedef struct {
  uint32_t ready;      /* a suspended call may go on */
  uint32_t waiting;    /* inside wait(), nothing delivered yet */
  uint64_t id;
  void *future, *context, *engine;
  const void *memory;  /* wasmtime_memory_t, null until the instance is there */
  uint8_t *out;        /* submissions: u32 length, bytes, again and again */
  uint64_t out_bytes, out_capacity, submit_limit, soft_limit;
  uint64_t wait_pointer, wait_capacity, wait_max, wait_timeout_us;
  void *wait_result;   /* val_t, or component_val_t of a component */
  uint8_t *kept;       /* a delivery that the guest's buffer could not hold */
  uint64_t kept_bytes;
  uint64_t slice_ticks, cpu_ns;
  uint32_t done, polled;
} guest_t;

static void *(*caller_context)(void *);
static void *(*context_get_data)(void *);
static bool (*future_poll)(void *);
static void *(*trap_new)(const char *, size_t);
static uint8_t *(*memory_data)(void *, const void *);
static size_t (*memory_data_size)(void *, const void *);
static void (*set_epoch_deadline)(void *, uint64_t);
static void (*increment_epoch)(void *);
static void (*future_delete)(void *);
static void (*store_delete)(void *);
static void (*new_bytes)(bytes_t *, size_t);

int shim_version(void) { return SHIM_VERSION; }
size_t shim_guest_bytes(void) { return sizeof(guest_t); }

int shim_init(const char *library) {
  void *h = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
  if (!h) h = dlopen(library, RTLD_NOW);
  if (!h) return -1;
  *(void **)&caller_context = dlsym(h, "wasmtime_caller_context");
  *(void **)&context_get_data = dlsym(h, "wasmtime_context_get_data");
  *(void **)&future_poll = dlsym(h, "wasmtime_call_future_poll");
  *(void **)&trap_new = dlsym(h, "wasmtime_trap_new");
  *(void **)&memory_data = dlsym(h, "wasmtime_memory_data");
  *(void **)&memory_data_size = dlsym(h, "wasmtime_memory_data_size");
  *(void **)&set_epoch_deadline = dlsym(h, "wasmtime_context_set_epoch_deadline");
  *(void **)&increment_epoch = dlsym(h, "wasmtime_engine_increment_epoch");
  *(void **)&future_delete = dlsym(h, "wasmtime_call_future_delete");
  *(void **)&store_delete = dlsym(h, "wasmtime_store_delete");
  *(void **)&new_bytes = dlsym(h, "wasm_byte_vec_new_uninitialized");
  return caller_context && context_get_data && future_poll && trap_new && memory_data && memory_data_size &&
                 set_epoch_deadline && increment_epoch && future_delete && store_delete && new_bytes ? 0 : -2;
}

static void *trap(const char *message) { return trap_new(message, strlen(message)); }

/* Null if [pointer, pointer + length) is not inside the guest's memory. */
static uint8_t *inside(guest_t *g, void *context, uint32_t pointer, uint64_t length) {
  if (!g->memory || (uint64_t)pointer + length > memory_data_size(context, g->memory)) return NULL;
  return memory_data(context, g->memory) + pointer;
}

/* Where a submission of at most `length` bytes goes, behind its length; null without memory. */
static uint8_t *room(guest_t *g, uint64_t length) {
  uint64_t need = g->out_bytes + 4 + length;
  if (need > g->out_capacity) {
    uint64_t capacity = g->out_capacity ? g->out_capacity : 4096;
    while (capacity < need) capacity *= 2;
    uint8_t *grown = realloc(g->out, capacity);
    if (!grown) return NULL;
    g->out = grown;
    g->out_capacity = capacity;
  }
  return g->out + g->out_bytes + 4;
}

static void submitted(guest_t *g, uint32_t length) {
  memcpy(g->out + g->out_bytes, &length, 4);
  g->out_bytes += 4 + (uint64_t)length;
}

/* Much is queued: end the slice at the guest's next loop or call, so that the host can take it. */
static void end_slice(guest_t *g, void *context) {
  set_epoch_deadline(context, 0);
  /* Compiled loops keep the old deadline in a register until the epoch passes it. */
  for (uint64_t i = 0; i < g->slice_ticks; i++) increment_epoch(g->engine);
}

/* submit(ptr: i32, len: i32) */
void *shim_submit(void *env, void *caller, raw_t *args, size_t count) {
  (void)env; (void)count;
  void *context = caller_context(caller);
  guest_t *g = context_get_data(context);
  uint32_t length = (uint32_t)args[1].i32;
  if (length > g->submit_limit) return trap("tartlet: a submission over the limit");
  uint8_t *from = inside(g, context, (uint32_t)args[0].i32, length);
  if (!from) return trap("tartlet: submit() points outside the memory");
  uint8_t *to = room(g, length);
  if (!to) return trap("tartlet: the host is out of memory");
  memcpy(to, from, length);
  submitted(g, length);
  if (g->out_bytes > g->soft_limit) {
    if (g->out_bytes > 4 * g->soft_limit + g->submit_limit) return trap("tartlet: submissions flood the host");
    end_slice(g, context);
  }
  return NULL;
}

bool shim_ready(void *env) { /* also the continuation of component guests */
  uint32_t *ready = env;
  if (!*ready) return false;
  *ready = 0;
  return true;
}

static bool at_once(void *env) { (void)env; return true; }

/* Writes a delivery, or answers minus its size and keeps it. */
static int32_t hand_over(guest_t *g, const uint8_t *data, uint64_t bytes) {
  if (bytes > g->wait_capacity) return -(int32_t)bytes;
  if (bytes) memcpy(memory_data(g->context, g->memory) + g->wait_pointer, data, bytes);
  return (int32_t)bytes;
}

/* wait(ptr: i32, capacity: i32, max: i32, timeout_us: i64) -> i32; suspends */
void shim_wait(void *env, void *caller, const val_t *args, size_t count, val_t *results, size_t nresults, void **trap_out,
               continuation_t *continuation) {
  (void)env; (void)count; (void)nresults;
  void *context = caller_context(caller);
  guest_t *g = context_get_data(context);
  uint32_t pointer = (uint32_t)args[0].of.i32, capacity = (uint32_t)args[1].of.i32;
  results->kind = 0;
  results->of.i32 = 0;
  continuation->finalizer = NULL;
  continuation->callback = at_once;
  continuation->env = NULL;
  if (!inside(g, context, pointer, capacity)) {
    *trap_out = trap("tartlet: wait() points outside the memory");
    return;
  }
  g->wait_pointer = pointer;
  g->wait_capacity = capacity;
  if (g->kept) { /* the same delivery again: no new wait for the host */
    int32_t answer = hand_over(g, g->kept, g->kept_bytes);
    results->of.i32 = answer;
    if (answer >= 0) { free(g->kept); g->kept = NULL; }
    return;
  }
  g->wait_max = (uint32_t)args[2].of.i32;
  g->wait_timeout_us = (uint64_t)args[3].of.i64;
  g->wait_result = results;
  g->waiting = 1;
  g->ready = 0;
  continuation->callback = shim_ready;
  continuation->env = g;
}

/* Answers the wait that a guest is suspended in; 0, or -1 when the host is out of memory. */
int shim_deliver(guest_t *g, const uint8_t *data, uint64_t bytes) {
  int32_t answer = hand_over(g, data, bytes);
  if (answer < 0) {
    g->kept = malloc(bytes);
    if (!g->kept) return -1;
    memcpy(g->kept, data, bytes);
    g->kept_bytes = bytes;
  }
  ((val_t *)g->wait_result)->of.i32 = answer;
  g->waiting = 0;
  g->ready = 1;
  return 0;
}

/* ---- components: the same two calls, a byte being the code point of that number in a string ---- */

/* Bytes from a string's UTF-8: how many, or -1 where it has other code points than bytes. */
static int64_t to_bytes(uint8_t *to, const uint8_t *utf8, uint64_t size) {
  uint8_t *start = to;
  for (uint64_t i = 0; i < size; i++) {
    uint8_t lead = utf8[i];
    if (lead < 0x80) *to++ = lead;
    else if ((lead == 0xC2 || lead == 0xC3) && i + 1 < size) *to++ = (uint8_t)(lead << 6) | (utf8[++i] & 0x3F);
    else return -1;
  }
  return to - start;
}

typedef void *component_callback_t(void *, void *, const void *, component_val_t *, size_t, void *, size_t);

/* submit(string); `refuse` is Python's version, which knows how to say what is wrong with it */
void *shim_submit_string(void *refuse, void *context, const void *type, component_val_t *args, size_t count, void *results,
                         size_t nresults) {
  guest_t *g = context_get_data(context);
  bytes_t text = args->of.string;
  uint8_t *to = text.size / 2 > g->submit_limit ? NULL : room(g, text.size);
  int64_t length = to ? to_bytes(to, text.data, text.size) : -1;
  if (length < 0 || (uint64_t)length > g->submit_limit)
    return ((component_callback_t *)refuse)(NULL, context, type, args, count, results, nresults);
  submitted(g, (uint32_t)length);
  if (g->out_bytes > g->soft_limit) end_slice(g, context);
  return NULL;
}

/* wait(max: u32, timeout_us: u64) -> string; suspends */
void shim_wait_string(void *env, void *context, const void *type, component_val_t *args, size_t count,
                      component_val_t *results, size_t nresults, void **error_out, continuation_t *continuation) {
  (void)env; (void)type; (void)count; (void)nresults; (void)error_out;
  guest_t *g = context_get_data(context);
  g->wait_max = (uint32_t)args[0].of.u64;
  g->wait_timeout_us = args[1].of.u64;
  g->wait_result = results;
  g->waiting = 1;
  g->ready = 0;
  continuation->callback = shim_ready;
  continuation->env = g;
  continuation->finalizer = NULL;
}

/* Answers the wait that a component is suspended in. */
void shim_deliver_string(guest_t *g, const uint8_t *data, uint64_t bytes, uint8_t string_kind) {
  component_val_t *result = g->wait_result;
  uint64_t size = bytes;
  for (uint64_t i = 0; i < bytes; i++) size += data[i] >> 7;
  result->kind = string_kind;
  new_bytes(&result->of.string, size);
  uint8_t *to = result->of.string.data;
  for (uint64_t i = 0; i < bytes; i++) {
    uint8_t byte = data[i];
    if (byte >= 0x80) { *to++ = 0xC0 | (byte >> 6); byte = 0x80 | (byte & 0x3F); }
    *to++ = byte;
  }
  g->waiting = 0;
  g->ready = 1;
}

/* Gives back a large submission buffer once its content is taken. */
void shim_trim(guest_t *g) {
  free(g->out);
  g->out = NULL;
  g->out_bytes = g->out_capacity = 0;
}

void shim_release(guest_t *g) {
  shim_trim(g);
  free(g->kept);
  g->kept = NULL;
}

/* Frees what ended guests left: the future first, which may be null, then its store. */
void shim_free_many(void **futures, void **stores, guest_t **guests, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (futures[i]) future_delete(futures[i]);
    store_delete(stores[i]);
    shim_release(guests[i]);
  }
}

/* ---- ticker: an epoch a tick, asleep while no guest runs ---- */

typedef struct {
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t wake;
  void *engine;
  struct timespec tick;
  volatile uint32_t busy, idle, stop;
} ticker_t;

static void *ticker_main(void *argument) {
  ticker_t *t = argument;
  int quiet = 0;
  while (!t->stop) {
    nanosleep(&t->tick, NULL);
    increment_epoch(t->engine);
    if (__atomic_exchange_n(&t->busy, 0, __ATOMIC_SEQ_CST)) { quiet = 0; continue; }
    if (++quiet < 64) continue;
    pthread_mutex_lock(&t->lock);
    __atomic_store_n(&t->idle, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&t->busy, __ATOMIC_SEQ_CST) && !t->stop) pthread_cond_wait(&t->wake, &t->lock);
    __atomic_store_n(&t->idle, 0, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&t->lock);
    quiet = 0;
  }
  return NULL;
}

ticker_t *shim_ticker_start(void *engine, uint64_t tick_us) {
  ticker_t *t = calloc(1, sizeof *t);
  if (!t) return NULL;
  pthread_mutex_init(&t->lock, NULL);
  pthread_cond_init(&t->wake, NULL);
  t->engine = engine;
  t->tick = (struct timespec){.tv_sec = tick_us / 1000000, .tv_nsec = (tick_us % 1000000) * 1000};
  t->busy = 1;
  if (pthread_create(&t->thread, NULL, ticker_main, t) == 0) return t;
  free(t);
  return NULL;
}

static void busy(ticker_t *t) {
  __atomic_store_n(&t->busy, 1, __ATOMIC_SEQ_CST);
  if (!__atomic_load_n(&t->idle, __ATOMIC_SEQ_CST)) return;
  pthread_mutex_lock(&t->lock);
  pthread_cond_signal(&t->wake);
  pthread_mutex_unlock(&t->lock);
}

void shim_ticker_stop(ticker_t *t) {
  pthread_mutex_lock(&t->lock);
  t->stop = 1;
  pthread_cond_signal(&t->wake);
  pthread_mutex_unlock(&t->lock);
  pthread_join(t->thread, NULL);
  free(t);
}

static uint64_t cpu_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- polling ---- */

/* Runs a guest until it waits, ends or its slice is over. */
static void poll(guest_t *g) {
  if (g->done) return; /* polling an ended future would abort the process */
  uint64_t before = cpu_ns();
  set_epoch_deadline(g->context, g->slice_ticks);
  g->done = future_poll(g->future);
  g->cpu_ns += cpu_ns() - before;
}

/* None may be listed twice. */
void shim_poll_many(ticker_t *ticker, guest_t **guests, size_t count) {
  busy(ticker);
  for (size_t i = 0; i < count; i++) poll(guests[i]);
}

void shim_poll_one(ticker_t *ticker, guest_t *guest) { shim_poll_many(ticker, &guest, 1); }

/* ---- more threads, for guests that an engine waits for ---- */

enum { MAX_HELPERS = 8, QUEUE = 64, SPINS = 2000 };

/* One thread puts guests in and takes back each; it and the helpers poll them, first come first served. A helper that
 * finds none looks again for some 50 us before it sleeps: waking a thread takes as long as a guest computes. */
typedef struct {
  pthread_t threads[MAX_HELPERS];
  size_t count;
  pthread_mutex_t lock;
  pthread_cond_t put, polled;
  guest_t *queue[QUEUE];
  size_t next, end; /* to be taken, to be put; only ever growing */
  size_t asleep, awaited;
  bool stop;
} helpers_t;

static bool is_empty(helpers_t *h) {
  return __atomic_load_n(&h->next, __ATOMIC_SEQ_CST) == __atomic_load_n(&h->end, __ATOMIC_SEQ_CST);
}

static bool is_polled(guest_t *g) { return __atomic_load_n(&g->polled, __ATOMIC_SEQ_CST); }

static bool poll_next(helpers_t *h) {
  size_t next = __atomic_load_n(&h->next, __ATOMIC_SEQ_CST);
  guest_t *g;
  do {
    if (next == __atomic_load_n(&h->end, __ATOMIC_SEQ_CST)) return false;
    g = __atomic_load_n(&h->queue[next % QUEUE], __ATOMIC_SEQ_CST);
  } while (!__atomic_compare_exchange_n(&h->next, &next, next + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
  poll(g);
  __atomic_store_n(&g->polled, 1, __ATOMIC_SEQ_CST);
  if (!__atomic_load_n(&h->awaited, __ATOMIC_SEQ_CST)) return true;
  pthread_mutex_lock(&h->lock);
  pthread_cond_signal(&h->polled);
  pthread_mutex_unlock(&h->lock);
  return true;
}

static void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

static void *helper_main(void *argument) {
  helpers_t *h = argument;
  while (!__atomic_load_n(&h->stop, __ATOMIC_SEQ_CST)) {
    for (int spins = 0; spins < SPINS; spins++) {
      if (poll_next(h)) spins = 0;
      relax();
    }
    pthread_mutex_lock(&h->lock);
    __atomic_add_fetch(&h->asleep, 1, __ATOMIC_SEQ_CST);
    while (is_empty(h) && !h->stop) pthread_cond_wait(&h->put, &h->lock);
    __atomic_sub_fetch(&h->asleep, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&h->lock);
  }
  return NULL;
}

void shim_helpers_stop(helpers_t *h) {
  pthread_mutex_lock(&h->lock);
  __atomic_store_n(&h->stop, true, __ATOMIC_SEQ_CST);
  pthread_cond_broadcast(&h->put);
  pthread_mutex_unlock(&h->lock);
  for (size_t i = 0; i < h->count; i++) pthread_join(h->threads[i], NULL);
  free(h);
}

/* As many of `count` threads as can be had; null if none can. */
helpers_t *shim_helpers_start(size_t count) {
  helpers_t *h = calloc(1, sizeof *h);
  if (!h) return NULL;
  pthread_mutex_init(&h->lock, NULL);
  pthread_cond_init(&h->put, NULL);
  pthread_cond_init(&h->polled, NULL);
  while (h->count < count && h->count < MAX_HELPERS && !pthread_create(&h->threads[h->count], NULL, helper_main, h))
    h->count++;
  if (h->count) return h;
  free(h);
  return NULL;
}

/* Has a guest polled by whoever is free; it must live, and be left alone, until shim_poll_end. */
void shim_poll_begin(ticker_t *ticker, helpers_t *h, guest_t *guest) {
  busy(ticker);
  guest->polled = 0;
  while (h->end - __atomic_load_n(&h->next, __ATOMIC_SEQ_CST) == QUEUE) poll_next(h);
  __atomic_store_n(&h->queue[h->end % QUEUE], guest, __ATOMIC_SEQ_CST);
  __atomic_store_n(&h->end, h->end + 1, __ATOMIC_SEQ_CST);
  if (!__atomic_load_n(&h->asleep, __ATOMIC_SEQ_CST)) return;
  pthread_mutex_lock(&h->lock);
  pthread_cond_signal(&h->put);
  pthread_mutex_unlock(&h->lock);
}

/* Returns when it has been polled; until then, helps. */
void shim_poll_end(helpers_t *h, guest_t *guest) {
  for (int spins = 0; !is_polled(guest) && spins < SPINS; spins++) {
    if (poll_next(h)) spins = 0;
    relax();
  }
  if (is_polled(guest)) return;
  pthread_mutex_lock(&h->lock);
  __atomic_store_n(&h->awaited, 1, __ATOMIC_SEQ_CST);
  while (!is_polled(guest)) pthread_cond_wait(&h->polled, &h->lock);
  __atomic_store_n(&h->awaited, 0, __ATOMIC_SEQ_CST);
  pthread_mutex_unlock(&h->lock);
}
