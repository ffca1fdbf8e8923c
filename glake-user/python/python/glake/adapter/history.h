// What torch's memory snapshot shows of GLake's blocks over time: a ring of trace entries, and those who listen to them.
#pragma once

#include <mutex>
#include <vector>

#include "torch.h"

namespace glake {

class History {
 public:
  using Level = torch_alloc::RecordContext;
  using Gather = torch_alloc::CreateContextFn;
  using Tracker = torch_alloc::AllocatorTraceTracker;

  // The stack of the caller if torch wants one for events of this level. Never under a lock: it may need the GIL.
  Context gather(Level level) const;

  // The rest is called under the device's lock.
  void configure(bool on, Gather gather, size_t entries, Level level, bool clear, uint64_t skipped_actions);
  void track(Tracker tracker);
  bool is_watched() const {
    return on_ || !trackers_.empty();
  }
  void record(TraceEntry::Action action, DeviceIndex device, uint64_t address, uint64_t size, uint64_t stream, Context context);
  // The ring, oldest first, with wall clock times as torch's snapshot has them.
  std::vector<TraceEntry> entries() const;

 private:
  bool on_ = false;
  std::atomic<Level> level_{Level::NEVER};
  std::atomic<Gather> gather_{nullptr};
  size_t room_ = 1;
  size_t next_ = 0; // where the oldest lies once the ring is full
  uint64_t skipped_ = 0; // a bit per action
  std::vector<TraceEntry> ring_;
  std::vector<Tracker> trackers_;
  // Converts the processor's counter into wall clock time; measures both when made, and again when it converts.
  mutable c10::ApproximateClockToUnixTimeConverter clock_;
};

// What torch.compile and the user attach to entries: kept per thread, as torch's own allocator does.
void push_compile_context(std::string text);
void pop_compile_context();
void set_user_metadata(std::string text);

} // namespace glake
