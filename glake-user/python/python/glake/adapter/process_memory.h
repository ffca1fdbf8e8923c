// How much of a GPU this process uses in all, by NVML: CUDA contexts and libraries hold memory that no allocator sees.
#pragma once

#include <cstdint>
#include <optional>

#include "torch.h"

namespace glake {

// Nothing where NVML is missing, or names processes by numbers of another PID namespace. Only for the text of an error.
std::optional<uint64_t> memory_of_this_process(DeviceIndex device);

} // namespace glake
