#include "process_memory.h"

#include <dlfcn.h>
#include <unistd.h>

#include <vector>

namespace glake {

namespace {

// NVML's binary interface, as far as used: nvmlProcessInfo_t of the calls with the suffix _v3.
struct ProcessInfo {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};

template <typename Function>
Function symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

} // namespace

std::optional<uint64_t> memory_of_this_process(DeviceIndex device) {
  constexpr int SUCCESS = 0;
  // Kept open: unloading NVML at an error is not worth a risk.
  static void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  char bus[32] = "";
  if (library == nullptr || cudaDeviceGetPCIBusId(bus, sizeof bus, device) != cudaSuccess) {
    return std::nullopt;
  }
  auto start = symbol<int (*)()>(library, "nvmlInit_v2");
  auto find = symbol<int (*)(const char*, void**)>(library, "nvmlDeviceGetHandleByPciBusId_v2");
  auto list = symbol<int (*)(void*, unsigned*, ProcessInfo*)>(library, "nvmlDeviceGetComputeRunningProcesses_v3");
  void* handle = nullptr;
  if (start == nullptr || find == nullptr || list == nullptr || start() != SUCCESS || find(bus, &handle) != SUCCESS) {
    return std::nullopt;
  }
  std::vector<ProcessInfo> processes(64);
  unsigned count = static_cast<unsigned>(processes.size());
  if (list(handle, &count, processes.data()) != SUCCESS) {
    return std::nullopt;
  }
  for (unsigned i = 0; i < count; ++i) {
    if (processes[i].pid == static_cast<unsigned>(getpid())) {
      return processes[i].used;
    }
  }
  return std::nullopt;
}

} // namespace glake
