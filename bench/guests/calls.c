/* Times calls from within a guest (launched with durable=False, so that the clock is the real one).
 *
 * Arguments: --mode N: 0 waits for a message and ends, 1 a call that the runtime answers, 2 a call that control answers,
 * 3 calls without reply, 64 a submit. Sends the samples as little-endian u32 nanoseconds a call.
 */
#define TL_MAX_RECORDS 64
#include "tartlet.h"

#define SAMPLES 200
#define SUBMITS 16

static uint32_t samples[SAMPLES];

static uint32_t ask(uint16_t op) {
  tl_record *record = tl_begin(op, 0);
  record->flags = TL_FLAG_AWAIT;
  uint32_t ticket = record->ticket;
  return tl_await(ticket) ? ticket : 0;
}

static uint32_t digit_after(const char *text, uint32_t n, char key) {
  for (uint32_t i = 0; i + 4 < n; i++)
    if (text[i] == key && text[i + 1] == '"') /* --mode", "N */
      for (i += 2; i < n; i++)
        if (text[i] >= '0' && text[i] <= '9') return (uint32_t)(text[i] - '0');
  return 0;
}

int32_t tartlet_main(void) {
  tl_record *record = tl_begin(TL_OP_GET_ARG, 0);
  record->flags = TL_FLAG_AWAIT;
  tl_record *answer = tl_await(record->ticket);
  if (!answer) return 1;
  uint32_t mode = digit_after((const char *)tl_payload(answer), answer->length, 'e');
  if (mode == 0) {
    tl_send("waiting", 7);
    return ask(TL_OP_RECEIVE) ? 0 : 1;
  }
  for (uint32_t i = 0; i < SAMPLES; i++) {
    int64_t start = tl_clock_ns();
    if (mode == 3) {
      for (uint32_t j = 0; j < SUBMITS * 64; j++) tl_begin(TL_OP_SET_QUEUE_PRIORITY, 0)->a = 1;
      tl_submit();
    }
    if (mode == 2) {
      if (!ask(TL_OP_USAGE)) return 2;
    } else if (!ask(TL_OP_GET_ARG)) {
      return 2;
    }
    uint32_t calls = mode == 3 ? SUBMITS * 64 : 1;
    samples[i] = (uint32_t)((tl_clock_ns() - start) / calls);
    if (mode == 3 && !ask(TL_OP_USAGE)) return 2; /* control has caught up */
  }
  tl_send(samples, sizeof samples);
  return 0;
}
