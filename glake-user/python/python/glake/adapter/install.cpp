// Putting the adapter in torch's place, and taking it out again.
#include "install.h"

#include <pthread.h>

#include <cstdio>
#include <cstdlib>

#include "allocator.h"

namespace glake {

const glake_api* core = nullptr;
std::atomic<bool> forked{false};
Allocator* installed = nullptr;

namespace {

// Why GLake must stay out; empty if it need not.
std::string obstacle(const glake_api* api, CUDAAllocator* inner) {
  if (api == nullptr || api->version != GLAKE_API_VERSION || api->size < sizeof(glake_api)) {
    return "the adapter was built for another version of glake: delete its cache folder";
  }
  if (std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != nullptr) {
    return "PYTORCH_NO_CUDA_MEMORY_CACHING is set: every tensor shall be a cudaMalloc of its own";
  }
  if (inner == nullptr || inner->name() != "native") {
    std::string name = inner == nullptr ? "none" : inner->name();
    return "torch's allocator backend is " + name + ": unset backend: in PYTORCH_ALLOC_CONF to use GLake";
  }
  return "";
}

} // namespace

} // namespace glake

extern "C" int glake_torch_install(const glake_api* api, char* why, size_t n) {
  using namespace glake;
  if (installed != nullptr) {
    return 0;
  }
  CUDAAllocator* inner = torch_alloc::get();
  std::string reason = obstacle(api, inner);
  if (!reason.empty()) {
    std::snprintf(why, n, "%s", reason.c_str());
    return 1;
  }
  core = api;
  auto* allocator = new Allocator(inner);
  if (inner->initialized()) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess) {
      (void)cudaGetLastError();
    }
    allocator->init(devices);
  }
  pthread_atfork(nullptr, nullptr, [] { forked = forked || installed->has_heaps(); });
  installed = allocator;
  torch_alloc::allocator.store(allocator);
  // The second place torch keeps it (torch.accelerator); a priority of its own only where the plain one is refused.
  c10::SetAllocator(c10::DeviceType::CUDA, allocator);
  if (c10::GetAllocator(c10::DeviceType::CUDA) != allocator) {
    c10::SetAllocator(c10::DeviceType::CUDA, allocator, 255);
  }
  return 0;
}

extern "C" void glake_torch_retreat(const char* why) {
  if (glake::installed != nullptr) {
    glake::installed->retreat(why);
  }
}

extern "C" void glake_torch_pause(int on) {
  if (glake::installed != nullptr) {
    glake::installed->pause(on != 0);
  }
}

extern "C" int glake_torch_selftest() {
  char number[32];
  std::snprintf(number, sizeof number, "%.2f GiB", 1.5);
  try {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "tried ", 1.5, " and ", std::string(number));
  } catch (const c10::OutOfMemoryError& e) {
    return std::string(e.what_without_backtrace()) == "tried 1.5 and 1.50 GiB" ? 0 : 1;
  }
  return 2;
}

extern "C" int glake_torch_version() {
  return GLAKE_TORCH;
}
