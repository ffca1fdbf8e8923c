// Set-up, the memory limit both allocators share, and other GPUs.
#include "allocator.h"

namespace glake {

Allocator::Allocator(CUDAAllocator* inner) : inner_(inner) {
  for (size_t i = 0; i < MOST_DEVICES; ++i) {
    devices_[i].index = static_cast<DeviceIndex>(i);
  }
}

void Allocator::init(int devices) {
  inner_->init(devices);
  size_t count = std::min<size_t>(devices < 0 ? 0 : devices, MOST_DEVICES);
  size_t before = count_.load();
  for (size_t i = before; i < count; ++i) {
    Device& device = devices_[i];
    std::lock_guard<std::mutex> lock(device.mutex);
    // Memory torch handed out before GLake came stays torch's and is part of the sums.
    device.books.open(inner_->getDeviceStats(device.index));
    // 1.0 also stands for "never set"; then there is no limit.
    device.fraction = inner_->getMemoryFraction(device.index);
    for (auto& tracker : trackers_) {
      device.history.track(tracker);
    }
  }
  if (count > before) {
    count_.store(count, std::memory_order_release);
  }
}

bool Allocator::has_heaps() const {
  for (const Device& device : devices_) {
    if (device.heap == Device::Heap::OPEN) {
      return true;
    }
  }
  return false;
}

bool Allocator::initialized() {
  return inner_->initialized();
}

void Allocator::enable(bool on) {
  inner_->enable(on);
  if (enabled_.exchange(on) != on) {
    pause(!on);
  }
}

bool Allocator::isEnabled() const {
  return inner_->isEnabled();
}

std::string Allocator::name() {
  // Programs ask for "native" to know which rules hold; they all hold.
  return inner_->name();
}

void Allocator::retreat(const std::string& why) {
  pause(true);
  say_once("torch-retreat", "new memory comes from torch's own allocator: " + why);
}

void Allocator::pause(bool on) {
  away_ += on ? 1 : -1;
}

// Whether the core serves this device. Opened at the first allocation, since a heap needs the device's context.
bool Allocator::prepare(Device& device) {
  Device::Heap heap = device.heap.load(std::memory_order_acquire);
  return C10_LIKELY(heap == Device::Heap::OPEN) || (heap == Device::Heap::UNKNOWN && open(device));
}

bool Allocator::open(Device& device) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  bool asked = cudaStreamIsCapturing(c10::cuda::getCurrentCUDAStream(device.index), &status) == cudaSuccess;
  if (!asked || status != cudaStreamCaptureStatusNone || device.routes.is_capturing()) {
    (void)cudaGetLastError();
    return false; // a first allocation under capture goes to torch; the next one opens
  }
  static std::mutex opening;
  std::lock_guard<std::mutex> lock(opening);
  if (device.heap != Device::Heap::UNKNOWN) {
    return device.heap == Device::Heap::OPEN;
  }
  C10_CUDA_CHECK(cudaFree(nullptr)); // makes the context
  if (core->open(device.index) != GLAKE_OK) {
    device.heap = Device::Heap::OFF;
    say_once("torch-open", "GPU " + std::to_string(device.index) + " stays with torch's own allocator: " + last_error());
    return false;
  }
  if (double fraction = device.fraction; fraction < 1.0 && !device.limited) {
    // From PYTORCH_ALLOC_CONF=per_process_memory_fraction, or set before GLake came.
    setMemoryFraction(fraction, device.index);
  }
  device.heap.store(Device::Heap::OPEN, std::memory_order_release);
  for (DeviceIndex peer : device.peers) {
    core->enable_peer(device.index, peer);
  }
  absorb_inner(device);
  limit_core(device);
  return true;
}

double Allocator::getMemoryFraction(DeviceIndex index) {
  Device* device = this->device(index);
  return device != nullptr && device->limited ? device->fraction : inner_->getMemoryFraction(index);
}

void Allocator::setMemoryFraction(double fraction, DeviceIndex index) {
  inner_->setMemoryFraction(fraction, index); // checks it
  Device* device = this->device(index);
  if (device == nullptr) {
    return;
  }
  c10::cuda::CUDAGuard guard(index);
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  {
    std::lock_guard<std::mutex> lock(device->mutex);
    device->fraction = fraction;
    device->allowed = static_cast<uint64_t>(fraction * static_cast<double>(total));
    device->limited = true;
  }
  limit_core(*device);
}

// One budget: the core may hold what the fraction allows and torch's allocator does not hold.
void Allocator::limit_core(Device& device) {
  uint64_t left = 0;
  {
    std::lock_guard<std::mutex> lock(device.mutex);
    if (!device.limited) {
      return;
    }
    uint64_t held = device.books.inner_reserved();
    left = device.allowed > held ? device.allowed - held : 0;
  }
  if (device.heap == Device::Heap::OPEN) {
    core->set_max_bytes(device.index, left);
  }
}

// And the other way round, before torch's allocator is asked.
void Allocator::limit_inner(Device& device) {
  if (!device.limited) {
    return;
  }
  uint64_t held = core->reserved(device.index);
  double left = device.allowed > held ? static_cast<double>(device.allowed - held) : 0.0;
  double share = device.allowed == 0 ? 0.0 : device.fraction * left / static_cast<double>(device.allowed);
  share = std::min(1.0, share);
  {
    std::lock_guard<std::mutex> lock(device.mutex);
    if (share == device.inner_share) {
      return; // telling it costs a driver call
    }
    device.inner_share = share;
  }
  inner_->setMemoryFraction(share, device.index);
}

// Takes up what torch's allocator holds now.
void Allocator::absorb_inner(Device& device) {
  device.inner_moved.store(false, std::memory_order_relaxed);
  DeviceStats stats = inner_->getDeviceStats(device.index);
  bool changed = false;
  {
    std::lock_guard<std::mutex> lock(device.mutex);
    changed = device.books.absorb(stats);
  }
  if (changed) {
    limit_core(device);
  }
}

// Asks the core how much of what was freed still waits for other streams.
void Allocator::settle(Device& device) {
  glake_stats stats{};
  if (device.heap != Device::Heap::OPEN || core->stats(device.index, &stats) != GLAKE_OK) {
    return;
  }
  uint64_t waiting = stats.active.current > stats.allocated.current ? stats.active.current - stats.allocated.current : 0;
  std::lock_guard<std::mutex> lock(device.mutex);
  for (const Books::Waiting& back : device.books.settle(waiting)) {
    device.history.record(TraceEntry::FREE_COMPLETED, device.index, back.address, back.requested, back.stream, nullptr);
  }
}

void Allocator::enablePeerAccess(DeviceIndex user, DeviceIndex owner) {
  inner_->enablePeerAccess(user, owner);
  Device* device = this->device(owner);
  if (device == nullptr) {
    return;
  }
  {
    std::lock_guard<std::mutex> lock(device->mutex);
    device->peers.push_back(user);
  }
  if (device->heap == Device::Heap::OPEN && core->enable_peer(owner, user) != GLAKE_OK) {
    say_once("torch-peer", "GPU " + std::to_string(user) + " may not reach the memory of the other: " + last_error());
  }
}

cudaError_t Allocator::memcpyAsync(
    void* to, int to_device, const void* from, int from_device, size_t bytes, cudaStream_t stream, bool p2p) {
  bool ours = core->owns(id_of(to)) != 0 || core->owns(id_of(from)) != 0;
  if (!ours || p2p || to_device == from_device) {
    return inner_->memcpyAsync(to, to_device, from, from_device, bytes, stream, p2p);
  }
  // Mapped memory is copied between GPUs without peer access only by this call.
  return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
}

} // namespace glake
