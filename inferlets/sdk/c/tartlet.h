/* The C SDK: an inferlet in core WebAssembly, without a C library.
 *
 * No dependencies but two files beside this one, which a tool generates: tartlet_abi.h with the ABI's constants, and
 * tartlet_calls.h with a function for each call. docs/calls.md describes the calls, docs/abi.md the layouts.
 * `make setup` installs zig's compiler as a Python package. No other compiler is needed. From the repository's root:
 *
 *     .venv/bin/python -m ziglang cc --target=wasm32-freestanding -Os -nostdlib -Wl,--no-entry \
 *         -I inferlets/sdk/c -o my.wasm my.c
 *     .venv/bin/tartlet run my.wasm
 *
 * A program is one C file that includes this header and defines
 *
 *     int32_t tartlet_main(void) {
 *       tl_send("hi\n", 3);
 *       return 0; // success
 *     }
 *
 * The tl_* calls collect records. All collected records are handed over together: by `tl_submit`, when the program
 * waits for an answer (`tl_next`, `tl_await`), when no more records fit, and when `tartlet_main` returns. Call
 * `tl_submit` if a record must arrive while the program goes on computing.
 */
#ifndef TARTLET_H
#define TARTLET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tartlet_abi.h"

#define TL_IMPORT(name) __attribute__((import_module("tartlet"), import_name(#name)))
#define TL_CALL __attribute__((noinline, unused)) static

/* The program. The file that includes this header defines it. 0 is success. */
static int32_t tartlet_main(void);

/* ---- the host's four functions ---- */

/* Hands over a batch. Returns nothing. */
TL_IMPORT(submit) void tl_host_submit(const void *data, uint32_t length);
/* Suspends the program until a delivery comes, writes the delivery and returns its length. If `capacity` is too small,
 * returns minus its length, and the next call returns the same delivery. `timeout_us` -1 means no limit. */
TL_IMPORT(wait) int32_t tl_host_wait(void *data, uint32_t capacity, uint32_t max_records, int64_t timeout_us);
TL_IMPORT(clock_ns) int64_t tl_clock_ns(void);
TL_IMPORT(random) void tl_random(void *data, uint32_t length);

/* ---- layouts ---- */

typedef struct {
  uint16_t version, flags;
  uint32_t count, payload, reserved;
} tl_header;

typedef struct {
  uint16_t op, flags;
  uint32_t ticket, queue, a, b, c, offset, length;
} tl_record;

_Static_assert(sizeof(tl_header) == TL_HEADER_BYTES, "header");
_Static_assert(sizeof(tl_record) == TL_RECORD_BYTES, "record");

/* ---- memory functions: a compiler emits calls to them, and there is no C library ---- */

#ifndef TL_NO_MEMORY_FUNCTIONS
void *memcpy(void *restrict to, const void *restrict from, size_t n) {
  uint8_t *t = to;
  const uint8_t *f = from;
  while (n--) *t++ = *f++;
  return to;
}
void *memset(void *to, int value, size_t n) {
  uint8_t *t = to;
  while (n--) *t++ = (uint8_t)value;
  return to;
}
#endif

/* ---- a batch under construction, and the last delivery ---- */

#ifndef TL_MAX_RECORDS
#define TL_MAX_RECORDS 256
#endif
#ifndef TL_PAYLOAD_BYTES
#define TL_PAYLOAD_BYTES 65536
#endif
#ifndef TL_INBOX_BYTES
#define TL_INBOX_BYTES 65536
#endif

static struct {
  uint32_t count, payload_bytes, next_ticket;
  tl_record records[TL_MAX_RECORDS];
  _Alignas(8) uint8_t payload[TL_PAYLOAD_BYTES];
  _Alignas(8) uint8_t out[TL_HEADER_BYTES + TL_MAX_RECORDS * TL_RECORD_BYTES + TL_PAYLOAD_BYTES];
  _Alignas(8) uint8_t in[TL_INBOX_BYTES];
  uint32_t in_count, in_at;
} tl;

/* Hands over all collected records. The comment at the head of this file lists what else does that. */
TL_CALL void tl_submit(void) {
  if (!tl.count) return;
  tl_header *header = (tl_header *)tl.out;
  *header = (tl_header){.version = TL_ABI_VERSION, .count = tl.count, .payload = tl.payload_bytes};
  memcpy(tl.out + TL_HEADER_BYTES, tl.records, tl.count * TL_RECORD_BYTES);
  memcpy(tl.out + TL_HEADER_BYTES + tl.count * TL_RECORD_BYTES, tl.payload, tl.payload_bytes);
  tl_host_submit(tl.out, TL_HEADER_BYTES + tl.count * TL_RECORD_BYTES + tl.payload_bytes);
  tl.count = tl.payload_bytes = 0;
}

/* The function that the host calls. It submits the records that the program left when it returned. */
__attribute__((export_name("tartlet_main"))) int32_t tl_run_program(void) {
  int32_t status = tartlet_main();
  tl_submit();
  return status;
}

/* Appends a record. The caller fills in its payload of `length` bytes with `tl_put`. Submits if the batch is full. */
TL_CALL tl_record *tl_begin(uint16_t op, uint32_t length) {
  if (tl.count == TL_MAX_RECORDS || tl.payload_bytes + length > TL_PAYLOAD_BYTES) tl_submit();
  if (length > TL_PAYLOAD_BYTES) __builtin_trap();
  tl_record *record = &tl.records[tl.count++];
  *record = (tl_record){.op = op, .ticket = ++tl.next_ticket, .offset = tl.payload_bytes, .length = length};
  return record;
}

TL_CALL void tl_put(const void *data, uint32_t length) {
  memcpy(tl.payload + tl.payload_bytes, data, length);
  tl.payload_bytes += length;
}

TL_CALL void tl_put_u32(uint32_t value) { tl_put(&value, 4); }

TL_CALL void tl_put_range(uint32_t first, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) tl_put_u32(first + i);
}

/* Returns the next record of the deliveries, and waits for one if needed. `tl_payload(record)` is its payload. */
TL_CALL tl_record *tl_next(void) {
  while (tl.in_at == tl.in_count) {
    tl_submit();
    if (tl_host_wait(tl.in, TL_INBOX_BYTES, TL_MAX_RECORDS, -1) < TL_HEADER_BYTES) __builtin_trap();
    tl.in_count = ((tl_header *)tl.in)->count;
    tl.in_at = 0;
  }
  return (tl_record *)(tl.in + TL_HEADER_BYTES) + tl.in_at++;
}

TL_CALL uint8_t *tl_payload(const tl_record *record) {
  return tl.in + TL_HEADER_BYTES + tl.in_count * TL_RECORD_BYTES + record->offset;
}

/* Waits for the answer to one ticket, and drops records that come before it. Returns null if the command failed. */
TL_CALL tl_record *tl_await(uint32_t ticket) {
  for (;;) {
    tl_record *record = tl_next();
    if (record->op == TL_EVENT_KILL) return NULL;
    if (record->ticket == ticket) return record->op == TL_EVENT_RESULT ? record : NULL;
  }
}

/* Marks a record as awaited, and returns its ticket: tl_await(tl_ask(tl_tokenize(...))). */
TL_CALL uint32_t tl_ask(tl_record *record) {
  record->flags = TL_FLAG_AWAIT;
  return record->ticket;
}

/* Copies bytes to `out`, and returns the place behind them. */
TL_CALL uint8_t *tl_write(uint8_t *out, const void *data, uint32_t length) {
  memcpy(out, data, length);
  return out + length;
}

/* ---- every call of the ABI, by its name: tl_send, tl_forward, tl_spawn and so on ---- */

#include "tartlet_calls.h"

/* ---- calls whose ids are ranges, which need no list ---- */

/* Records an alloc_* or dealloc_* of the ids [first, first + count). */
TL_CALL void tl_range(uint16_t op, uint32_t first, uint32_t count) {
  tl_begin(op, 4 * count);
  tl_put_range(first, count);
}

/* Records forward(ikv = pages [0, n_ikv), iemb = [emb, +n_emb), okv = pages [okv, +n_okv), oemb = [out_emb]), computed
 * under a LoRA adapter of a number; 0 for none. */
TL_CALL void tl_forward_range(uint32_t adapter, uint32_t n_ikv, uint32_t emb, uint32_t n_emb, uint32_t okv,
                              uint32_t n_okv, uint32_t okv_offset, uint32_t out_emb) {
  tl_record *record = tl_begin(TL_OP_FORWARD, 4 * (4 + n_ikv + n_emb + n_okv + 1));
  record->a = okv_offset;
  record->b = adapter;
  tl_put_u32(n_ikv);
  tl_put_u32(n_emb);
  tl_put_u32(n_okv);
  tl_put_u32(1);
  tl_put_range(0, n_ikv);
  tl_put_range(emb, n_emb);
  tl_put_range(okv, n_okv);
  tl_put_u32(out_emb);
}

/* Records forward_table(table, start, iemb = [emb, +n_emb), oemb = [out_emb]) under an adapter; 0 for none. */
TL_CALL void tl_forward_table_range(uint32_t adapter, uint32_t table, uint32_t start, uint32_t emb, uint32_t n_emb,
                                    uint32_t out_emb) {
  tl_record *record = tl_begin(TL_OP_FORWARD_TABLE, 4 * (3 + n_emb + 1));
  record->a = table;
  record->b = start;
  tl_put_u32(n_emb);
  tl_put_u32(1);
  tl_put_u32(adapter);
  tl_put_range(emb, n_emb);
  tl_put_u32(out_emb);
}

/* Records an `embed_txt` of one token slot at a position, in the default queue. */
TL_CALL void tl_embed_slot(uint32_t emb, uint32_t slot, uint32_t position) {
  tl_record *record = tl_begin(TL_OP_EMBED_TXT, 12);
  record->a = record->b = 1;
  tl_put_u32(emb);
  tl_put_u32(slot);
  tl_put_u32(position);
}

/* Records an awaited greedy `sample` in the default queue, and returns its ticket. */
TL_CALL uint32_t tl_sample_greedy(uint32_t emb, uint32_t slot, const uint32_t *stop, uint32_t n_stop) {
  const uint32_t params[8] = {0, 0, 0x3F800000u /* top_p 1.0 */, 0, 0, 0, 0, n_stop};
  tl_record *record = tl_begin(TL_OP_SAMPLE, sizeof params + 4 * n_stop);
  record->a = emb;
  record->b = slot;
  tl_put(params, sizeof params);
  tl_put(stop, 4 * n_stop);
  return tl_ask(record);
}

#endif
