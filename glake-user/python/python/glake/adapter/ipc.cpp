// CUDA tensors in other processes (torch.multiprocessing).
//
// GLake's memory is a row of physical handles mapped side by side. The sender offers a descriptor of each; the receiver takes copies of them
// out of the sender with pidfd_getfd, as torch does for its expandable segments, and maps them side by side as well. The handle that travels
// names process, descriptors and sizes. torch's allocator, where the receiver has no GLake, refuses it by its first byte with
// "received sharable handle from a future version of torch".
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "allocator.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

namespace glake {

namespace {

// More would be thousands of descriptors per process; a block of 64 handles of 16 MiB is 1 GiB.
constexpr uint32_t MOST_HANDLES = 64;
constexpr char MAGIC[8] = {'\xff', 'g', 'l', 'a', 'k', 'e', '0', '1'};

struct Head {
  char magic[8];
  int64_t pid;
  uint64_t serial; // unlike for each export: torch keys its cache of opened handles by these bytes
  uint64_t address;
  uint32_t count;
};

struct Part {
  uint64_t size;
  int32_t descriptor;
};

template <typename T>
void put(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename T>
bool get(const std::string& in, size_t& at, T& value) {
  if (in.size() < at + sizeof value) {
    return false;
  }
  std::memcpy(&value, in.data() + at, sizeof value);
  at += sizeof value;
  return true;
}

std::atomic<uint64_t> exports{0};

void close_all(const std::vector<int32_t>& descriptors) {
  for (int32_t descriptor : descriptors) {
    close(descriptor);
  }
}

// The sender's descriptors, copied into this process.
std::vector<int32_t> fetch(const Head& head, const std::vector<Part>& parts) {
  std::vector<int32_t> out;
  int process = static_cast<int>(syscall(SYS_pidfd_open, head.pid, 0));
  std::string sender = "process " + std::to_string(head.pid);
  if (process < 0) {
    throw_error("GLake: " + sender + ", which shared this tensor, is gone or in another PID namespace");
  }
  for (const Part& part : parts) {
    // The sender itself, as with torch's cudaMalloc memory, may not open its own handle there; here it may.
    int copy = static_cast<int>(syscall(SYS_pidfd_getfd, process, part.descriptor, 0));
    if (copy < 0) {
      int reason = errno;
      close_all(out);
      close(process);
      throw_error(
          "GLake: cannot take the tensor's memory from " + sender + ": " + std::strerror(reason) +
          " (pidfd_getfd; needs Linux 5.6, the same user, and CAP_SYS_PTRACE where kernel.yama.ptrace_scope is above 0)");
    }
    out.push_back(copy);
  }
  close(process);
  return out;
}

struct Imports {
  std::mutex mutex;
  ska::flat_hash_map<std::string, std::weak_ptr<void>> opened;
};

Imports& imports() {
  static auto* all = new Imports; // outlives every tensor
  return *all;
}

void close_import(DeviceIndex device, void* address) {
  if (forked) {
    return;
  }
  c10::cuda::CUDAGuard guard(device);
  (void)cudaDeviceSynchronize(); // work that reads it may still be queued
  if (core->close_import(device, id_of(address)) != GLAKE_OK) {
    say_once("torch-ipc", "a shared tensor's memory stays mapped: " + last_error());
  }
}

} // namespace

torch_alloc::ShareableHandle Allocator::shareIpcHandle(void* address) {
  uint64_t id = id_of(address);
  if (core->owns(id) == 0) {
    return inner_->shareIpcHandle(address);
  }
  std::optional<Block> block = blocks_.find(id);
  if (!block) {
    throw_error("invalid device pointer: " + text_of(address));
  }
  if (block->exported) {
    return {block->exported->offset, block->exported->handle};
  }
  int32_t descriptors[MOST_HANDLES];
  uint64_t sizes[MOST_HANDLES];
  uint32_t count = 0;
  uint64_t offset = 0;
  glake_status status = core->export_block(block->device, id, descriptors, sizes, MOST_HANDLES, &count, &offset);
  if (status != GLAKE_OK && count > MOST_HANDLES) {
    throw_error(
        "GLake: this tensor lies on " + std::to_string(count) + " physical handles and at most " + std::to_string(MOST_HANDLES) +
        " are shared; allocate what you share in a torch.cuda.MemPool, or set allocator.handle_bytes higher");
  }
  if (status != GLAKE_OK) {
    throw_error("GLake: this tensor cannot be shared: " + last_error());
  }
  auto exported = std::make_shared<Export>();
  exported->descriptors.assign(descriptors, descriptors + count);
  exported->offset = static_cast<ptrdiff_t>(offset);
  Head head{};
  std::memcpy(head.magic, MAGIC, sizeof MAGIC);
  head.pid = getpid();
  head.serial = ++exports;
  head.address = id;
  head.count = count;
  put(exported->handle, head);
  for (uint32_t i = 0; i < count; ++i) {
    Part part{};
    part.size = sizes[i];
    part.descriptor = descriptors[i];
    put(exported->handle, part);
  }
  // Two threads may share one tensor at once: the second's descriptors close with its own copy.
  blocks_.change(id, [&](Block& kept) {
    if (kept.exported) {
      exported = kept.exported;
    } else {
      kept.exported = exported;
    }
  });
  return {exported->offset, exported->handle};
}

Export::~Export() {
  close_all(descriptors);
}

std::shared_ptr<void> Allocator::getIpcDevPtr(std::string handle) {
  if (handle.size() < sizeof MAGIC || std::memcmp(handle.data(), MAGIC, sizeof MAGIC) != 0) {
    return inner_->getIpcDevPtr(std::move(handle));
  }
  Head head{};
  size_t at = 0;
  bool whole = get(handle, at, head) && head.count > 0 && head.count <= MOST_HANDLES;
  std::vector<Part> parts(whole ? head.count : 0);
  for (Part& part : parts) {
    whole = whole && get(handle, at, part);
  }
  if (!whole || at != handle.size()) {
    throw_error("GLake: a handle of a shared tensor is damaged");
  }
  DeviceIndex index = current_device();
  Device* device = this->device(index);
  if (device == nullptr || !prepare(*device)) {
    throw_error("GLake: a shared tensor came, but GLake is off on GPU " + std::to_string(index));
  }
  std::lock_guard<std::mutex> lock(imports().mutex);
  std::weak_ptr<void>& known = imports().opened[handle];
  if (std::shared_ptr<void> opened = known.lock()) {
    return opened;
  }
  std::vector<int32_t> descriptors = fetch(head, parts);
  std::vector<uint64_t> sizes;
  for (const Part& part : parts) {
    sizes.push_back(part.size);
  }
  uint64_t address = 0;
  glake_status status = core->import_block(index, descriptors.data(), sizes.data(), head.count, &address);
  close_all(descriptors);
  if (status != GLAKE_OK) {
    throw_error("GLake: a shared tensor cannot be mapped: " + last_error());
  }
  std::shared_ptr<void> opened(address_of(address), [index](void* mapped) { close_import(index, mapped); });
  known = opened;
  return opened;
}

} // namespace glake
