#include "plain_core.h"

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace {

constexpr uint64_t REGION = 1ull << 40, STEP = 64ull << 20, UNIT = 512;

struct Taken {
  uint64_t size, requested, stream;
  std::vector<cudaStream_t> others;
};

std::mutex mutex;
uint64_t base = 0, mapped = 0, limit = UINT64_MAX, capacity = UINT64_MAX;
std::map<uint64_t, uint64_t> gaps; // free ranges below base + mapped
std::map<uint64_t, Taken> taken;
struct Waiting {
  uint64_t address;
  Taken block;
  std::vector<cudaEvent_t> events;
};
std::vector<Waiting> waiting;
glake_level allocated, requested, active, reserved;
int captures = 0;
thread_local std::string error;

void up(glake_level& level, uint64_t n) {
  level.current += n;
  level.allocated += n;
  level.peak = std::max(level.peak, level.current);
}

void down(glake_level& level, uint64_t n) {
  level.current -= n;
  level.freed += n;
}

void add_gap(uint64_t start, uint64_t size) {
  auto next = gaps.lower_bound(start);
  if (next != gaps.end() && start + size == next->first) {
    size += next->second;
    next = gaps.erase(next);
  }
  if (next != gaps.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == start) {
      before->second += size;
      return;
    }
  }
  gaps[start] = size;
}

bool map_more(uint64_t size) {
  size = (size + STEP - 1) / STEP * STEP;
  if (mapped + size > std::min(limit, capacity) || mapped + size > REGION) {
    return false;
  }
  void* at = reinterpret_cast<void*>(base + mapped);
  if (mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED) {
    return false;
  }
  add_gap(base + mapped, size);
  mapped += size;
  up(reserved, size);
  return true;
}

void collect() {
  for (size_t i = 0; captures == 0 && i < waiting.size();) {
    bool done = std::all_of(waiting[i].events.begin(), waiting[i].events.end(), [](cudaEvent_t e) {
      return cudaEventQuery(e) == cudaSuccess;
    });
    if (!done) {
      ++i;
      continue;
    }
    down(active, waiting[i].block.size);
    add_gap(waiting[i].address, waiting[i].block.size);
    waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

glake_status fail(glake_status status, std::string text) {
  error = std::move(text);
  return status;
}

size_t last_error(char* text, size_t n) {
  std::snprintf(text, n, "%s", error.c_str());
  return error.size();
}

glake_status open(int32_t) {
  std::lock_guard<std::mutex> lock(mutex);
  if (base == 0) {
    void* at = mmap(nullptr, REGION, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    base = reinterpret_cast<uint64_t>(at);
  }
  return GLAKE_OK;
}

glake_status allocate(int32_t, uint64_t size, uint64_t stream, uint64_t* address, uint64_t* rounded) {
  std::lock_guard<std::mutex> lock(mutex);
  collect();
  uint64_t want = (std::max<uint64_t>(size, 1) + UNIT - 1) / UNIT * UNIT;
  for (bool grown = false;; grown = true) {
    auto fit = std::find_if(gaps.begin(), gaps.end(), [&](const auto& gap) { return gap.second >= want; });
    if (fit != gaps.end()) {
      *address = fit->first;
      *rounded = want;
      uint64_t rest = fit->second - want;
      gaps.erase(fit);
      if (rest > 0) {
        gaps[*address + want] = rest;
      }
      taken[*address] = {want, size, stream, {}};
      up(allocated, want);
      up(requested, size);
      up(active, want);
      return GLAKE_OK;
    }
    if (grown || !map_more(want)) {
      return fail(GLAKE_OUT_OF_MEMORY, "the stand-in is full");
    }
  }
}

glake_status release(int32_t, uint64_t address, uint64_t) {
  std::lock_guard<std::mutex> lock(mutex);
  auto found = taken.find(address);
  if (found == taken.end()) {
    return fail(GLAKE_MISUSE, "not a block");
  }
  Taken block = found->second;
  taken.erase(found);
  down(allocated, block.size);
  down(requested, block.requested);
  if (block.others.empty()) {
    down(active, block.size);
    add_gap(address, block.size);
    return GLAKE_OK;
  }
  Waiting held{address, block, {}};
  for (cudaStream_t stream : block.others) {
    cudaEvent_t event = nullptr;
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    cudaEventRecord(event, stream);
    held.events.push_back(event);
  }
  waiting.push_back(std::move(held));
  return GLAKE_OK;
}

glake_status record_stream(int32_t, uint64_t address, uint64_t stream) {
  std::lock_guard<std::mutex> lock(mutex);
  taken.at(address).others.push_back(reinterpret_cast<cudaStream_t>(stream));
  return GLAKE_OK;
}

int32_t owns(uint64_t address) {
  return base != 0 && address >= base && address < base + REGION;
}

glake_status find(uint64_t address, uint64_t* start, uint64_t* size, int32_t* device) {
  std::lock_guard<std::mutex> lock(mutex);
  auto next = taken.upper_bound(address);
  if (next == taken.begin() || address >= std::prev(next)->first + std::prev(next)->second.size) {
    return fail(GLAKE_MISUSE, "not in a block");
  }
  *start = std::prev(next)->first;
  *size = std::prev(next)->second.requested;
  *device = 0;
  return GLAKE_OK;
}

glake_status nothing(int32_t, uint64_t) {
  return GLAKE_OK;
}

void begin_capture(int32_t) {
  ++captures;
}

void end_capture(int32_t) {
  --captures;
}

glake_status trim(int32_t, uint64_t* freed) {
  std::lock_guard<std::mutex> lock(mutex);
  collect();
  uint64_t top = base + mapped;
  uint64_t given = 0;
  if (!gaps.empty() && gaps.rbegin()->first + gaps.rbegin()->second == top) {
    uint64_t start = base + (gaps.rbegin()->first - base + STEP - 1) / STEP * STEP;
    if (start < top) {
      given = top - start;
      gaps.rbegin()->second -= given;
      if (gaps.rbegin()->second == 0) {
        gaps.erase(std::prev(gaps.end()));
      }
      mapped -= given;
      down(reserved, given);
    }
  }
  if (freed != nullptr) {
    *freed = given;
  }
  return GLAKE_OK;
}

glake_status set_max_bytes(int32_t, uint64_t bytes) {
  limit = bytes;
  return GLAKE_OK;
}

glake_status on_pressure(int32_t, glake_pressure, void*) {
  return GLAKE_OK;
}

glake_status enable_peer(int32_t, int32_t) {
  return GLAKE_OK;
}

glake_status stats(int32_t, glake_stats* out) {
  std::lock_guard<std::mutex> lock(mutex);
  collect();
  *out = {};
  out->allocated = allocated;
  out->requested = requested;
  out->active = active;
  out->reserved = reserved;
  for (const auto& gap : gaps) {
    out->largest_free = std::max(out->largest_free, gap.second);
    out->free += gap.second;
  }
  return GLAKE_OK;
}

void reset(int32_t) {}

glake_status ranges(int32_t, glake_range_visitor visit, void* context) {
  std::lock_guard<std::mutex> lock(mutex);
  std::map<uint64_t, glake_range> all;
  for (const auto& [start, size] : gaps) {
    all[start] = {start, size, 0, 0, 0, 0};
  }
  for (const auto& [start, block] : taken) {
    all[start] = {start, block.size, block.requested, 0, 1, 0};
  }
  for (const auto& held : waiting) {
    all[held.address] = {held.address, held.block.size, held.block.requested, 0, 2, 0};
  }
  for (const auto& entry : all) {
    visit(context, &entry.second);
  }
  return GLAKE_OK;
}

glake_status no_export(int32_t, uint64_t, int32_t*, uint64_t*, uint32_t, uint32_t* count, uint64_t*) {
  *count = 1000;
  return fail(GLAKE_FAILED, "the stand-in has no handles");
}

glake_status no_import(int32_t, const int32_t*, const uint64_t*, uint32_t, uint64_t*) {
  return fail(GLAKE_FAILED, "the stand-in has no handles");
}

void say_once(const char* key, const char* line) {
  static std::set<std::string> said;
  if (said.insert(key).second) {
    std::fprintf(stderr, "glake: %s\n", line);
  }
}

uint64_t held(int32_t) {
  std::lock_guard<std::mutex> lock(mutex);
  return reserved.current;
}

const glake_api TABLE = {
    GLAKE_API_VERSION, sizeof(glake_api), last_error, open,          allocate,    release,     record_stream,
    owns,              find,              nothing,    nothing,       begin_capture, end_capture, trim,
    set_max_bytes,     on_pressure,       enable_peer, stats,        reset,       reset,       ranges,
    no_export,         no_import,         nothing,    say_once,      held,
};

} // namespace

const glake_api* plain_core() {
  return &TABLE;
}

void plain_core_capacity(uint64_t bytes) {
  capacity = bytes;
}

int plain_core_captures() {
  return captures;
}
