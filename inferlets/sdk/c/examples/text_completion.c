/* Text completion in core WebAssembly: embed, forward, sample, with `--run-ahead` samples in flight.
 *
 * Arguments: --prompt TEXT, --max-tokens N (16), --run-ahead N (4). Sampling is greedy. The program
 * prints the text when it is complete.
 */
#include "tartlet.h"

#define MAX_PROMPT 1024
#define MAX_TOKENS 1024
#define MAX_AHEAD 64
#define MAX_STOP 16

static char prompt[8192];
static uint32_t prompt_bytes, ids[MAX_PROMPT], tokens[MAX_TOKENS], stop[MAX_STOP], n_stop;

/* ---- a reader for the JSON of the runtime's answers, and for no other JSON ---- */

static uint32_t number(const char **at, const char *end) {
  uint32_t value = 0;
  while (*at < end && **at >= '0' && **at <= '9') value = value * 10 + (uint32_t)(*(*at)++ - '0');
  return value;
}

/* Returns the place behind `key` in the text, or null. */
static const char *find(const char *text, const char *end, const char *key) {
  for (; text < end; text++) {
    const char *t = text, *k = key;
    while (*k && t < end && *t == *k) t++, k++;
    if (!*k) return t;
  }
  return NULL;
}

static uint32_t hex(const char *at) {
  uint32_t value = 0;
  for (int i = 0; i < 4; i++) value = value * 16 + (uint32_t)(at[i] <= '9' ? at[i] - '0' : (at[i] | 32) - 'a' + 10);
  return value;
}

static void put_utf8(uint32_t c) {
  if (prompt_bytes + 4 > sizeof prompt) __builtin_trap();
  if (c < 0x80) {
    prompt[prompt_bytes++] = (char)c;
    return;
  }
  if (c < 0x800) {
    prompt[prompt_bytes++] = (char)(0xC0 | c >> 6);
  } else {
    if (c < 0x10000) {
      prompt[prompt_bytes++] = (char)(0xE0 | c >> 12);
    } else {
      prompt[prompt_bytes++] = (char)(0xF0 | c >> 18);
      prompt[prompt_bytes++] = (char)(0x80 | (c >> 12 & 63));
    }
    prompt[prompt_bytes++] = (char)(0x80 | (c >> 6 & 63));
  }
  prompt[prompt_bytes++] = (char)(0x80 | (c & 63));
}

/* Unescapes the JSON string whose first character `at` points to. */
static void read_prompt(const char *at, const char *end) {
  while (at < end && *at != '"') {
    if (*at != '\\') {
      if (prompt_bytes == sizeof prompt) __builtin_trap();
      prompt[prompt_bytes++] = *at++;
      continue;
    }
    char c = at[1];
    at += 2;
    if (c == 'u') {
      uint32_t code = hex(at);
      at += 4;
      if (code >= 0xD800 && code < 0xDC00) {
        code = 0x10000 + ((code - 0xD800) << 10) + (hex(at + 2) - 0xDC00);
        at += 6;
      }
      put_utf8(code);
    } else {
      put_utf8((uint32_t)(c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c == 'b' ? '\b' : c == 'f' ? '\f' : c));
    }
  }
}

static uint32_t option(const char *args, const char *end, const char *key, uint32_t otherwise) {
  const char *at = find(args, end, key);
  return at ? number(&at, end) : otherwise;
}

int32_t tartlet_main(void) {
  tl_record *answer = tl_await(tl_ask(tl_get_arg()));
  if (!answer) return 1;
  const char *args = (const char *)tl_payload(answer), *end = args + answer->length;
  uint32_t max_tokens = option(args, end, "\"--max-tokens\", \"", 16);
  uint32_t ahead = option(args, end, "\"--run-ahead\", \"", 4);
  const char *text = find(args, end, "\"--prompt\", \"");
  if (text) read_prompt(text, end);
  if (max_tokens > MAX_TOKENS || ahead > MAX_AHEAD) return 2;

  answer = tl_await(tl_ask(tl_get_model("", 0)));
  if (!answer) return 1;
  const char *info = (const char *)tl_payload(answer), *info_end = info + answer->length;
  uint32_t model = option(info, info_end, "\"index\":", 0);
  uint32_t page_size = option(info, info_end, "\"page_size\":", 16);
  const char *at = find(info, info_end, "\"stop_tokens\":[");
  while (at && *at != ']' && n_stop < MAX_STOP) {
    stop[n_stop++] = number(&at, info_end);
    if (*at == ',') at++;
  }

  answer = tl_await(tl_ask(tl_tokenize(model, true, prompt, prompt_bytes)));
  if (!answer) return 1;
  uint32_t n = answer->length / 4;
  if (n == 0 || n > MAX_PROMPT) return 2;
  memcpy(ids, tl_payload(answer), answer->length);

  /* Embeds [0, n) hold the prompt. Behind them, step i has one input and one output, and samples into slot i % ring. */
  uint32_t ring = ahead + 1, in = n, out = n + ring, sent = 0, got = 0;
  tl_range(TL_OP_ALLOC_KVPAGE, 0, (n + max_tokens + page_size - 1) / page_size);
  tl_range(TL_OP_ALLOC_EMB, 0, n + 2 * ring);
  tl_range(TL_OP_ALLOC_SLOT, 0, ring);
  tl_record *embed = tl_begin(TL_OP_EMBED_TXT, 12 * n);
  embed->a = n;
  tl_put_range(0, n);
  tl_put(ids, 4 * n);
  tl_put_range(0, n);
  tl_forward_range(0, 0, 0, n, 0, (n + page_size - 1) / page_size, 0, out);

  uint32_t first_ticket[MAX_AHEAD + 1];
  bool ended = false;
  while (!ended && got < max_tokens) {
    while (sent < max_tokens && sent <= got + ahead) {
      uint32_t slot = sent % ring;
      if (sent) {
        uint32_t position = n + sent - 1, page = position / page_size;
        tl_embed_slot(in + slot, (sent - 1) % ring, position);
        tl_forward_range(0, page + 1, in + slot, 1, page, 1, position % page_size, out + slot);
      }
      first_ticket[slot] = tl_sample_greedy(out + slot, slot, stop, n_stop);
      sent++;
    }
    tl_record *record = tl_next();
    if (record->op == TL_EVENT_KILL || record->op == TL_EVENT_FAILURE) return 3;
    if (record->op != TL_EVENT_RESULT || record->ticket != first_ticket[got % ring]) continue;
    ended = record->b & 1;
    if (!ended) tokens[got] = record->a;
    got++;
  }
  answer = tl_await(tl_ask(tl_detokenize(model, false, tokens, got - ended)));
  if (!answer) return 1;
  tl_log(1, tl_payload(answer), answer->length);
  tl_log(1, "\n", 1);
  return 0;
}
