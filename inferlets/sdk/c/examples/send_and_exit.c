/* Sends one message and ends: what launching an inferlet costs at the least (`tartlet bench launch`). */
#include "tartlet.h"

int32_t tartlet_main(void) {
  tl_send("ok", 2);
  return 0;
}
