#include "history.h"

namespace glake {

namespace {

thread_local std::vector<std::string> compile_contexts;
thread_local std::string user_metadata;

} // namespace

void push_compile_context(std::string text) {
  compile_contexts.push_back(std::move(text));
}

void pop_compile_context() {
  if (!compile_contexts.empty()) {
    compile_contexts.pop_back();
  }
}

void set_user_metadata(std::string text) {
  user_metadata = std::move(text);
}

Context History::gather(Level level) const {
  Gather gather = gather_.load(std::memory_order_relaxed);
  if (gather == nullptr || level_.load(std::memory_order_relaxed) < level) {
    return nullptr;
  }
  return gather();
}

void History::configure(bool on, Gather gather, size_t entries, Level level, bool clear, uint64_t skipped_actions) {
  on_ = on;
  gather_ = on ? gather : nullptr;
  level_ = on ? level : Level::NEVER;
  skipped_ = skipped_actions;
  size_t room = std::max<size_t>(entries, 1);
  if (!on || clear || room != room_) {
    ring_.clear();
    ring_.shrink_to_fit();
    next_ = 0;
  }
  room_ = room;
}

void History::track(Tracker tracker) {
  trackers_.push_back(std::move(tracker));
}

void History::record(
    TraceEntry::Action action,
    DeviceIndex device,
    uint64_t address,
    uint64_t size,
    uint64_t stream,
    Context context) {
  if (!is_watched()) {
    return;
  }
  if (level_.load(std::memory_order_relaxed) < Level::ALLOC) {
    context = nullptr;
  }
  TraceEntry entry(
      action,
      device,
      address,
      size,
      stream_of(stream),
      Pool{0, 0},
      c10::getApproximateTime(),
      std::move(context),
      compile_contexts.empty() ? std::string() : compile_contexts.back()
#if GLAKE_TORCH >= 210
      ,
      user_metadata
#endif
  );
  for (const Tracker& tracker : trackers_) {
    tracker(entry);
  }
  if (!on_ || (skipped_ >> static_cast<unsigned>(action) & 1) != 0) {
    return;
  }
  if (ring_.size() < room_) {
    ring_.push_back(std::move(entry));
  } else {
    ring_[next_] = std::move(entry);
    next_ = (next_ + 1) % room_;
  }
}

std::vector<TraceEntry> History::entries() const {
  std::vector<TraceEntry> out;
  out.reserve(ring_.size());
  auto to_ns = clock_.makeConverter();
  for (size_t i = 0; i < ring_.size(); ++i) {
    out.push_back(ring_[(next_ + i) % ring_.size()]);
    out.back().time_.t_ = to_ns(out.back().time_.approx_t_) / 1000;
  }
  return out;
}

} // namespace glake
