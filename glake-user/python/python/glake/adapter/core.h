// The allocator core as the adapter sees it: the table of functions, and the little state every part needs.
#pragma once

#include <atomic>
#include <string>

#include "glake_api.h"

namespace glake {

// Set once, before anything else runs; the core lives as long as the process.
extern const glake_api* core;

// Forked from a process that had GLake's memory: CUDA does not work in such a child, and there the adapter touches nothing of GLake's.
extern std::atomic<bool> forked;

inline std::string last_error() {
  char text[1024] = "";
  core->last_error(text, sizeof text);
  return text;
}

inline void say_once(const char* key, const std::string& line) {
  core->say_once(key, line.c_str());
}

} // namespace glake
