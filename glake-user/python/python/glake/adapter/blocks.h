// The blocks the core handed to torch, by address.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <optional>

#include "torch.h"

namespace glake {

// The descriptors under which a block was offered to other processes; closed with the block.
struct Export {
  std::vector<int32_t> descriptors;
  std::string handle;
  ptrdiff_t offset = 0;
  ~Export();
};

struct Block {
  uint64_t stream = 0;
  uint64_t size = 0;      // rounded, as torch counts allocated_bytes
  uint64_t requested = 0; // as torch counts requested_bytes
  DeviceIndex device = 0;
  bool shared = false; // record_stream named another stream
  Context context;     // the stack of the allocation, while torch records history
  std::shared_ptr<Export> exported;

  // torch's line between its two pools, as the core draws it.
  bool is_small() const {
    return requested < (1u << 20);
  }
};

// One lock per shard: an allocation and a free each take one for some tens of nanoseconds.
class Blocks {
 public:
  void add(uint64_t address, Block block) {
    Shard& shard = shard_of(address);
    std::lock_guard<std::mutex> lock(shard.mutex);
    shard.blocks.insert_or_assign(address, std::move(block));
  }

  std::optional<Block> remove(uint64_t address) {
    Shard& shard = shard_of(address);
    std::lock_guard<std::mutex> lock(shard.mutex);
    auto found = shard.blocks.find(address);
    if (found == shard.blocks.end()) {
      return std::nullopt;
    }
    std::optional<Block> block(std::move(found->second));
    shard.blocks.erase(found);
    return block;
  }

  std::optional<Block> find(uint64_t address) {
    std::optional<Block> copy;
    change(address, [&](Block& block) { copy = block; });
    return copy;
  }

  // Calls `with` for the block under the shard's lock; false if there is none.
  template <typename With>
  bool change(uint64_t address, With with) {
    Shard& shard = shard_of(address);
    std::lock_guard<std::mutex> lock(shard.mutex);
    auto found = shard.blocks.find(address);
    if (found == shard.blocks.end()) {
      return false;
    }
    with(found->second);
    return true;
  }

 private:
  static constexpr size_t SHARDS = 64;

  struct alignas(64) Shard {
    std::mutex mutex;
    ska::flat_hash_map<uint64_t, Block> blocks;
  };

  // Addresses are multiples of 512: their low bits say nothing, and neighbours shall not meet in one shard.
  Shard& shard_of(uint64_t address) {
    return shards_[(address >> 9) * 0x9e3779b97f4a7c15ull >> 58];
  }

  std::array<Shard, SHARDS> shards_;
};

} // namespace glake
