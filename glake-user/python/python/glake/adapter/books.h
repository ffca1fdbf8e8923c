// torch's statistics of one device: GLake's blocks and the memory that torch's own allocator still holds, in one account.
//
// Currents and peaks must be exact for the sum, which two separate accounts cannot give: the peak of a sum is not the sum of peaks.
// So every change of either side is booked here when it happens. All calls are made under the device's lock.
#pragma once

#include <deque>

#include "blocks.h"

namespace glake {

class Books {
 public:
  // Starts from what torch's allocator holds at the installation.
  void open(const DeviceStats& inner);

  void allocated(const Block& block);
  void freed(uint64_t address, const Block& block);

  // torch's allocator did something: books the difference to what it said before. True if the bytes it holds changed.
  bool absorb(const DeviceStats& inner);
  // What the core holds now, and how much of what was freed still waits for other streams.
  void core_holds(uint64_t reserved);
  // A block that was freed while another stream used it: it counts as active until the core has it back.
  struct Waiting {
    uint64_t address, size, requested, stream;
    bool small;
  };
  // The core says that `waiting` bytes are still on their way: those that came back since, oldest first.
  std::vector<Waiting> settle(uint64_t waiting);
  bool has_waiting() const {
    return !waiting_.empty();
  }
  // Whether an allocation of `size` would lift the peak of active bytes: then what waits is worth asking after.
  bool lifts_peak(uint64_t size) const;

  // `inner` gives what GLake has no part in: segments, inactive splits, retries.
  DeviceStats read(const DeviceStats& inner) const;
  void reset_peaks();
  void reset_accumulated();

  void count_retry() {
    ++retries_;
  }
  void count_oom() {
    ++ooms_;
  }
  int64_t allocated_bytes() const {
    return sum_.allocated_bytes[0].current;
  }
  int64_t reserved_bytes() const {
    return sum_.reserved_bytes[0].current;
  }
  uint64_t inner_reserved() const {
    return static_cast<uint64_t>(inner_.reserved_bytes[0].current);
  }

 private:
  template <typename With>
  void each(With with);

  DeviceStats sum_;
  DeviceStats inner_; // as absorbed last
  uint64_t core_reserved_ = 0;
  std::deque<Waiting> waiting_; // in the order of their frees
  uint64_t waiting_bytes_ = 0;
  int64_t retries_ = 0, ooms_ = 0;
};

} // namespace glake
