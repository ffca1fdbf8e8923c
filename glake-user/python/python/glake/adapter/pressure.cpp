// When memory is short: what else may be given back, and the error if it does not suffice.
#include <cstdio>

#include "allocator.h"
#include "process_memory.h"

namespace glake {

namespace {

// As torch prints sizes in this message; tools read it.
std::string format_size(uint64_t bytes) {
  constexpr uint64_t KIB = 1u << 10, MIB = 1u << 20, GIB = 1u << 30;
  if (bytes <= KIB) {
    return std::to_string(bytes) + " bytes";
  }
  uint64_t unit = bytes <= MIB ? KIB : bytes <= GIB ? MIB : GIB;
  const char* name = unit == KIB ? "KiB" : unit == MIB ? "MiB" : "GiB";
  char text[48];
  std::snprintf(text, sizeof text, "%.2f %s", static_cast<double>(bytes) / static_cast<double>(unit), name);
  return text;
}

std::string process_words(DeviceIndex device) {
  std::optional<uint64_t> used = memory_of_this_process(device);
  return used ? "Including non-PyTorch memory, this process has " + format_size(*used) + " memory in use. " : "";
}

} // namespace

// The core gave up: it has waited and remapped already. What is left is torch's: callbacks that free tensors (those of shared tensors among
// them) and the cache of its allocator.
void Allocator::relieve(Device& device) {
  auto* callbacks = c10::FreeCudaMemoryCallbacksRegistry();
  for (const auto& name : callbacks->Keys()) {
    callbacks->Create(name)->Execute();
  }
  if (device.routes.is_capturing()) {
    close_abandoned(device);
  }
  if (!device.routes.is_capturing()) {
    inner_->emptyCache(Pool{0, 0});
  }
  absorb_inner(device);
  std::lock_guard<std::mutex> lock(device.mutex);
  device.books.count_retry();
}

void Allocator::raise_out_of_memory(Device& device, size_t bytes, cudaStream_t stream, const std::string& reason) {
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  Context context = device.history.gather(History::Level::STATE);
  absorb_inner(device);
  uint64_t held = core->reserved(device.index);
  uint64_t allocated, reserved, allowed;
  {
    std::lock_guard<std::mutex> lock(device.mutex);
    device.books.core_holds(held);
    device.books.count_oom();
    device.history.record(TraceEntry::OOM, device.index, free, bytes, id_of(stream), std::move(context));
    allocated = static_cast<uint64_t>(device.books.allocated_bytes());
    reserved = static_cast<uint64_t>(device.books.reserved_bytes());
    allowed = device.limited ? device.allowed : 0;
  }
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes), allocated, reserved, cuda_device(device.index));
  std::vector<torch_alloc::OutOfMemoryObserver> observers;
  {
    std::lock_guard<std::mutex> lock(observers_mutex_);
    observers = observers_;
  }
  for (const auto& observer : observers) { // may take the GIL: no lock is held
    observer(device.index, bytes, allowed != 0 ? allowed : total, free);
  }
  uint64_t idle = reserved > allocated ? reserved - allocated : 0;
  throw_error<c10::OutOfMemoryError>(
      "CUDA out of memory. Tried to allocate " + format_size(bytes) + ". GPU " + std::to_string(device.index) +
      " has a total capacity of " + format_size(total) + " of which " + format_size(free) + " is free. " +
      process_words(device.index) + (allowed != 0 ? format_size(allowed) + " allowed; " : "") + "Of the allocated memory " +
      format_size(allocated) + " is allocated by PyTorch, and " + format_size(idle) +
      " is reserved by PyTorch but unallocated. GLake: " + reason);
}

} // namespace glake
