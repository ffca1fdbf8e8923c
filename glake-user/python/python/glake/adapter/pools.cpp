// Pools and graphs: torch's allocator serves them, GLake stays out of the way meanwhile.
#include "allocator.h"

namespace glake {

void Allocator::beginAllocateToPool(DeviceIndex index, Pool pool, std::function<bool(cudaStream_t)> filter) {
  if (Device* device = this->device(index)) {
    if (device->routes.begin(pool, filter, c10::cuda::getCurrentCUDAStream(index))) {
      core->begin_capture(index);
    }
  }
  inner_->beginAllocateToPool(index, pool, std::move(filter));
}

void Allocator::endAllocateToPool(DeviceIndex index, Pool pool) {
  inner_->endAllocateToPool(index, pool);
  Device* device = this->device(index);
  if (device != nullptr && device->routes.end(pool)) {
    core->end_capture(index);
    flush(*device);
  }
}

void Allocator::releasePool(DeviceIndex index, Pool pool) {
  inner_->releasePool(index, pool);
}

int Allocator::getPoolUseCount(DeviceIndex index, Pool pool) {
  return inner_->getPoolUseCount(index, pool);
}

void Allocator::createOrIncrefPool(DeviceIndex index, Pool pool, PoolAllocator allocator) {
  inner_->createOrIncrefPool(index, pool, std::move(allocator));
}

#if GLAKE_TORCH >= 211
void Allocator::setUseOnOOM(DeviceIndex index, Pool pool, bool use) {
  last_resort_ = last_resort_ || use;
  inner_->setUseOnOOM(index, pool, use);
}
#else
void Allocator::setUseOnOOM(DeviceIndex index, Pool pool) {
  last_resort_ = true;
  inner_->setUseOnOOM(index, pool);
}
#endif

#if GLAKE_TORCH >= 210
void Allocator::setNoSplit(DeviceIndex index, Pool pool) {
  inner_->setNoSplit(index, pool);
}

std::vector<torch_alloc::StreamSegmentSize> Allocator::getExpandableSegmentSizes(DeviceIndex index) {
  return inner_->getExpandableSegmentSizes(index);
}
#endif

bool Allocator::checkPoolLiveAllocations(DeviceIndex index, Pool pool, const std::unordered_set<void*>& expected) {
  return inner_->checkPoolLiveAllocations(index, pool, expected);
}

std::shared_ptr<torch_alloc::AllocatorState> Allocator::getCheckpointState(DeviceIndex index, Pool pool) {
  return inner_->getCheckpointState(index, pool);
}

torch_alloc::CheckpointDelta Allocator::setCheckpointPoolState(
    DeviceIndex index, std::shared_ptr<torch_alloc::AllocatorState> state) {
  torch_alloc::CheckpointDelta delta = inner_->setCheckpointPoolState(index, std::move(state));
  // torch exchanges deleters on storages and expects `raw_deleter` on them.
  for (c10::DataPtr& data : delta.dataptrs_allocd) {
    void* address = data.release_context();
    data = c10::DataPtr(address, address, &Allocator::drop, cuda_device(index));
  }
  if (Device* device = this->device(index)) {
    absorb_inner(*device);
  }
  return delta;
}

} // namespace glake
