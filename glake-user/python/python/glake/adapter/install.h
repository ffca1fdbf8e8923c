/* What the adapter's library exports; found by name with dlsym. */
#pragma once

#include "glake_api.h"

extern "C" {

/* Puts the adapter in the place of torch's allocator. 0: done, or done before. Otherwise nothing changed, and `why` says why in one line.
 * Before or after torch initialised CUDA; not while other threads allocate. */
int glake_torch_install(const glake_api* api, char* why, size_t n);

/* New memory comes from torch's own allocator from now on. What GLake handed out stays valid and is taken back. For good. */
void glake_torch_retreat(const char* why);

/* New memory comes from torch's own allocator until this is called with 0, as often as with 1. */
void glake_torch_pause(int on);

/* 0 if an exception of torch's, with a number in its text, goes through this library as it should. Run in a process of its own after the
 * build: a compiler that brings another C++ library into this one makes it crash. */
int glake_torch_selftest(void);

/* The version of torch it was built for: major * 100 + minor. */
int glake_torch_version();
}
