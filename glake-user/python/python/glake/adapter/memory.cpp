// Taking and giving back memory: the path every tensor goes.
#include "allocator.h"

namespace glake {

namespace {

// torch's own bound and words.
constexpr size_t ONE_EXABYTE = 1ull << 60;

void trace_allocation(void* address) {
  if (const c10::impl::PyInterpreter* interpreter = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(interpreter != nullptr)) {
    (*interpreter)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(address));
  }
}

void trace_free(void* address) {
  if (const c10::impl::PyInterpreter* interpreter = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(interpreter != nullptr)) {
    (*interpreter)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(address));
  }
}

} // namespace

c10::DataPtr Allocator::allocate(size_t bytes) {
  if (bytes >= ONE_EXABYTE) {
    throw_error<c10::OutOfMemoryError>("CUDA out of memory. Tried to allocate more than 1EB memory.");
  }
  DeviceIndex device = current_device();
  void* address = nullptr;
  if (bytes != 0) {
    address = take(bytes, device, c10::cuda::getCurrentCUDAStream(device));
  }
  return {address, address, &Allocator::drop, cuda_device(device)};
}

void* Allocator::raw_alloc(size_t bytes) {
  if (bytes == 0) {
    return nullptr;
  }
  DeviceIndex device = current_device();
  return take(bytes, device, c10::cuda::getCurrentCUDAStream(device));
}

void* Allocator::raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
  return bytes == 0 ? nullptr : take(bytes, current_device(), stream);
}

void* Allocator::take(size_t bytes, DeviceIndex index, cudaStream_t stream) {
  Device* device = this->device(index);
  if (device == nullptr || away_.load(std::memory_order_relaxed) != 0 || forked || !prepare(*device) ||
      device->routes.is_pooled(stream)) {
    return take_from_inner(device, bytes, stream);
  }
  std::optional<uint64_t> address = take_from_core(*device, bytes, stream);
  return address ? address_of(*address) : take_from_inner(device, bytes, stream);
}

std::optional<uint64_t> Allocator::take_from_core(Device& device, size_t bytes, cudaStream_t stream) {
  RelaxedCapture relaxed(device);
  // Before any lock: the stack needs the GIL.
  Context context = device.history.gather(History::Level::STATE);
  Block block;
  block.stream = id_of(stream);
  block.requested = bytes;
  block.device = device.index;
  block.context = std::move(context);
  for (bool retried = false;; retried = true) {
    uint64_t address = 0;
    glake_status status = core->allocate(device.index, bytes, block.stream, &address, &block.size);
    if (C10_LIKELY(status == GLAKE_OK)) {
      book(device, address, std::move(block));
      return address;
    }
    if (status != GLAKE_OUT_OF_MEMORY) {
      if (status == GLAKE_OFF) {
        device.heap = Device::Heap::OFF;
      }
      say_once("torch-fallback", "an allocation went to torch's own allocator: " + last_error());
      return std::nullopt;
    }
    std::string reason = last_error();
    if (retried) {
      if (std::optional<uint64_t> found = take_last_resort(device, bytes, stream)) {
        return found;
      }
      raise_out_of_memory(device, bytes, stream, reason);
    }
    relieve(device);
  }
}

// Only torch's allocator knows the pools that may be used then.
std::optional<uint64_t> Allocator::take_last_resort(Device& device, size_t bytes, cudaStream_t stream) {
  if (!last_resort_) {
    return std::nullopt;
  }
  try {
    limit_inner(device);
    void* address = inner_->raw_alloc_with_stream(bytes, stream);
    absorb_inner(device);
    return id_of(address);
  } catch (const c10::OutOfMemoryError&) {
    return std::nullopt; // the error to come tells of both sides
  }
}

void Allocator::book(Device& device, uint64_t address, Block block) {
  uint64_t size = block.size, requested = block.requested, stream = block.stream;
  uint64_t held = core->reserved(device.index);
  int64_t allocated, reserved;
  if (C10_UNLIKELY(device.inner_moved.load(std::memory_order_relaxed))) {
    absorb_inner(device);
  }
  {
    std::unique_lock<std::mutex> lock(device.mutex);
    if (C10_UNLIKELY(device.books.has_waiting() && device.books.lifts_peak(size))) {
      lock.unlock();
      settle(device);
      lock.lock();
    }
    device.books.core_holds(held);
    device.books.allocated(block);
    device.history.record(TraceEntry::ALLOC, device.index, address, requested, stream, block.context);
    allocated = device.books.allocated_bytes();
    reserved = device.books.reserved_bytes();
  }
  blocks_.add(address, std::move(block));
  c10::reportMemoryUsageToProfiler(
      address_of(address), static_cast<int64_t>(size), allocated, reserved, cuda_device(device.index));
  trace_allocation(address_of(address));
}

void* Allocator::take_from_inner(Device* device, size_t bytes, cudaStream_t stream) {
  if (device == nullptr || forked) {
    return inner_->raw_alloc_with_stream(bytes, stream);
  }
  limit_inner(*device);
  void* address = nullptr;
  try {
    address = inner_->raw_alloc_with_stream(bytes, stream);
  } catch (const c10::OutOfMemoryError&) {
    // torch's pools are short: what the core holds and does not use may be all they need.
    uint64_t freed = 0;
    if (device->heap == Device::Heap::OPEN) {
      RelaxedCapture relaxed(*device);
      core->trim(device->index, &freed);
    }
    if (freed > 0) {
      limit_inner(*device);
      try {
        address = inner_->raw_alloc_with_stream(bytes, stream);
      } catch (const c10::OutOfMemoryError&) {
        address = nullptr;
      }
    }
    if (address == nullptr) {
      raise_out_of_memory(*device, bytes, stream, "this allocation belongs to a pool of torch's own (a CUDA graph, a MemPool)");
    }
  }
  absorb_inner(*device);
  return address;
}

c10::DeleterFnPtr Allocator::raw_deleter() const {
  return &Allocator::drop;
}

void Allocator::raw_delete(void* address) {
  give_back(address);
}

void Allocator::drop(void* address) {
  installed->give_back(address);
}

void Allocator::give_back(void* address) {
  if (address == nullptr || forked) {
    return; // in a forked child the memory belongs to the parent
  }
  uint64_t id = id_of(address);
  if (core->owns(id) == 0) {
    inner_->raw_delete(address);
    for (size_t i = 0; i < count_.load(std::memory_order_relaxed); ++i) {
      devices_[i].inner_moved.store(true, std::memory_order_relaxed);
    }
    return;
  }
  std::optional<Block> block = blocks_.remove(id);
  if (!block) {
    throw_error("invalid device pointer: " + text_of(address));
  }
  trace_free(address);
  Device& device = devices_[block->device];
  Context context = device.history.gather(History::Level::ALL);
  bool queue = false;
  int64_t allocated, reserved;
  {
    std::lock_guard<std::mutex> lock(device.mutex);
    device.history.record(
        TraceEntry::FREE_REQUESTED, device.index, id, block->requested, block->stream, context ? context : block->context);
    if (!block->shared) {
      device.history.record(
          TraceEntry::FREE_COMPLETED, device.index, id, block->requested, block->stream, context ? context : block->context);
    }
    device.books.freed(id, *block);
    allocated = device.books.allocated_bytes();
    reserved = device.books.reserved_bytes();
    queue = device.routes.is_capturing();
    if (C10_UNLIKELY(queue)) {
      device.queued.emplace_back(id, block->stream);
    }
  }
  if (C10_LIKELY(!queue)) {
    free_in_core(device.index, id, block->stream);
  } else {
    close_abandoned(device);
  }
  c10::reportMemoryUsageToProfiler(
      address, -static_cast<int64_t>(block->size), allocated, reserved, cuda_device(device.index));
}

void Allocator::free_in_core(DeviceIndex device, uint64_t address, uint64_t stream) {
  if (C10_UNLIKELY(core->free(device, address, stream) != GLAKE_OK)) {
    say_once("torch-free", "a block did not come back to the heap: " + last_error());
  }
}

// torch says nothing when a capture fails; without this, frees would queue for ever.
void Allocator::close_abandoned(Device& device) {
  int closed = device.routes.close_abandoned();
  for (int i = 0; i < closed; ++i) {
    core->end_capture(device.index);
  }
  if (closed > 0) {
    flush(device);
  }
}

// Nothing is captured any more: what was freed meanwhile goes back.
void Allocator::flush(Device& device) {
  std::vector<std::pair<uint64_t, uint64_t>> queued;
  {
    std::lock_guard<std::mutex> lock(device.mutex);
    if (device.routes.is_capturing()) {
      return;
    }
    queued.swap(device.queued);
  }
  for (auto [address, stream] : queued) {
    free_in_core(device.index, address, stream);
  }
}

void Allocator::recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) {
  // Memory of others (a tensor of another process, a custom deleter) has no stream rules of this allocator's.
  if (data.get() == nullptr || forked || data.get_deleter() != &Allocator::drop) {
    if (data.get() != nullptr && data.get_deleter() == inner_->raw_deleter()) {
      inner_->recordStream(data, stream);
    }
    return;
  }
  uint64_t id = id_of(data.get());
  if (core->owns(id) == 0) {
    // torch's allocator looks for its own deleter: lend it a pointer that has it, and take it back before it acts.
    struct Lent {
      c10::DataPtr data;
      ~Lent() {
        (void)data.release_context();
      }
    } lent{{data.get(), data.get(), inner_->raw_deleter(), data.device()}};
    inner_->recordStream(lent.data, stream);
    return;
  }
  DeviceIndex device = -1;
  blocks_.change(id, [&](Block& block) {
    if (block.stream != id_of(stream.stream())) {
      block.shared = true;
      device = block.device;
    }
  });
  if (device >= 0 && core->record_stream(device, id, id_of(stream.stream())) != GLAKE_OK) {
    say_once("torch-record-stream", "record_stream failed: " + last_error());
  }
}

void Allocator::emptyCache(Pool pool) {
  inner_->emptyCache(pool);
  for (size_t i = 0; i < count_; ++i) {
    Device& device = devices_[i];
    if (device.heap == Device::Heap::OPEN && pool == Pool{0, 0} && !device.routes.is_capturing()) {
      core->trim(device.index, nullptr);
    }
    if (!forked) {
      absorb_inner(device);
    }
  }
}

void* Allocator::getBaseAllocation(void* address, size_t* size) {
  uint64_t id = id_of(address);
  if (core->owns(id) == 0) {
    return inner_->getBaseAllocation(address, size);
  }
  uint64_t start = 0, bytes = 0;
  int32_t device = 0;
  if (core->find(id, &start, &bytes, &device) != GLAKE_OK) {
    throw_error("invalid device pointer: " + text_of(address));
  }
  if (size != nullptr) {
    *size = bytes;
  }
  return address_of(start);
}

void Allocator::cacheInfo(DeviceIndex index, size_t* largest) {
  inner_->cacheInfo(index, largest);
  Device* device = this->device(index);
  glake_stats stats{};
  if (device != nullptr && device->heap == Device::Heap::OPEN && core->stats(index, &stats) == GLAKE_OK) {
    *largest = std::max<size_t>(*largest, stats.largest_free);
  }
}

void Allocator::copy_data(void* to, const void* from, size_t bytes) const {
  inner_->copy_data(to, from, bytes);
}

} // namespace glake
