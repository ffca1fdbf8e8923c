// The adapter with torch's own allocator (the real libc10_cuda.so) below it, without a GPU: memory is the host's, see cudart.c, and GLake's
// core is plain_core.cpp. Each case runs in a process of its own: `adapter_test NAME`; without a name the names are listed.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "../../../glake-user/python/python/glake/adapter/install.h"
#include "plain_core.h"

extern "C" {
extern size_t stub_total, stub_used;
extern int stub_events_ready, stub_mallocs;
extern cudaStream_t stub_captured;
}

// libtorch_cuda answers this; it is exported and in no header.
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*answer)(c10::DeviceIndex));
} // namespace c10::cuda::_internal

namespace {

namespace alloc = c10::cuda::CUDACachingAllocator;
using Stats = c10::CachingDeviceAllocator::DeviceStats;
using Pool = c10::cuda::MempoolId_t;
constexpr size_t MIB = 1u << 20;

#define CHECK(what)                                                          \
  do {                                                                       \
    if (!(what)) {                                                           \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
      std::exit(1);                                                          \
    }                                                                        \
  } while (0)
#define CHECK_EQ(a, b)                                                                                        \
  do {                                                                                                        \
    auto left = static_cast<long long>(a), right = static_cast<long long>(b);                                 \
    if (left != right) {                                                                                      \
      std::fprintf(stderr, "%s:%d: %s is %lld, %s is %lld\n", __FILE__, __LINE__, #a, left, #b, right);       \
      std::exit(1);                                                                                           \
    }                                                                                                         \
  } while (0)

alloc::CUDAAllocator* torchs = nullptr;

void install(const glake_api* core = plain_core()) {
  torchs = alloc::get();
  char why[256] = "";
  CHECK_EQ(glake_torch_install(core, why, sizeof why), 0);
  CHECK(alloc::get() != torchs);
  CHECK(c10::GetAllocator(c10::DeviceType::CUDA) == alloc::get());
}

void start() {
  install();
  alloc::init(1);
}

Stats stats() {
  return alloc::getDeviceStats(0);
}

cudaStream_t other_stream() {
  return c10::cuda::getStreamFromPool(false, 0).stream();
}

struct Stack : c10::GatheredContext {
  int number;
};
int gathered = 0;
std::shared_ptr<c10::GatheredContext> gather() {
  auto stack = std::make_shared<Stack>();
  stack->number = ++gathered;
  return stack;
}

void history(bool on, size_t entries = 1000) {
  using alloc::RecordContext;
#if GLAKE_TORCH >= 211
  alloc::recordHistory(on, on ? gather : nullptr, entries, on ? RecordContext::ALL : RecordContext::NEVER, false, {});
#else
  alloc::recordHistory(on, on ? gather : nullptr, entries, on ? RecordContext::ALL : RecordContext::NEVER, false);
#endif
}

void memory_is_glakes_and_comes_back() {
  start();
  {
    c10::DataPtr a = alloc::get()->allocate(3 * MIB + 1);
    CHECK(plain_core()->owns(reinterpret_cast<uint64_t>(a.get())));
    std::memset(a.get(), 7, 3 * MIB + 1);
    CHECK(a.get_deleter() == alloc::get()->raw_deleter());
    CHECK(a.device() == c10::Device(c10::DeviceType::CUDA, 0));
    CHECK_EQ(stats().allocated_bytes[0].current, 3 * MIB + 512);
    CHECK_EQ(stats().requested_bytes[0].current, 3 * MIB + 1);
  }
  CHECK_EQ(stats().allocated_bytes[0].current, 0);
  CHECK_EQ(stats().allocation[0].allocated, 1);
  CHECK_EQ(stats().allocation[0].freed, 1);
  CHECK_EQ(stub_mallocs, 0);
  CHECK(alloc::get()->allocate(0).get() == nullptr);
}

void a_raw_pointer_is_given_back_by_the_raw_deleter() {
  start();
  void* p = alloc::raw_alloc(100);
  alloc::get()->raw_deleter()(p);
  void* q = alloc::raw_alloc_with_stream(100, other_stream());
  alloc::raw_delete(q);
  CHECK_EQ(stats().allocated_bytes[0].current, 0);
  bool thrown = false;
  try {
    alloc::raw_delete(q);
  } catch (const c10::Error& e) {
    thrown = std::string(e.what()).find("invalid device pointer") != std::string::npos;
  }
  CHECK(thrown);
}

void memory_from_before_stays_torchs_and_counts() {
  torchs = alloc::get();
  alloc::init(1);
  void* before = alloc::raw_alloc(MIB);
  void* stays = alloc::raw_alloc(5 * MIB);
  install();
  CHECK_EQ(stats().allocated_bytes[0].current, 6 * MIB);
  void* after = alloc::raw_alloc(2 * MIB);
  CHECK_EQ(stats().allocated_bytes[0].current, 8 * MIB);
  CHECK_EQ(stats().allocated_bytes[0].peak, 8 * MIB);
  torchs->raw_deleter()(before); // the deleter such a tensor carries
  CHECK_EQ(stats().allocated_bytes[0].current, 7 * MIB);
  alloc::raw_delete(stays);
  alloc::raw_delete(after);
  CHECK_EQ(stats().allocated_bytes[0].current, 0);
  CHECK_EQ(stats().allocated_bytes[0].peak, 8 * MIB);
}

void peaks_are_those_of_the_sum() {
  start();
  Pool pool{0, 77};
  alloc::createOrIncrefPool(0, pool);
  alloc::beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
  void* pooled = alloc::raw_alloc(40 * MIB);
  alloc::endAllocateToPool(0, pool);
  CHECK(!plain_core()->owns(reinterpret_cast<uint64_t>(pooled)));
  void* a = alloc::raw_alloc(30 * MIB);
  CHECK_EQ(stats().allocated_bytes[0].current, 70 * MIB);
  alloc::raw_delete(pooled);
  void* b = alloc::raw_alloc(20 * MIB);
  CHECK_EQ(stats().allocated_bytes[0].current, 50 * MIB);
  CHECK_EQ(stats().allocated_bytes[0].peak, 70 * MIB); // 40 and 50 alone would make 90
  CHECK_EQ(stats().reserved_bytes[0].current, 40 * MIB + 64 * MIB);
  alloc::resetPeakStats(0);
  CHECK_EQ(stats().allocated_bytes[0].peak, 50 * MIB);
  alloc::resetAccumulatedStats(0);
  CHECK_EQ(stats().allocated_bytes[0].allocated, 0);
  alloc::raw_delete(a);
  alloc::raw_delete(b);
  CHECK_EQ(stats().allocated_bytes[0].freed, 50 * MIB);
}

void small_and_large_are_told_apart() {
  start();
  void* small = alloc::raw_alloc(1000);
  void* large = alloc::raw_alloc(2 * MIB);
  CHECK_EQ(stats().allocated_bytes[1].current, 1024);
  CHECK_EQ(stats().allocated_bytes[2].current, 2 * MIB);
  alloc::raw_delete(small);
  alloc::raw_delete(large);
}

void a_block_freed_while_another_stream_uses_it_stays_active() {
  start();
  history(true);
  c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool(false, 0);
  {
    c10::DataPtr a = alloc::get()->allocate(8 * MIB);
    alloc::recordStream(a, side);
    stub_events_ready = 0;
  }
  auto actions = [] {
    std::vector<alloc::TraceEntry::Action> of_a;
    auto info = alloc::snapshot();
    for (const auto& entry : info.device_traces.at(0)) {
      if (entry.size_ == 8 * MIB && entry.action_ != alloc::TraceEntry::SNAPSHOT) {
        of_a.push_back(entry.action_);
      }
    }
    return of_a;
  };
  using Entry = alloc::TraceEntry;
  CHECK(actions() == (std::vector<Entry::Action>{Entry::ALLOC, Entry::FREE_REQUESTED}));
  CHECK_EQ(stats().allocated_bytes[0].current, 0);
  CHECK_EQ(stats().active_bytes[0].current, 8 * MIB);
  CHECK_EQ(stats().active[0].current, 1);
  auto pending = alloc::snapshot().segments.at(0);
  CHECK_EQ(pending.active_size, 8 * MIB);
  CHECK_EQ(pending.allocated_size, 0);
  stub_events_ready = 1;
  CHECK_EQ(stats().active_bytes[0].current, 0);
  CHECK_EQ(stats().active[0].current, 0);
  CHECK_EQ(stats().active_bytes[0].peak, 8 * MIB);
  CHECK(actions() == (std::vector<Entry::Action>{Entry::ALLOC, Entry::FREE_REQUESTED, Entry::FREE_COMPLETED}));
}

void record_stream_on_the_blocks_own_stream_is_nothing() {
  start();
  c10::DataPtr a = alloc::get()->allocate(MIB);
  alloc::recordStream(a, c10::cuda::getCurrentCUDAStream(0));
  stub_events_ready = 0;
  a.clear();
  CHECK_EQ(stats().active_bytes[0].current, 0);
}

void record_stream_reaches_torchs_blocks() {
  start();
  Pool pool{0, 5};
  alloc::createOrIncrefPool(0, pool);
  alloc::beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
  c10::DataPtr a = alloc::get()->allocate(4 * MIB);
  alloc::endAllocateToPool(0, pool);
  alloc::recordStream(a, c10::cuda::getStreamFromPool(false, 0));
  stub_events_ready = 0;
  a.clear();
  CHECK_EQ(stats().allocated_bytes[0].current, 0);
  CHECK_EQ(stats().active_bytes[0].current, 4 * MIB);
}

// What torch does around a graph capture.
struct Capture {
  cudaStream_t stream = other_stream();
  Pool pool{3, 0};
  void begin() {
    c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromExternal(stream, 0));
    alloc::createOrIncrefPool(0, pool);
    cudaStream_t mine = stream;
    alloc::beginAllocateToPool(0, pool, [mine](cudaStream_t s) { return stub_captured != nullptr && s == mine && s == stub_captured; });
    stub_captured = stream;
  }
  void end() {
    stub_captured = nullptr;
    alloc::endAllocateToPool(0, pool);
  }
};

void a_graphs_memory_is_torchs_and_frees_wait_for_its_end() {
  start();
  void* before = alloc::raw_alloc(128 * MIB);
  Capture capture;
  capture.begin();
  CHECK_EQ(plain_core_captures(), 1);
  void* inside = alloc::raw_alloc(64 * MIB);
  CHECK(!plain_core()->owns(reinterpret_cast<uint64_t>(inside)));
  void* beside = alloc::raw_alloc_with_stream(64 * MIB, nullptr); // another stream, not captured
  CHECK(plain_core()->owns(reinterpret_cast<uint64_t>(beside)));
  alloc::raw_delete(before);
  CHECK_EQ(stats().allocated_bytes[0].current, 128 * MIB);
  uint64_t start = 0, size = 0;
  int32_t device = 0;
  CHECK_EQ(plain_core()->find(reinterpret_cast<uint64_t>(before), &start, &size, &device), GLAKE_OK); // still the core's
  auto segments = alloc::snapshot().segments;
  capture.end();
  CHECK_EQ(plain_core_captures(), 0);
  CHECK_EQ(plain_core()->find(reinterpret_cast<uint64_t>(before), &start, &size, &device), GLAKE_MISUSE);
  alloc::raw_delete(inside);
  alloc::raw_delete(beside);
  alloc::releasePool(0, capture.pool);
  CHECK_EQ(stats().allocated_bytes[0].current, 0);
}

void a_failed_capture_does_not_hold_frees_for_ever() {
  start();
  Capture capture;
  void* a = alloc::raw_alloc(MIB);
  void* b = alloc::raw_alloc(MIB);
  capture.begin();
  alloc::raw_delete(a); // seen under capture
  stub_captured = nullptr; // it failed: torch does not call endAllocateToPool
  alloc::raw_delete(b);
  CHECK_EQ(plain_core_captures(), 0);
  glake_stats core{};
  plain_core()->stats(0, &core);
  CHECK_EQ(core.allocated.current, 0);
}

void a_pool_that_is_no_capture_does_not_queue_frees() {
  start();
  void* a = alloc::raw_alloc(MIB);
  Pool pool{0, 9};
  alloc::createOrIncrefPool(0, pool);
  auto me = std::this_thread::get_id();
  alloc::beginAllocateToPool(0, pool, [me](cudaStream_t) { return std::this_thread::get_id() == me; });
  CHECK_EQ(plain_core_captures(), 0);
  alloc::raw_delete(a);
  glake_stats core{};
  plain_core()->stats(0, &core);
  CHECK_EQ(core.allocated.current, 0);
  void* elsewhere = nullptr;
  std::thread([&] { elsewhere = alloc::raw_alloc(MIB); }).join(); // another thread is not in the pool
  CHECK(plain_core()->owns(reinterpret_cast<uint64_t>(elsewhere)));
  alloc::endAllocateToPool(0, pool);
  alloc::raw_delete(elsewhere);
}

void a_checkpoint_restores_tensors_with_the_deleter_torch_expects() {
  start();
  Pool pool{0, 6};
  alloc::createOrIncrefPool(0, pool);
  alloc::beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
  void* a = alloc::raw_alloc(30 * MIB);
  alloc::endAllocateToPool(0, pool);
  auto state = alloc::getCheckpointState(0, pool);
  CHECK(alloc::checkPoolLiveAllocations(0, pool, {a}));
  auto delta = alloc::setCheckpointPoolState(0, state);
  CHECK_EQ(delta.dataptrs_allocd.size(), 1);
  CHECK(delta.dataptrs_allocd[0].get() == a);
  CHECK(delta.dataptrs_allocd[0].get_deleter() == alloc::get()->raw_deleter());
  CHECK_EQ(stats().allocated_bytes[0].current, 30 * MIB);
  delta.dataptrs_allocd.clear();
  CHECK_EQ(stats().allocated_bytes[0].current, 0);
}

std::string out_of_memory(size_t bytes) {
  try {
    void* p = alloc::raw_alloc(bytes);
    alloc::raw_delete(p);
  } catch (const c10::OutOfMemoryError& e) {
    return e.what_without_backtrace();
  }
  return "";
}

void out_of_memory_speaks_torchs_words_with_both_sides_numbers() {
  start();
  plain_core_capacity(256 * MIB);
  int seen = 0;
  size_t asked = 0;
  alloc::attachOutOfMemoryObserver([&](int64_t, size_t size, size_t, size_t) {
    ++seen;
    asked = size;
  });
  void* a = alloc::raw_alloc(100 * MIB);
  std::string text = out_of_memory(400 * MIB);
  CHECK(text.find("CUDA out of memory. Tried to allocate 400.00 MiB. GPU 0 has a total capacity of 8.00 GiB of which ") == 0);
  CHECK(text.find("Of the allocated memory 100.00 MiB is allocated by PyTorch, and 28.00 MiB is reserved by PyTorch but unallocated.") != std::string::npos);
  CHECK(text.find("GLake: the stand-in is full") != std::string::npos);
  CHECK_EQ(seen, 1);
  CHECK_EQ(asked, 400 * MIB);
  CHECK_EQ(stats().num_ooms, 1);
  CHECK_EQ(stats().num_alloc_retries, 1);
  alloc::raw_delete(a);
  try {
    alloc::get()->allocate(1ull << 61);
    CHECK(false);
  } catch (const c10::OutOfMemoryError& e) {
    CHECK(std::string(e.what()).find("more than 1EB") != std::string::npos);
  }
}

struct Freer : c10::FreeMemoryCallback {
  static std::function<bool()> action;
  bool Execute() override {
    return action ? action() : false;
  }
};
std::function<bool()> Freer::action;

} // namespace

namespace c10 {
REGISTER_FREE_MEMORY_CALLBACK("test_freer", Freer)
} // namespace c10

namespace {

void callbacks_are_asked_before_an_allocation_fails() {
  start();
  plain_core_capacity(256 * MIB);
  void* held = alloc::raw_alloc(200 * MIB);
  Freer::action = [&] {
    if (held != nullptr) {
      alloc::raw_delete(std::exchange(held, nullptr));
    }
    return true;
  };
  void* b = alloc::raw_alloc(200 * MIB);
  CHECK(held == nullptr);
  CHECK_EQ(stats().num_ooms, 0);
  alloc::raw_delete(b);
}

void one_fraction_holds_for_both_allocators() {
  start();
  alloc::setMemoryFraction(0.125, 0); // 1 GiB of the 8
  CHECK(alloc::getMemoryFraction(0) == 0.125);
  void* a = alloc::raw_alloc(600 * MIB);
  std::string text = out_of_memory(600 * MIB);
  CHECK(text.find("1024.00 MiB allowed; ") != std::string::npos);
  Pool pool{0, 8};
  alloc::createOrIncrefPool(0, pool);
  alloc::beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
  CHECK(!out_of_memory(600 * MIB).empty()); // in torch's pool: 400 MiB are left of the fraction
  void* pooled = alloc::raw_alloc(300 * MIB);
  alloc::endAllocateToPool(0, pool);
  CHECK(!out_of_memory(200 * MIB).empty());
  alloc::raw_delete(a);
  CHECK(out_of_memory(600 * MIB).empty());
  alloc::raw_delete(pooled);
}

void a_pool_that_is_short_gets_what_glake_holds_unused() {
  start();
  alloc::setMemoryFraction(0.125, 0);
  alloc::raw_delete(alloc::raw_alloc(900 * MIB)); // held by the core, idle
  Pool pool{0, 8};
  alloc::createOrIncrefPool(0, pool);
  alloc::beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
  void* pooled = alloc::raw_alloc(900 * MIB);
  alloc::endAllocateToPool(0, pool);
  CHECK_EQ(stats().num_ooms, 0);
  alloc::raw_delete(pooled);
}

void a_pool_meant_as_last_resort_is_one() {
  start();
  plain_core_capacity(64 * MIB);
  Pool pool{0, 12};
  alloc::createOrIncrefPool(0, pool);
#if GLAKE_TORCH >= 211
  alloc::setUseOnOOM(0, pool, true);
#else
  alloc::setUseOnOOM(0, pool);
#endif
  alloc::beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
  alloc::raw_delete(alloc::raw_alloc(200 * MIB));
  alloc::endAllocateToPool(0, pool);
  int mallocs = stub_mallocs;
  stub_total = stub_used; // the device has nothing beside
  void* saved = alloc::raw_alloc(200 * MIB);
  CHECK_EQ(stub_mallocs, mallocs);
  CHECK(!out_of_memory(200 * MIB).empty());
  alloc::raw_delete(saved);
}

void a_snapshot_sums_up_to_the_statistics() {
  start();
  std::vector<void*> blocks;
  for (size_t i = 1; i <= 40; ++i) {
    blocks.push_back(alloc::raw_alloc(i * 700'001));
  }
  for (size_t i = 0; i < blocks.size(); i += 3) {
    alloc::raw_delete(std::exchange(blocks[i], nullptr));
  }
  size_t allocated = 0, requested = 0, total = 0;
  for (const auto& segment : alloc::snapshot().segments) {
    size_t tiled = 0;
    for (const auto& block : segment.blocks) {
      tiled += block.size;
      allocated += block.allocated ? block.size : 0;
      requested += block.requested_size;
    }
    CHECK_EQ(tiled, segment.total_size);
    CHECK(segment.is_expandable);
    total += segment.total_size;
  }
  CHECK_EQ(allocated, stats().allocated_bytes[0].current);
  CHECK_EQ(requested, stats().requested_bytes[0].current);
  CHECK_EQ(total, stats().reserved_bytes[0].current);
  for (void* block : blocks) {
    alloc::raw_delete(block);
  }
}

void history_has_both_sides_in_order_with_stacks() {
  start();
  history(true);
  int tracked = 0;
  alloc::attachAllocatorTraceTracker([&](const alloc::TraceEntry&) { ++tracked; });
  void* a = alloc::raw_alloc(2 * MIB + 3);
  Pool pool{0, 4};
  alloc::createOrIncrefPool(0, pool);
  alloc::beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
  void* pooled = alloc::raw_alloc(3 * MIB);
  alloc::endAllocateToPool(0, pool);
  alloc::raw_delete(a);
  alloc::raw_delete(pooled);
  auto info = alloc::snapshot();
  std::vector<alloc::TraceEntry::Action> of_a;
  int64_t last = 0;
  for (const auto& entry : info.device_traces.at(0)) {
    CHECK(entry.time_.t_ >= last);
    last = entry.time_.t_;
    if (entry.addr_ == reinterpret_cast<size_t>(a)) {
      of_a.push_back(entry.action_);
      CHECK_EQ(entry.size_, 2 * MIB + 3);
      CHECK(entry.context_ != nullptr);
    }
  }
  using Entry = alloc::TraceEntry;
  CHECK(of_a == (std::vector<Entry::Action>{Entry::ALLOC, Entry::FREE_REQUESTED, Entry::FREE_COMPLETED}));
  CHECK(tracked >= 7); // three of ours, and torch's with its segment
  CHECK(alloc::isHistoryEnabled());
  void* c = alloc::raw_alloc(MIB);
  for (const auto& segment : alloc::snapshot().segments) {
    for (const auto& block : segment.blocks) {
      CHECK(!block.allocated || block.context_when_allocated != nullptr);
    }
  }
  history(false);
  CHECK(alloc::snapshot().device_traces.at(0).empty());
  alloc::raw_delete(c);
}

void the_history_keeps_the_newest_entries() {
  start();
  history(true, 8);
  void* last = nullptr;
  for (int i = 0; i < 50; ++i) {
    last = alloc::raw_alloc(1000 + i);
    alloc::raw_delete(last);
  }
  auto trace = alloc::snapshot().device_traces.at(0);
  CHECK(trace.size() >= 8 && trace.size() <= 9); // torch's own entry of the snapshot may be one more
  size_t newest = 0;
  for (const auto& entry : trace) {
    newest = std::max(newest, entry.size_);
  }
  CHECK_EQ(newest, 1049);
}

void empty_cache_gives_memory_of_both_back() {
  start();
  alloc::raw_delete(alloc::raw_alloc(300 * MIB));
  CHECK(stats().reserved_bytes[0].current >= static_cast<int64_t>(300 * MIB));
  alloc::emptyCache();
  CHECK_EQ(stats().reserved_bytes[0].current, 0);
}

void after_a_retreat_new_memory_is_torchs_and_old_comes_back() {
  start();
  void* ours = alloc::raw_alloc(MIB);
  glake_torch_retreat("a test");
  void* theirs = alloc::raw_alloc(MIB);
  CHECK(!plain_core()->owns(reinterpret_cast<uint64_t>(theirs)));
  CHECK_EQ(stats().allocated_bytes[0].current, 2 * MIB);
  alloc::raw_delete(ours);
  alloc::raw_delete(theirs);
  CHECK_EQ(stats().allocated_bytes[0].current, 0);
}

void a_pause_sends_new_memory_to_torch_until_it_ends() {
  start();
  auto is_glakes = [] {
    void* p = alloc::raw_alloc(MIB);
    int32_t owned = plain_core()->owns(reinterpret_cast<uint64_t>(p));
    alloc::raw_delete(p);
    return owned != 0;
  };
  glake_torch_pause(1);
  glake_torch_pause(1);
  glake_torch_pause(0);
  CHECK(!is_glakes());
  glake_torch_pause(0);
  CHECK(is_glakes());
}

void a_forked_child_touches_nothing() {
  start();
  c10::DataPtr a = alloc::get()->allocate(MIB);
  pid_t child = fork();
  if (child == 0) {
    a.clear();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK_EQ(stats().allocated_bytes[0].current, MIB);
}

void a_child_forked_before_any_memory_has_glake_for_itself() {
  install();
  pid_t child = fork();
  if (child == 0) {
    alloc::init(1);
    void* p = alloc::raw_alloc(MIB);
    _exit(plain_core()->owns(reinterpret_cast<uint64_t>(p)) != 0 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

void the_self_test_passes() {
  CHECK_EQ(glake_torch_selftest(), 0);
}

void uncached_allocation_keeps_glake_out() {
  setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", 1);
  char why[256] = "";
  torchs = alloc::get();
  CHECK_EQ(glake_torch_install(plain_core(), why, sizeof why), 1);
  CHECK(std::strstr(why, "PYTORCH_NO_CUDA_MEMORY_CACHING") != nullptr);
  CHECK(alloc::get() == torchs);
}

void many_threads_leave_the_books_even() {
  start();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      std::vector<c10::DataPtr> held(16);
      for (size_t i = 0; i < 5000; ++i) {
        held[(i * 7 + t) % held.size()] = alloc::get()->allocate(512 + (i * 977) % 100000);
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  CHECK_EQ(stats().allocated_bytes[0].current, 0);
  CHECK_EQ(stats().allocation[0].current, 0);
  CHECK_EQ(stats().allocation[0].allocated, 20000);
}

// The same rules over GLake's own core, which a Python process hands over; see `tests/tests/torch_adapter.rs`.
void over(const glake_api* core) {
  install(core);
  alloc::init(1);
  size_t allocated = 0, requested = 0, peak = 0;
  std::vector<c10::DataPtr> held(200);
  std::vector<size_t> sizes(held.size());
  uint64_t random = 88172645463325252ull;
  for (int i = 0; i < 20000; ++i) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    size_t at = random % held.size();
    if (held[at].get() != nullptr) {
      allocated -= (sizes[at] + 511) / 512 * 512;
      requested -= sizes[at];
    }
    held[at].clear();
    sizes[at] = random % 3 == 0 ? random % (4 * MIB) + 1 : random % 20000 + 1;
    held[at] = alloc::get()->allocate(sizes[at]);
    CHECK(core->owns(reinterpret_cast<uint64_t>(held[at].get())) != 0);
    *static_cast<char*>(held[at].get()) = 1; // it is there
    static_cast<char*>(held[at].get())[sizes[at] - 1] = 1;
    allocated += (sizes[at] + 511) / 512 * 512;
    requested += sizes[at];
    peak = std::max(peak, allocated);
  }
  CHECK_EQ(stats().allocated_bytes[0].current, allocated);
  CHECK_EQ(stats().requested_bytes[0].current, requested);
  CHECK_EQ(stats().allocated_bytes[0].peak, peak);
  CHECK(stats().reserved_bytes[0].current >= static_cast<int64_t>(allocated));
  size_t shown = 0, total = 0;
  for (const auto& segment : alloc::snapshot().segments) {
    total += segment.total_size;
    for (const auto& block : segment.blocks) {
      shown += block.allocated ? block.size : 0;
    }
  }
  CHECK_EQ(shown, allocated);
  CHECK(total <= static_cast<size_t>(stats().reserved_bytes[0].current));
  uint64_t start = 0, size = 0;
  int32_t device = -1;
  CHECK_EQ(core->find(reinterpret_cast<uint64_t>(held[0].get()) + 1, &start, &size, &device), GLAKE_OK);
  CHECK(start == reinterpret_cast<uint64_t>(held[0].get()) && size == sizes[0] && device == 0);
  held.clear();
  CHECK_EQ(stats().allocated_bytes[0].current, 0);
  alloc::emptyCache();
  alloc::setMemoryFraction(0.0625, 0); // 512 MiB of the stand-in's 8 GiB
  void* most = alloc::raw_alloc(300 * MIB);
  std::string text = out_of_memory(300 * MIB);
  CHECK(text.find("CUDA out of memory. Tried to allocate 300.00 MiB. GPU 0 has a total capacity of 8.00 GiB") == 0);
  CHECK(text.find("512.00 MiB allowed; Of the allocated memory 300.00 MiB is allocated by PyTorch") != std::string::npos);
  alloc::raw_delete(most);
}

// Not a test: what the adapter adds to an allocation and its free, beside torch's own for the same.
void speed() {
  auto measure = [](const char* name) {
    for (int warm = 0; warm < 1000; ++warm) {
      alloc::raw_delete(alloc::raw_alloc(2 * MIB));
    }
    auto begin = std::chrono::steady_clock::now();
    constexpr int N = 300000;
    for (int i = 0; i < N; ++i) {
      c10::DataPtr p = alloc::get()->allocate(2 * MIB);
    }
    double ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() / N;
    std::printf("%s: %.0f ns for an allocation and its free\n", name, ns);
  };
  alloc::init(1);
  measure("torch");
  install();
  measure("adapter over the stand-in core");
  auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 300000; ++i) {
    uint64_t address, size;
    plain_core()->allocate(0, 2 * MIB, 0, &address, &size);
    plain_core()->free(0, address, 0);
  }
  double ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() / 300000;
  std::printf("the stand-in core alone: %.0f ns\n", ns);
}

const std::map<std::string, void (*)()> CASES = {
#define CASE(name) {#name, name}
    CASE(memory_is_glakes_and_comes_back),
    CASE(a_raw_pointer_is_given_back_by_the_raw_deleter),
    CASE(memory_from_before_stays_torchs_and_counts),
    CASE(peaks_are_those_of_the_sum),
    CASE(small_and_large_are_told_apart),
    CASE(a_block_freed_while_another_stream_uses_it_stays_active),
    CASE(record_stream_on_the_blocks_own_stream_is_nothing),
    CASE(record_stream_reaches_torchs_blocks),
    CASE(a_graphs_memory_is_torchs_and_frees_wait_for_its_end),
    CASE(a_failed_capture_does_not_hold_frees_for_ever),
    CASE(a_pool_that_is_no_capture_does_not_queue_frees),
    CASE(a_checkpoint_restores_tensors_with_the_deleter_torch_expects),
    CASE(out_of_memory_speaks_torchs_words_with_both_sides_numbers),
    CASE(callbacks_are_asked_before_an_allocation_fails),
    CASE(one_fraction_holds_for_both_allocators),
    CASE(a_pool_that_is_short_gets_what_glake_holds_unused),
    CASE(a_pool_meant_as_last_resort_is_one),
    CASE(a_snapshot_sums_up_to_the_statistics),
    CASE(history_has_both_sides_in_order_with_stacks),
    CASE(the_history_keeps_the_newest_entries),
    CASE(empty_cache_gives_memory_of_both_back),
    CASE(after_a_retreat_new_memory_is_torchs_and_old_comes_back),
    CASE(a_pause_sends_new_memory_to_torch_until_it_ends),
    CASE(a_forked_child_touches_nothing),
    CASE(a_child_forked_before_any_memory_has_glake_for_itself),
    CASE(the_self_test_passes),
    CASE(uncached_allocation_keeps_glake_out),
    CASE(many_threads_leave_the_books_even),
#undef CASE
};

} // namespace

// For a process that has another core.
extern "C" int adapter_test_over(const glake_api* core) {
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  over(core);
  return 0;
}

int main(int argc, char** argv) {
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  if (argc < 2) {
    for (const auto& entry : CASES) {
      std::puts(entry.first.c_str());
    }
    return 0;
  }
  if (std::string(argv[1]) == "speed") {
    speed();
    return 0;
  }
  auto found = CASES.find(argv[1]);
  if (found == CASES.end()) {
    std::fprintf(stderr, "no case %s\n", argv[1]);
    return 2;
  }
  found->second();
  return 0;
}
