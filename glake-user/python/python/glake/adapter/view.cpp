// What torch.cuda.memory shows: statistics, snapshot, history, observers.
#include <algorithm>

#include "allocator.h"

namespace glake {

DeviceStats Allocator::getDeviceStats(DeviceIndex index) {
  Device* device = this->device(index);
  if (device == nullptr || forked) {
    return inner_->getDeviceStats(index); // its own words for a wrong device
  }
  bool waits;
  {
    std::lock_guard<std::mutex> lock(device->mutex);
    waits = device->books.has_waiting();
  }
  if (waits) {
    settle(*device);
  }
  DeviceStats inner = inner_->getDeviceStats(index);
  uint64_t held = device->heap == Device::Heap::OPEN ? core->reserved(index) : 0;
  std::lock_guard<std::mutex> lock(device->mutex);
  device->books.absorb(inner);
  device->books.core_holds(held);
  return device->books.read(inner);
}

void Allocator::resetAccumulatedStats(DeviceIndex index) {
  inner_->resetAccumulatedStats(index);
  if (Device* device = this->device(index)) {
    std::lock_guard<std::mutex> lock(device->mutex);
    device->books.reset_accumulated();
  }
}

void Allocator::resetPeakStats(DeviceIndex index) {
  inner_->resetPeakStats(index);
  if (Device* device = this->device(index)) {
    getDeviceStats(index); // what moved before belongs to the old peaks
    std::lock_guard<std::mutex> lock(device->mutex);
    device->books.reset_peaks();
  }
}

#if GLAKE_TORCH >= 211
torch_alloc::SnapshotInfo Allocator::snapshot(Pool pool, bool include_traces) {
  torch_alloc::SnapshotInfo info = inner_->snapshot(pool, include_traces);
#else
torch_alloc::SnapshotInfo Allocator::snapshot(Pool pool) {
  constexpr bool include_traces = true;
  torch_alloc::SnapshotInfo info = inner_->snapshot(pool);
#endif
  if (pool != Pool{0, 0} || forked) {
    return info; // a pool is torch's whole
  }
  for (size_t i = 0; i < count_; ++i) {
    settle(devices_[i]);
    append_segments(devices_[i], info);
    if (include_traces) {
      append_trace(devices_[i], info);
    }
  }
  return info;
}

// A run of mapped addresses is shown as a segment, each tensor as a block in it. Memory that is held and not mapped (idle physical handles)
// is in no segment; memory that is mapped twice while a remap settles is shown once.
void Allocator::append_segments(Device& device, torch_alloc::SnapshotInfo& info) {
  if (device.heap != Device::Heap::OPEN) {
    return;
  }
  std::vector<glake_range> ranges;
  auto collect = [](void* into, const glake_range* range) {
    static_cast<std::vector<glake_range>*>(into)->push_back(*range);
  };
  if (core->ranges(device.index, collect, &ranges) != GLAKE_OK) {
    say_once("torch-snapshot", "GLake's memory is missing in the snapshot: " + last_error());
    return;
  }
  const glake_range* last = nullptr;
  for (const glake_range& range : ranges) {
    bool follows = last != nullptr && last->address + last->size == range.address && last->stream == range.stream &&
        last->small_pool == range.small_pool;
    last = &range;
    if (!follows) {
      info.segments.emplace_back();
      auto& segment = info.segments.back();
      segment.device = device.index;
      segment.address = range.address;
      segment.stream = stream_of(range.stream);
      segment.is_large = range.small_pool == 0;
      segment.is_expandable = true;
    }
    auto& segment = info.segments.back();
    segment.blocks.emplace_back();
    auto& block = segment.blocks.back();
    block.size = range.size;
    segment.total_size += range.size;
    if (range.state == 0) {
      continue;
    }
    std::optional<Block> known = blocks_.find(range.address);
    block.requested_size = range.requested;
    block.active = true;
    // Freed under capture and not back yet: the core still counts it as handed out.
    block.allocated = range.state == 1 && known.has_value();
    segment.active_size += range.size;
    if (block.allocated) {
      segment.allocated_size += range.size;
      segment.requested_size += range.requested;
      block.context_when_allocated = known->context;
    }
  }
}

void Allocator::append_trace(Device& device, torch_alloc::SnapshotInfo& info) {
  size_t index = static_cast<size_t>(device.index);
  if (info.device_traces.size() <= index) {
    return;
  }
  std::vector<TraceEntry> ours;
  {
    std::lock_guard<std::mutex> lock(device.mutex);
    ours = device.history.entries();
  }
  std::vector<TraceEntry>& all = info.device_traces[index];
  auto middle = static_cast<std::ptrdiff_t>(all.size());
  all.insert(all.end(), std::make_move_iterator(ours.begin()), std::make_move_iterator(ours.end()));
  std::inplace_merge(all.begin(), all.begin() + middle, all.end(), [](const TraceEntry& a, const TraceEntry& b) {
    return a.time_.t_ < b.time_.t_;
  });
}

#if GLAKE_TORCH >= 211
void Allocator::recordHistory(
    bool on, torch_alloc::CreateContextFn gather, size_t entries, torch_alloc::RecordContext when, bool clear,
    const std::vector<std::string>& skip_actions) {
  inner_->recordHistory(on, gather, entries, when, clear, skip_actions);
  uint64_t skipped = 0;
  for (const std::string& action : skip_actions) {
    skipped |= 1ull << static_cast<unsigned>(c10::CachingDeviceAllocator::parseTraceEntryAction(action));
  }
#else
void Allocator::recordHistory(
    bool on, torch_alloc::CreateContextFn gather, size_t entries, torch_alloc::RecordContext when, bool clear) {
  inner_->recordHistory(on, gather, entries, when, clear);
  constexpr uint64_t skipped = 0;
#endif
  for (size_t i = 0; i < count_; ++i) {
    std::lock_guard<std::mutex> lock(devices_[i].mutex);
    devices_[i].history.configure(on, gather, entries, when, clear, skipped);
  }
}

bool Allocator::isHistoryEnabled() {
  return inner_->isHistoryEnabled();
}

void Allocator::recordAnnotation(const std::vector<std::pair<std::string, std::string>>& pairs) {
  inner_->recordAnnotation(pairs);
}

void Allocator::pushCompileContext(std::string& text) {
  push_compile_context(text);
  inner_->pushCompileContext(text);
}

void Allocator::popCompileContext() {
  pop_compile_context();
  inner_->popCompileContext();
}

#if GLAKE_TORCH >= 210
void Allocator::setUserMetadata(const std::string& text) {
  set_user_metadata(text);
  inner_->setUserMetadata(text);
}

std::string Allocator::getUserMetadata() {
  return inner_->getUserMetadata();
}
#endif

// Only here, not at torch's allocator: an out-of-memory of its own may yet be mended by GLake giving memory back.
void Allocator::attachOutOfMemoryObserver(torch_alloc::OutOfMemoryObserver observer) {
  std::lock_guard<std::mutex> lock(observers_mutex_);
  observers_.push_back(std::move(observer));
}

void Allocator::attachAllocatorTraceTracker(torch_alloc::AllocatorTraceTracker tracker) {
  inner_->attachAllocatorTraceTracker(tracker);
  {
    std::lock_guard<std::mutex> lock(observers_mutex_);
    trackers_.push_back(tracker);
  }
  for (size_t i = 0; i < count_; ++i) {
    std::lock_guard<std::mutex> lock(devices_[i].mutex);
    devices_[i].history.track(tracker);
  }
}

} // namespace glake
