// SPDX-License-Identifier: Apache-2.0
// Page-locking of memory that exists already.
#pragma once
#include <cstddef>
#include <memory>

namespace xylem {

// Copies between this memory and GPUs are asynchronous until what is returned goes, which must be before the memory
// does. Throws where the driver refuses. Without a GPU it does nothing and returns nothing.
std::shared_ptr<void> page_lock(void* data, size_t bytes);

}  // namespace xylem
