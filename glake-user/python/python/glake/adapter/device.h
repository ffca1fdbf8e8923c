// What the adapter keeps for one GPU.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "books.h"
#include "core.h"
#include "history.h"
#include "routes.h"

namespace glake {

struct Device {
  enum class Heap : int { UNKNOWN, OPEN, OFF };

  DeviceIndex index = 0;
  std::atomic<Heap> heap{Heap::UNKNOWN};
  Routes routes;

  // Guards what follows. Never held while the core or torch's allocator is called, and no tracker takes the GIL under it.
  std::mutex mutex;
  Books books;
  History history;
  // Frees during a capture: they reach the core when it ends. Address and stream.
  std::vector<std::pair<uint64_t, uint64_t>> queued;
  std::vector<DeviceIndex> peers; // wanted before the heap was there
  double fraction = 1.0;
  bool limited = false; // set_per_process_memory_fraction was called
  uint64_t allowed = 0;
  double inner_share = -1.0; // the fraction torch's allocator was told last

  // torch's allocator freed something of this process on some device: its share of the books is old.
  std::atomic<bool> inner_moved{false};
};

// The CUDA runtime refuses some calls of a thread while any stream is captured in the strictest mode, among them those that make memory.
// The core's are safe then: they touch no stream.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Device& device) : on_(device.routes.is_capturing()) {
    if (on_) {
      mode_ = cudaStreamCaptureModeRelaxed;
      on_ = cudaThreadExchangeStreamCaptureMode(&mode_) == cudaSuccess;
    }
  }
  ~RelaxedCapture() {
    if (on_) {
      (void)cudaThreadExchangeStreamCaptureMode(&mode_);
    }
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  bool on_;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

} // namespace glake
