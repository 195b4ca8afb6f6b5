// MPI's one-sided operations, to compare with: rma get|put BLOCK BATCH TOTAL ITERATIONS prints seconds.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
	MPI_Init(&argc, &argv);
	if (argc != 6) return 2;
	int rank, put = !strcmp(argv[1], "put");
	long block = atol(argv[2]), batch = atol(argv[3]), total = atol(argv[4]), iters = atol(argv[5]);
	long windows = total / block / batch;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	char *theirs, *mine = malloc(total);
	MPI_Win win;
	MPI_Win_allocate(total, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &theirs, &win);
	memset(mine, 1, total);
	memset(theirs, 2, total);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		MPI_Win_lock(MPI_LOCK_SHARED, 1, 0, win);
		double began = 0;
		for (long k = -2; k < iters; k++) {
			if (k == 0) began = MPI_Wtime();
			for (long i = 0; i < batch; i++) {
				long at = (i * windows + (k + 2) % windows) * block;
				if (put)
					MPI_Put(mine + at, block, MPI_BYTE, 1, at, block, MPI_BYTE, win);
				else
					MPI_Get(mine + at, block, MPI_BYTE, 1, at, block, MPI_BYTE, win);
			}
			MPI_Win_flush(1, win);
		}
		printf("%.9f\n", MPI_Wtime() - began);
		MPI_Win_unlock(1, win);
	}
	MPI_Win_free(&win);
	MPI_Finalize();
	return 0;
}
