// Which allocations are not GLake's: those torch sends to a pool of its own, and what holds while a CUDA graph is captured.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <vector>

#include "torch.h"

namespace glake {

// One per device. torch names a pool and a filter over streams (and, through it, threads) between begin and end; whatever matches belongs
// to the pool: graphs, cudagraph trees, MemPool, pools over ncclMemAlloc. The filters are kept in a copy, since torch's allocator hides its.
class Routes {
 public:
  using Filter = std::function<bool(cudaStream_t)>;

  // `current`: the stream of the caller, which torch captures if this is the beginning of a capture. True if it is one.
  bool begin(Pool pool, Filter filter, cudaStream_t current);
  // True if a capture ended with it.
  bool end(Pool pool);

  // Whether an allocation for `stream` by this thread belongs to a pool.
  bool is_pooled(cudaStream_t stream) {
    return routes_.load(std::memory_order_relaxed) != 0 && ask_filters(stream);
  }
  bool is_capturing() const {
    return captures_.load(std::memory_order_relaxed) != 0;
  }
  // Captures that ended without a word (torch says nothing when one fails): how many were found and closed.
  int close_abandoned();

 private:
  struct Route {
    Pool pool;
    Filter filter;
    cudaStream_t stream; // the captured one
    bool capture;
    bool seen; // the capture was seen running
  };
  bool ask_filters(cudaStream_t stream);

  std::mutex mutex_;
  std::vector<Route> list_;
  std::atomic<int> routes_{0}, captures_{0};
};

} // namespace glake
