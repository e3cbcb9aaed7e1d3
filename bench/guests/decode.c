/* The decode loop of the overhead and batching benchmarks: a made-up prompt, then tokens, greedy, without stop tokens.
 *
 * Arguments, all numbers, in this order: prompt tokens, tokens, run-ahead, 1 to sample in the program from
 * get_next_dist. Sends "f" when it has the first token, waits for a message, goes on, and sends "l" with the last.
 */
#include "tartlet.h"

#define MAX_PROMPT 512
#define MAX_AHEAD 16

static uint32_t args[4];

static void read_args(const char *text, uint32_t n) {
  uint32_t k = 0;
  for (uint32_t i = 0; i < n && k < 4; k++) {
    while (i < n && (text[i] < '0' || text[i] > '9')) i++;
    for (; i < n && text[i] >= '0' && text[i] <= '9'; i++) args[k] = args[k] * 10 + (uint32_t)(text[i] - '0');
  }
}

static tl_record *ask(uint16_t op) {
  tl_record *record = tl_begin(op, 0);
  record->flags = TL_FLAG_AWAIT;
  return tl_await(record->ticket);
}

static uint32_t page_size_of(const char *info, uint32_t n) {
  const char key[] = "\"page_size\":";
  for (uint32_t i = 0; i + sizeof key < n; i++) {
    uint32_t k = 0;
    while (k < sizeof key - 1 && info[i + k] == key[k]) k++;
    if (k < sizeof key - 1) continue;
    uint32_t value = 0;
    for (i += k; i < n && (info[i] == ' ' || (info[i] >= '0' && info[i] <= '9')); i++)
      if (info[i] != ' ') value = value * 10 + (uint32_t)(info[i] - '0');
    return value;
  }
  return 0;
}

static uint32_t most_likely(uint32_t embed) { /* get_next_dist: n, k, then ids in falling probability */
  tl_record *record = tl_begin(TL_OP_GET_NEXT_DIST, 4);
  record->flags = TL_FLAG_AWAIT;
  uint32_t ticket = record->ticket;
  tl_put_u32(embed);
  tl_record *answer = tl_await(ticket);
  if (!answer) __builtin_trap();
  return ((uint32_t *)tl_payload(answer))[2];
}

static void embed_token(uint32_t embed, uint32_t token, uint32_t position) {
  tl_begin(TL_OP_EMBED_TXT, 12)->a = 1;
  tl_put_u32(embed);
  tl_put_u32(token);
  tl_put_u32(position);
}

/* Takes one record: an answer to a sample, or the message; false if something failed. */
static bool take(uint32_t *sampled, uint32_t go_ticket, bool *go) {
  tl_record *record = tl_next();
  if (record->op != TL_EVENT_RESULT) return false;
  if (go_ticket && record->ticket == go_ticket) *go = true;
  else ++*sampled;
  return true;
}

/* Says that the first token is there, and asks for the message to go on. */
static uint32_t tell(void) {
  tl_send("f", 1);
  tl_record *record = tl_begin(TL_OP_RECEIVE, 0);
  record->flags = TL_FLAG_AWAIT;
  return record->ticket;
}

static bool tell_and_hear(void) { return tl_await(tell()) != 0; }

int32_t tartlet_main(void) {
  tl_record *answer = ask(TL_OP_GET_ARG);
  if (!answer) return 1;
  read_args((const char *)tl_payload(answer), answer->length);
  uint32_t n = args[0], tokens = args[1], ahead = args[2], own_sampling = args[3];
  if (n == 0 || n > MAX_PROMPT || ahead > MAX_AHEAD) return 2;
  answer = ask(TL_OP_GET_MODEL);
  if (!answer) return 1;
  uint32_t page_size = page_size_of((const char *)tl_payload(answer), answer->length);
  if (!page_size) return 3;

  uint32_t ring = ahead + 1, in = n, out = n + ring;
  tl_range(TL_OP_ALLOC_KVPAGE, 0, (n + tokens + page_size - 1) / page_size);
  tl_range(TL_OP_ALLOC_EMB, 0, n + 2 * ring);
  tl_range(TL_OP_ALLOC_SLOT, 0, ring);
  tl_begin(TL_OP_EMBED_TXT, 12 * n)->a = n;
  tl_put_range(0, n);
  for (uint32_t i = 0; i < n; i++) tl_put_u32(10 + i * 7 % 200);
  tl_put_range(0, n);
  tl_forward_range(0, 0, 0, n, 0, (n + page_size - 1) / page_size, 0, out);

  uint32_t sent = 0, sampled = 0, go_ticket = 0;
  bool go = false;
  for (uint32_t got = 0; got < tokens; got++) {
    if (own_sampling) {
      uint32_t token = most_likely(out), position = n + got, page = position / page_size;
      if (got == 0 && !tell_and_hear()) return 4;
      if (got + 1 < tokens) {
        embed_token(in, token, position);
        tl_forward_range(0, page + 1, in, 1, page, 1, position % page_size, out);
      }
    } else {
      if (got == 1) /* the steps queued ahead may be answered before the message comes */
        while (!go)
          if (!take(&sampled, go_ticket, &go)) return 4;
      for (; sent < tokens && sent <= got + ahead; sent++) {
        uint32_t slot = sent % ring;
        if (sent) {
          uint32_t position = n + sent - 1, page = position / page_size;
          tl_embed_slot(in + slot, (sent - 1) % ring, position);
          tl_forward_range(0, page + 1, in + slot, 1, page, 1, position % page_size, out + slot);
        }
        tl_sample_greedy(out + slot, slot, NULL, 0);
      }
      while (sampled <= got)
        if (!take(&sampled, go_ticket, &go)) return 4;
    }
    if (got == 0 && !own_sampling) go_ticket = tell();
  }
  tl_send("l", 1);
  return 0;
}
