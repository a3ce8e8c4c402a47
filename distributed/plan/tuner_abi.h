// SPDX-License-Identifier: Apache-2.0
// NCCL's tuner interface, version 5, as its loader expects it (NCCL 2.28 and later). Internal to plan/ and its tests.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {

using ncclTunerLog_v5 = void (*)(int level, unsigned long flags, const char* file, int line, const char* format, ...);

struct ncclTunerDomains_v5 {
  int count, smallest, largest;  // NVLink domains and the ranks in them
};

struct ncclTunerConstants_v5 {
  double base[7][3], hardware[3][7][3], ll_max[4][3], ring_ll128[4][3], tree_ll128[4][3], tree[4][3], nvls_tree[4][3];
};

struct ncclTuner_v5_t {
  const char* name;
  int (*init)(void** context, uint64_t communicator, size_t ranks, size_t nodes, ncclTunerLog_v5 log,
              ncclTunerDomains_v5* domains, ncclTunerConstants_v5* constants);
  int (*getCollInfo)(void* context, int function, size_t bytes, int operations, float** table, int algorithms,
                     int protocols, int registered, int* channels);
  int (*finalize)(void* context);
};

extern __attribute__((visibility("default"))) ncclTuner_v5_t ncclTunerPlugin_v5;
}
