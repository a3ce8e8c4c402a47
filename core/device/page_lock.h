// SPDX-License-Identifier: Apache-2.0
// Page-locking of memory that exists already.
#pragma once
#include <cstddef>
#include <memory>

namespace xylem {

// Copies between this memory and GPUs are asynchronous until what is returned goes, which must be before the memory
// does. Returns nothing without a GPU, and where the driver refuses, as it may for files on a disk: copies wait then.
std::shared_ptr<void> page_lock(void* data, size_t bytes);

}  // namespace xylem
