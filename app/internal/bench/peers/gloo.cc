// The collectives of Gloo over TCP, for the benchmark to compare with. Variants
// of all-reduce: default (what Gloo chooses), bcube, and halving-doubling, which
// is of Gloo's older kind.
#include "peer.h"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>

#include <memory>
#include <vector>

static std::shared_ptr<gloo::rendezvous::Context> context;
static std::unique_ptr<gloo::Algorithm> algorithm;
static bool apart;

static void add(void *c, const void *a, const void *b, size_t n) { gloo::sum<float>(c, a, b, n); }

static void all_reduce(struct peer *p) {
  gloo::AllreduceOptions o(context);
  if (apart) o.setInput(p->in, p->count);
  o.setOutput(p->out, p->count);
  o.setReduceFunction(add);
  if (!strcmp(p->variant, "bcube")) o.setAlgorithm(gloo::AllreduceOptions::Algorithm::BCUBE);
  gloo::allreduce(o);
}
static void older(struct peer *p) {
  if (apart) memcpy(p->out, p->in, p->count * sizeof(float));
  algorithm->run();
}
static void all_gather(struct peer *p) {
  gloo::AllgatherOptions o(context);
  o.setInput(p->in, p->block);
  o.setOutput(p->out, p->count);
  gloo::allgather(o);
}
static void all_to_all(struct peer *p) {
  gloo::AlltoallOptions o(context);
  o.setInput(p->in, p->count);
  o.setOutput(p->out, p->count);
  gloo::alltoall(o);
}
static void broadcast(struct peer *p) {
  gloo::BroadcastOptions o(context);
  o.setOutput(p->out, p->count);
  o.setRoot(p->root);
  gloo::broadcast(o);
}
static void reduce(struct peer *p) {
  gloo::ReduceOptions o(context);
  o.setInput(p->in, p->count);
  o.setOutput(p->out, p->count);
  o.setReduceFunction(add);
  o.setRoot(p->root);
  gloo::reduce(o);
}
static void gather(struct peer *p) {
  gloo::GatherOptions o(context);
  o.setInput(p->in, p->block);
  if (p->rank == p->root) o.setOutput(p->out, p->count);
  o.setRoot(p->root);
  gloo::gather(o);
}
static void scatter(struct peer *p) {
  gloo::ScatterOptions o(context);
  std::vector<float *> parts;
  for (int r = 0; r < p->n; r++) parts.push_back(p->in + p->block * (size_t)r);
  if (p->rank == p->root) o.setInputs(parts, p->block);
  o.setOutput(p->out, p->block);
  o.setRoot(p->root);
  gloo::scatter(o);
}
static void barrier(struct peer *) {
  gloo::BarrierOptions o(context);
  gloo::barrier(o);
}
// Reduces in place and leaves the block at the front: the copy before belongs to
// what a caller with two buffers pays.
static void reduce_scatter(struct peer *p) {
  memcpy(p->out, p->in, p->count * sizeof(float));
  algorithm->run();
}

static peer_call choose(struct peer *p, const char **why) {
  algorithm.reset();
  apart = peer_apart(p);
  bool halving = !strcmp(p->variant, "halving-doubling");
  if (peer_is(p, "all-reduce") && halving) {
    algorithm.reset(new gloo::AllreduceHalvingDoubling<float>(context, std::vector<float *>{p->out}, (int)p->count));
    return older;
  }
  if (peer_is(p, "all-reduce")) return all_reduce;
  if (peer_is(p, "reduce-scatter")) {
    std::vector<int> counts(p->n, (int)p->block);
    algorithm.reset(new gloo::ReduceScatterHalvingDoubling<float>(context, std::vector<float *>{p->out}, (int)p->count, counts));
    return reduce_scatter;
  }
  if (peer_is(p, "all-gather")) return all_gather;
  if (peer_is(p, "all-to-all")) return all_to_all;
  if (peer_is(p, "broadcast")) return broadcast;
  if (peer_is(p, "reduce")) return reduce;
  if (peer_is(p, "gather")) return gather;
  if (peer_is(p, "scatter")) return scatter;
  if (peer_is(p, "barrier")) return barrier;
  *why = "no such operation in Gloo";
  return nullptr;
}

// Arguments: the folder of the store, and the interface to use, loopback without it.
int main(int argc, char **argv) {
  int rank = atoi(getenv("RANK")), n = atoi(getenv("WORLD_SIZE"));
  gloo::transport::tcp::attr at("127.0.0.1");
  if (argc > 2) at.hostname.clear(), at.iface = argv[2];
  auto device = gloo::transport::tcp::CreateDevice(at);
  gloo::rendezvous::FileStore store(argv[1]);
  context = std::make_shared<gloo::rendezvous::Context>(rank, n);
  context->connectFullMesh(store, device);
  struct peer_library lib = {choose, barrier, nullptr};
  peer_serve(rank, n, &lib);
  algorithm.reset();
  return 0;
}
