#include "routes.h"

#include <algorithm>

namespace glake {

namespace {

bool runs(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) {
    (void)cudaGetLastError(); // asked, not used: it must not surface in somebody else's check
    return true; // the legacy stream while another is captured: something is
  }
  return status != cudaStreamCaptureStatusNone;
}

} // namespace

bool Routes::begin(Pool pool, Filter filter, cudaStream_t current) {
  // A graph's filter matches only streams under its capture, and torch calls this before the capture starts; a MemPool's filter matches the
  // caller's stream or thread at once.
  bool capture = !filter(current);
  std::lock_guard<std::mutex> lock(mutex_);
  list_.push_back({pool, std::move(filter), current, capture, false});
  routes_ = static_cast<int>(list_.size());
  captures_ += capture ? 1 : 0;
  return capture;
}

bool Routes::end(Pool pool) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = std::find_if(list_.rbegin(), list_.rend(), [&](const Route& r) { return r.pool == pool; });
  if (found == list_.rend()) {
    return false;
  }
  bool capture = found->capture;
  list_.erase(std::next(found).base());
  routes_ = static_cast<int>(list_.size());
  captures_ -= capture ? 1 : 0;
  return capture;
}

bool Routes::ask_filters(cudaStream_t stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  bool matches = false;
  for (Route& route : list_) {
    bool match = route.filter(stream);
    route.seen |= route.capture && match;
    matches |= match;
  }
  return matches;
}

int Routes::close_abandoned() {
  std::lock_guard<std::mutex> lock(mutex_);
  int closed = 0;
  for (Route& route : list_) {
    if (!route.capture) {
      continue;
    }
    bool running = runs(route.stream);
    if (running) {
      route.seen = true;
    } else if (route.seen) {
      route.capture = false; // its filter matches nothing any more; the entry goes when torch says so
      ++closed;
    }
  }
  captures_ -= closed;
  return closed;
}

} // namespace glake
