// A stand-in for GLake's core behind the same table: one arena, first fit, no remapping. It serves to test the adapter by itself.
#pragma once

#include "../../../glake-user/python/python/glake/adapter/glake_api.h"

const glake_api* plain_core();
// Bytes the stand-in may hold, as if the device had no more.
void plain_core_capacity(uint64_t bytes);
int plain_core_captures();
