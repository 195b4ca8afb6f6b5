// The collectives of an MPI, for the benchmark to compare with.
#include "peer.h"

#include <mpi.h>

static int counts[4096];

static void all_reduce(struct peer *p) { MPI_Allreduce(MPI_IN_PLACE, p->out, (int)p->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }
static void all_reduce_apart(struct peer *p) { MPI_Allreduce(p->in, p->out, (int)p->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }
static void reduce_scatter(struct peer *p) { MPI_Reduce_scatter(p->in, p->out, counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }
static void reduce_scatter_block(struct peer *p) {
  MPI_Reduce_scatter_block(p->in, p->out, (int)p->block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void all_gather(struct peer *p) {
  MPI_Allgather(p->in, (int)p->block, MPI_FLOAT, p->out, (int)p->block, MPI_FLOAT, MPI_COMM_WORLD);
}
static void all_to_all(struct peer *p) {
  MPI_Alltoall(p->in, (int)p->block, MPI_FLOAT, p->out, (int)p->block, MPI_FLOAT, MPI_COMM_WORLD);
}
static void broadcast(struct peer *p) { MPI_Bcast(p->out, (int)p->count, MPI_FLOAT, p->root, MPI_COMM_WORLD); }
static void reduce(struct peer *p) { MPI_Reduce(p->in, p->out, (int)p->count, MPI_FLOAT, MPI_SUM, p->root, MPI_COMM_WORLD); }
static void gather(struct peer *p) {
  MPI_Gather(p->in, (int)p->block, MPI_FLOAT, p->out, (int)p->block, MPI_FLOAT, p->root, MPI_COMM_WORLD);
}
static void scatter(struct peer *p) {
  MPI_Scatter(p->in, (int)p->block, MPI_FLOAT, p->out, (int)p->block, MPI_FLOAT, p->root, MPI_COMM_WORLD);
}
static void send_recv(struct peer *p) {
  MPI_Sendrecv(p->in, (int)p->count, MPI_FLOAT, (p->rank + 1) % p->n, 0, p->out, (int)p->count, MPI_FLOAT,
               (p->rank + p->n - 1) % p->n, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}
static void barrier(struct peer *p) {
  (void)p;
  MPI_Barrier(MPI_COMM_WORLD);
}

static peer_call choose(struct peer *p, const char **why) {
  for (int r = 0; r < p->n && r < 4096; r++) counts[r] = (int)p->block;
  if (peer_is(p, "all-reduce")) return peer_apart(p) ? all_reduce_apart : all_reduce;
  if (peer_is(p, "reduce-scatter")) return strcmp(p->variant, "v") == 0 ? reduce_scatter : reduce_scatter_block;
  if (peer_is(p, "all-gather")) return all_gather;
  if (peer_is(p, "all-to-all")) return all_to_all;
  if (peer_is(p, "broadcast")) return broadcast;
  if (peer_is(p, "reduce")) return reduce;
  if (peer_is(p, "gather")) return gather;
  if (peer_is(p, "scatter")) return scatter;
  if (peer_is(p, "send-recv")) return send_recv;
  if (peer_is(p, "barrier")) return barrier;
  *why = "no such operation in MPI";
  return NULL;
}

int main(int argc, char **argv) {
  int rank, n;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  struct peer_library lib = {choose, barrier, NULL};
  peer_serve(rank, n, &lib);
  MPI_Finalize();
  return 0;
}
