// What the adapter uses of torch, with the differences between its versions in one place.
//
// GLAKE_TORCH is the version of the headers as major * 100 + minor; the builder passes it, since torch's own version header moved.
// Declared versions are those the tests compile: 2.8 to 2.11.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/ApproximateClock.h>
#include <c10/util/flat_hash_map.h>

#include <cstdio>
#include <string>

#ifndef GLAKE_TORCH
#error "GLAKE_TORCH is not set: major * 100 + minor of torch, such as 211"
#endif

namespace glake {

namespace torch_alloc = c10::cuda::CUDACachingAllocator;
using torch_alloc::CUDAAllocator;
using torch_alloc::TraceEntry;
using c10::DeviceIndex;
using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingDeviceAllocator::DeviceStats;
using Pool = c10::cuda::MempoolId_t;
using Context = std::shared_ptr<c10::GatheredContext>;

// What a MemPool is made with: a plain pointer before 2.11.
#if GLAKE_TORCH >= 211
using PoolAllocator = std::shared_ptr<CUDAAllocator>;
#else
using PoolAllocator = CUDAAllocator*;
#endif

// torch's exceptions with a text of one piece. Not TORCH_CHECK with several: it formats by iostreams, and a compiler may bring its own copy of
// the C++ library into this one, whose streams are not set up (seen with a GCC built for static linking).
template <typename Error = c10::Error>
[[noreturn]] void throw_error(const std::string& text) {
  throw Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text);
}

inline std::string text_of(const void* address) {
  char text[32];
  std::snprintf(text, sizeof text, "%p", address);
  return text;
}

inline c10::Device cuda_device(DeviceIndex device) {
  return {c10::DeviceType::CUDA, device};
}

inline DeviceIndex current_device() {
  DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return device;
}

inline uint64_t id_of(cudaStream_t stream) {
  return reinterpret_cast<uint64_t>(stream);
}

inline uint64_t id_of(const void* address) {
  return reinterpret_cast<uint64_t>(address);
}

inline cudaStream_t stream_of(uint64_t id) {
  return reinterpret_cast<cudaStream_t>(id);
}

inline void* address_of(uint64_t id) {
  return reinterpret_cast<void*>(id);
}

} // namespace glake
