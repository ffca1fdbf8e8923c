// torch's allocator, with GLake's heap under every plain allocation and torch's own allocator under the rest.
//
// torch asks one object for memory, statistics, snapshots, pools and sharing. This is that object. `inner` is the one torch made: it still
// serves graphs and pools, and everything when GLake is off. Pointers of both kinds carry one deleter, which tells them apart by address.
#pragma once

#include <deque>

#include "blocks.h"
#include "device.h"

namespace glake {

class Allocator final : public CUDAAllocator {
 public:
  explicit Allocator(CUDAAllocator* inner);

  // Everything new goes to torch's allocator from now on; blocks that are out come back to the core.
  void retreat(const std::string& why);
  // The same until it is called with false, as often as with true.
  void pause(bool on);
  static void drop(void* address); // the deleter
  // Whether a child forked now would hold memory of this process. Forked before, it may use CUDA, and GLake, for itself.
  bool has_heaps() const;

  // Memory (memory.cpp).
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, size_t bytes) const override;
  void* raw_alloc(size_t bytes) override;
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override;
  void raw_delete(void* address) override;
  using CUDAAllocator::recordStream;
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override;
  void emptyCache(Pool pool) override;
  void* getBaseAllocation(void* address, size_t* size) override;
  void cacheInfo(DeviceIndex device, size_t* largest) override;

  // Set-up, limits and peers (control.cpp).
  void init(int devices) override;
  bool initialized() override;
  void enable(bool on) override;
  bool isEnabled() const override;
  double getMemoryFraction(DeviceIndex device) override;
  void setMemoryFraction(double fraction, DeviceIndex device) override;
  void enablePeerAccess(DeviceIndex user, DeviceIndex owner) override;
  cudaError_t memcpyAsync(
      void* to, int to_device, const void* from, int from_device, size_t bytes, cudaStream_t stream, bool p2p) override;
  std::string name() override;

  // Pools and graphs (pools.cpp).
  void beginAllocateToPool(DeviceIndex device, Pool pool, std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(DeviceIndex device, Pool pool) override;
  void releasePool(DeviceIndex device, Pool pool) override;
  int getPoolUseCount(DeviceIndex device, Pool pool) override;
  void createOrIncrefPool(DeviceIndex device, Pool pool, PoolAllocator allocator) override;
#if GLAKE_TORCH >= 211
  void setUseOnOOM(DeviceIndex device, Pool pool, bool use) override;
#else
  void setUseOnOOM(DeviceIndex device, Pool pool) override;
#endif
#if GLAKE_TORCH >= 210
  void setNoSplit(DeviceIndex device, Pool pool) override;
  std::vector<torch_alloc::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override;
#endif
  bool checkPoolLiveAllocations(DeviceIndex device, Pool pool, const std::unordered_set<void*>& expected) override;
  std::shared_ptr<torch_alloc::AllocatorState> getCheckpointState(DeviceIndex device, Pool pool) override;
  torch_alloc::CheckpointDelta setCheckpointPoolState(
      DeviceIndex device, std::shared_ptr<torch_alloc::AllocatorState> state) override;

  // What torch.cuda.memory shows (view.cpp).
  DeviceStats getDeviceStats(DeviceIndex device) override;
  void resetAccumulatedStats(DeviceIndex device) override;
  void resetPeakStats(DeviceIndex device) override;
#if GLAKE_TORCH >= 211
  torch_alloc::SnapshotInfo snapshot(Pool pool, bool include_traces) override;
  void recordHistory(
      bool on, torch_alloc::CreateContextFn gather, size_t entries, torch_alloc::RecordContext when, bool clear,
      const std::vector<std::string>& skip_actions) override;
#else
  torch_alloc::SnapshotInfo snapshot(Pool pool) override;
  void recordHistory(
      bool on, torch_alloc::CreateContextFn gather, size_t entries, torch_alloc::RecordContext when, bool clear) override;
#endif
  bool isHistoryEnabled() override;
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& pairs) override;
  void pushCompileContext(std::string& text) override;
  void popCompileContext() override;
#if GLAKE_TORCH >= 210
  void setUserMetadata(const std::string& text) override;
  std::string getUserMetadata() override;
#endif
  void attachOutOfMemoryObserver(torch_alloc::OutOfMemoryObserver observer) override;
  void attachAllocatorTraceTracker(torch_alloc::AllocatorTraceTracker tracker) override;

  // Other processes (ipc.cpp).
  torch_alloc::ShareableHandle shareIpcHandle(void* address) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;

 private:
  void* take(size_t bytes, DeviceIndex device, cudaStream_t stream);
  // The core's memory, or nullopt where torch's allocator shall serve this one. Throws OutOfMemoryError.
  std::optional<uint64_t> take_from_core(Device& device, size_t bytes, cudaStream_t stream);
  std::optional<uint64_t> take_last_resort(Device& device, size_t bytes, cudaStream_t stream);
  void* take_from_inner(Device* device, size_t bytes, cudaStream_t stream);
  bool prepare(Device& device);
  bool open(Device& device);
  void book(Device& device, uint64_t address, Block block);
  void give_back(void* address);
  void free_in_core(DeviceIndex device, uint64_t address, uint64_t stream);
  void close_abandoned(Device& device);
  void flush(Device& device);
  void absorb_inner(Device& device);
  void settle(Device& device);
  void limit_core(Device& device);
  void limit_inner(Device& device);

  // Short of memory (pressure.cpp).
  void relieve(Device& device);
  [[noreturn]] void raise_out_of_memory(Device& device, size_t bytes, cudaStream_t stream, const std::string& reason);

  void append_segments(Device& device, torch_alloc::SnapshotInfo& snapshot);
  void append_trace(Device& device, torch_alloc::SnapshotInfo& snapshot);

  Device* device(DeviceIndex index) {
    bool known = index >= 0 && static_cast<size_t>(index) < count_.load(std::memory_order_acquire);
    return known ? &devices_[index] : nullptr;
  }

  static constexpr size_t MOST_DEVICES = 64;
  CUDAAllocator* const inner_;
  std::atomic<int> away_{0}; // reasons to leave new memory to torch's allocator
  std::atomic<bool> enabled_{true};
  std::atomic<bool> last_resort_{false}; // the program has a MemPool that others may use before they run out of memory
  std::atomic<size_t> count_{0};
  std::array<Device, MOST_DEVICES> devices_;
  Blocks blocks_;
  std::mutex observers_mutex_;
  std::vector<torch_alloc::OutOfMemoryObserver> observers_;
  // Given before the devices were known.
  std::vector<torch_alloc::AllocatorTraceTracker> trackers_;
};

// The installed one; never destroyed, since tensors may outlive every static object.
extern Allocator* installed;

} // namespace glake
