#include "books.h"

namespace glake {

namespace {

constexpr size_t ALL = 0, SMALL = 1, LARGE = 2; // c10::CachingAllocator::StatType

void up(StatArray& stat, bool small, uint64_t amount) {
  stat[ALL].increase(amount);
  stat[small ? SMALL : LARGE].increase(amount);
}

void down(StatArray& stat, bool small, uint64_t amount) {
  stat[ALL].decrease(amount);
  stat[small ? SMALL : LARGE].decrease(amount);
}

void move_by(Stat& stat, int64_t delta) {
  if (delta > 0) {
    stat.increase(static_cast<size_t>(delta));
  } else if (delta < 0) {
    stat.decrease(static_cast<size_t>(-delta));
  }
}

// The quantities both sides have a part in.
StatArray DeviceStats::*const SHARED[] = {
    &DeviceStats::allocation,
    &DeviceStats::active,
    &DeviceStats::allocated_bytes,
    &DeviceStats::reserved_bytes,
    &DeviceStats::active_bytes,
    &DeviceStats::requested_bytes,
};

} // namespace

template <typename With>
void Books::each(With with) {
  for (auto member : SHARED) {
    for (Stat& stat : sum_.*member) {
      with(stat);
    }
  }
}

void Books::open(const DeviceStats& inner) {
  sum_ = inner;
  inner_ = inner;
}

void Books::allocated(const Block& block) {
  bool small = block.is_small();
  up(sum_.allocation, small, 1);
  up(sum_.active, small, 1);
  up(sum_.allocated_bytes, small, block.size);
  up(sum_.active_bytes, small, block.size);
  up(sum_.requested_bytes, small, block.requested);
}

void Books::freed(uint64_t address, const Block& block) {
  bool small = block.is_small();
  down(sum_.allocation, small, 1);
  down(sum_.allocated_bytes, small, block.size);
  down(sum_.requested_bytes, small, block.requested);
  if (block.shared) {
    waiting_.push_back({address, block.size, block.requested, block.stream, small});
    waiting_bytes_ += block.size;
    return;
  }
  down(sum_.active, small, 1);
  down(sum_.active_bytes, small, block.size);
}

bool Books::absorb(const DeviceStats& inner) {
  int64_t held = inner_.reserved_bytes[ALL].current;
  for (auto member : SHARED) {
    for (size_t type = ALL; type <= LARGE; ++type) {
      move_by((sum_.*member)[type], (inner.*member)[type].current - (inner_.*member)[type].current);
    }
  }
  inner_ = inner;
  return held != inner.reserved_bytes[ALL].current;
}

void Books::core_holds(uint64_t reserved) {
  if (reserved == core_reserved_) {
    return;
  }
  int64_t delta = static_cast<int64_t>(reserved - core_reserved_);
  // The core's physical handles serve both pools: they are booked as the large one's.
  move_by(sum_.reserved_bytes[ALL], delta);
  move_by(sum_.reserved_bytes[LARGE], delta);
  core_reserved_ = reserved;
}

std::vector<Books::Waiting> Books::settle(uint64_t waiting) {
  std::vector<Waiting> back;
  while (!waiting_.empty() && waiting_bytes_ > waiting) {
    Waiting first = waiting_.front();
    waiting_.pop_front();
    waiting_bytes_ -= first.size;
    down(sum_.active, first.small, 1);
    down(sum_.active_bytes, first.small, first.size);
    back.push_back(first);
  }
  return back;
}

bool Books::lifts_peak(uint64_t size) const {
  const Stat& active = sum_.active_bytes[ALL];
  return active.current + static_cast<int64_t>(size) > active.peak;
}

DeviceStats Books::read(const DeviceStats& inner) const {
  DeviceStats stats = inner;
  for (auto member : SHARED) {
    stats.*member = sum_.*member;
  }
  stats.num_alloc_retries += retries_;
  // An OOM of torch's allocator that was mended by giving back memory of the core is none: only those raised count.
  stats.num_ooms = ooms_;
  return stats;
}

void Books::reset_peaks() {
  each([](Stat& stat) { stat.reset_peak(); });
}

void Books::reset_accumulated() {
  each([](Stat& stat) { stat.reset_accumulated(); });
  retries_ = 0;
  ooms_ = 0;
}

} // namespace glake
