/* Who computes when: the ticker of CPU slices, polls of guests, and the threads that help. Part of shim.c. */

/* ---- ticker: an epoch a tick while a guest computes; else it looks seldom, and then sleeps ---- */

enum { SELDOM = 4, QUIET = 16 }; /* ticks between two looks; looks without a guest until it sleeps */

static volatile uint32_t computing; /* guests, on all threads */

typedef struct {
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t wake;
  void *engine;
  struct timespec tick, seldom;
  volatile uint32_t busy, idle, stop;
} ticker_t;

static void *ticker_main(void *argument) {
  ticker_t *t = argument;
  const struct timespec *wait = &t->tick;
  int quiet = 0;
  while (!t->stop) {
    nanosleep(wait, NULL);
    bool computes = __atomic_load_n(&computing, __ATOMIC_SEQ_CST) > 0;
    if (computes) increment_epoch(t->engine);
    wait = computes ? &t->tick : &t->seldom;
    if (__atomic_exchange_n(&t->busy, 0, __ATOMIC_SEQ_CST) || computes) { quiet = 0; continue; }
    if (++quiet < QUIET) continue;
    pthread_mutex_lock(&t->lock);
    __atomic_store_n(&t->idle, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&t->busy, __ATOMIC_SEQ_CST) && !t->stop) pthread_cond_wait(&t->wake, &t->lock);
    __atomic_store_n(&t->idle, 0, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&t->lock);
    quiet = 0;
  }
  return NULL;
}

static struct timespec microseconds(uint64_t us) {
  return (struct timespec){.tv_sec = us / 1000000, .tv_nsec = (us % 1000000) * 1000};
}

ticker_t *shim_ticker_start(void *engine, uint64_t tick_us) {
  ticker_t *t = calloc(1, sizeof *t);
  if (!t) return NULL;
  pthread_mutex_init(&t->lock, NULL);
  pthread_cond_init(&t->wake, NULL);
  t->engine = engine;
  t->tick = microseconds(tick_us);
  t->seldom = microseconds(SELDOM * tick_us);
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
  __atomic_add_fetch(&computing, 1, __ATOMIC_SEQ_CST);
  g->done = future_poll(g->future);
  __atomic_sub_fetch(&computing, 1, __ATOMIC_SEQ_CST);
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
