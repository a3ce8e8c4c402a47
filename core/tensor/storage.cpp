// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "core/device/allocator.h"
#include "core/tensor/tensor.h"

namespace xylem {

struct Storage::Handle {
  Allocator* from = nullptr;
  Block block;
  std::shared_ptr<void> owner;
  std::function<void()> bring;
};

Storage::Storage(size_t n, Device d, bool pinned) : bytes_(n), device_(d), handle_(std::make_unique<Handle>()) {
  if (n == 0) return;
  handle_->from = pinned ? &pinned_allocator() : &allocator(d);
  handle_->block = handle_->from->allocate(n, current_stream(d));
  data_ = handle_->block.data;
}
Storage::Storage(void* external, size_t n, Device d, std::shared_ptr<void> owner)
    : data_(external), bytes_(n), device_(d), handle_(std::make_unique<Handle>()) {
  handle_->owner = std::move(owner);
}
Storage::~Storage() {
  if (handle_->from) handle_->from->free(handle_->block);
}

std::shared_ptr<Storage> Storage::elastic(size_t bytes, Device device, std::function<void()> bring) {
  auto storage = std::make_shared<Storage>(nullptr, bytes, device, nullptr);
  storage->handle_->bring = std::move(bring);
  return storage;
}
void Storage::attach(std::shared_ptr<Storage> memory) {
  XY_ASSERT(handle_->bring && memory->bytes_ >= bytes_ && memory->device_ == device_,
            "attach() to an ordinary storage");
  data_ = memory->data_;
  handle_->owner = std::move(memory);
}
void Storage::let_go() {
  XY_ASSERT(handle_->bring, "let_go() of an ordinary storage");
  data_ = nullptr;
  handle_->owner.reset();
}
bool Storage::pinned() const { return handle_->from == &pinned_allocator(); }
void Storage::used_on(Stream stream) {
  if (pinned()) handle_->from->used_on(handle_->block, stream);
}
void* Storage::fetch() {
  if (handle_->bring && bytes_ > 0) {
    handle_->bring();
    XY_ASSERT(data_, "bring() attached no memory");
  }
  return data_;
}

}  // namespace xylem
