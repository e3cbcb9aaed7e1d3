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

#include "shim_polls.h"
