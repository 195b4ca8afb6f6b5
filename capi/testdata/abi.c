/* Prints sizes, offsets and constants: they must never change under one WEFT_ABI. Compiled as C99 and as C++17. */
#include "weft.h"

#include <stdio.h>

#define SIZE(t) printf("%s %zu\n", #t, sizeof(t))
#define AT(t, f) printf("%s.%s %zu\n", #t, #f, offsetof(t, f))
#define IS(c) printf("%s %ld\n", #c, (long)(c))

int main(void)
{
	SIZE(weft_comm);
	SIZE(weft_type);
	SIZE(weft_error);
	AT(weft_error, operation);
	AT(weft_error, culprits);
	AT(weft_error, text);
	SIZE(weft_config);
	AT(weft_config, address);
	AT(weft_config, timeout_ms);
	AT(weft_config, settings);
	SIZE(weft_info);
	AT(weft_info, transport);
	SIZE(weft_status);
	SIZE(weft_call);
	AT(weft_call, dst);
	AT(weft_call, counts);
	AT(weft_call, factor);
	AT(weft_call, was);
	AT(weft_call, queue);
	AT(weft_call, stream);
	AT(weft_call, cause);
	SIZE(weft_xfer_config);
	AT(weft_xfer_config, listen);
	AT(weft_xfer_config, streams);
	SIZE(weft_xfer_desc);
	SIZE(weft_xfer_move);
	AT(weft_xfer_move, local);
	AT(weft_xfer_move, notice);
	AT(weft_xfer_move, path);
	SIZE(weft_xfer_status);
	AT(weft_xfer_status, path);
	AT(weft_xfer_status, culprit);
	SIZE(weft_kv);
	IS(WEFT_XFER_BOUNDS);
	IS(WEFT_XFER_CLOSED);
	IS(WEFT_XFER_WRITE);
	IS(WEFT_XFER_BACKGROUND);
	IS(WEFT_KV_HASH);
	IS(WEFT_FLOAT32);
	IS(WEFT_TYPE(2, 32));
	IS(WEFT_BFLOAT16);
	IS(WEFT_SUM);
	IS(WEFT_BXOR);
	IS(WEFT_NO_DEVICE);
	IS(WEFT_PENDING);
	IS(WEFT_PUT_NOTIFY);
	return 0;
}
