/* The last rank dies in the middle of a run. The others learn which one it was, and go on without it.
 *
 *     cc -I capi -o survive examples/c/survive.c python/weft/libweft.so -Wl,-rpath,$PWD/python/weft
 *     weft run -n 3 --keep-going -- ./survive
 */
#define _DEFAULT_SOURCE
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "weft.h"

int main(void)
{
	weft_comm c, left;
	weft_error e;
	if (weft_join(NULL, &c, &e)) {
		fprintf(stderr, "%s\n", e.text);
		return 1;
	}
	int rank = weft_rank(c), ranks = weft_size(c);
	if (rank == ranks - 1)
		kill(getpid(), SIGKILL);

	double x = 1;
	int code = weft_all_reduce(c, &x, &x, 1, WEFT_FLOAT64, WEFT_SUM, &e);
	if (code != WEFT_DEAD || e.culprit_count != 1) {
		fprintf(stderr, "rank %d: code %d, %d culprits: %s\n", rank, code, e.culprit_count, e.text);
		return 1;
	}
	printf("rank %d: rank %d died\n", rank, e.culprits[0]);

	if (weft_shrink(c, &left, &e) || weft_all_reduce(left, &x, &x, 1, WEFT_FLOAT64, WEFT_SUM, &e)) {
		fprintf(stderr, "rank %d: %s\n", rank, e.text);
		return 1;
	}
	printf("rank %d: %g ranks go on\n", rank, x);
	weft_barrier(left, &e);
	return weft_close(left, &e);
}
