/* The first program: every rank gives its number, and all have the sum.
 *
 *     make lib
 *     cc -I capi -o first examples/c/first.c python/weft/libweft.so -Wl,-rpath,$PWD/python/weft
 *     weft run -n 4 -- ./first
 */
#include <stdio.h>
#include <stdlib.h>

#include "weft.h"

static weft_error e;

static void check(int code)
{
	if (code != WEFT_OK) {
		fprintf(stderr, "code %d: %s\n", code, e.text);
		exit(1);
	}
}

int main(void)
{
	weft_comm c;
	check(weft_join(NULL, &c, &e)); /* who this rank is comes from the environment */
	int rank = weft_rank(c), ranks = weft_size(c);

	float x[4] = {(float)rank, 1, 2, 3};
	check(weft_all_reduce(c, x, x, 4, WEFT_FLOAT32, WEFT_SUM, &e));
	printf("rank %d of %d: the sum of all ranks' numbers is %g\n", rank, ranks, x[0]);

	/* Started calls go on while this rank computes. */
	weft_call sum = {.size = sizeof sum, .op = WEFT_ALL_REDUCE, .dst = x, .src = x, .count = 4, .type = WEFT_FLOAT32, .reduce = WEFT_MAX};
	weft_request r;
	check(weft_start(c, &sum, &r, &e));
	check(weft_wait(r, -1, NULL, &e));

	/* Messages have tags, and a receive may take one from any rank. */
	if (rank > 0) {
		int32_t mine = rank * 10;
		check(weft_send(c, &mine, 1, WEFT_INT32, 0, 7, &e));
	}
	for (int i = 1; rank == 0 && i < ranks; i++) {
		int32_t got;
		weft_status s;
		check(weft_recv(c, &got, 1, WEFT_INT32, WEFT_ANY, 7, &s, &e));
		printf("rank 0: rank %d sent %d\n", s.from, got);
	}
	check(weft_barrier(c, &e));
	check(weft_close(c, &e));
	return 0;
}
