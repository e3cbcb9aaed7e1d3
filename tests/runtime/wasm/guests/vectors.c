/* Says each record that it is told again, so that a test vector comes back as the SDK reads and writes it. */
#include "tartlet.h"

int32_t tartlet_main(void) {
  for (;;) {
    const tl_record *told = tl_next();
    tl.next_ticket = told->ticket - 1;
    tl_record *said = tl_begin(told->op, told->length);
    said->flags = told->flags;
    said->queue = told->queue;
    said->a = told->a;
    said->b = told->b;
    said->c = told->c;
    tl_put(tl_payload(told), told->length);
  }
}
