#ifndef WEFT_NCCL_H
#define WEFT_NCCL_H

#include <stdint.h>

/* A row of the table for NCCL's tuner; -1 is any. */
struct weft_tuner_row {
	int32_t kind, algo, proto, channels, pipe_ops, registered;
	int64_t min, max;
};

#endif
