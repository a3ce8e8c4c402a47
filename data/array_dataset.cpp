// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "data/dataset.h"

namespace xylem {
namespace {

class ArrayDataset final : public Dataset {
 public:
  ArrayDataset(const Tensor& inputs, const Tensor& labels, int64_t classes)
      : inputs_(inputs.to(Device::cpu()).contiguous()), labels_(labels.to(Device::cpu()).to(i64).contiguous()) {
    XY_CHECK(inputs.rank() >= 1 && labels.rank() == 1 && inputs.size(0) == labels.size(0), "array dataset: inputs ",
             inputs.shape(), " and labels ", labels.shape(), " do not hold the same number of samples");
    for (int64_t i = 0; i < labels_.numel(); ++i) {
      int64_t label = labels_.data<int64_t>()[i];
      XY_CHECK(label >= 0 && label < classes, "label ", label, " of sample ", i, " is outside [0, ", classes, ")");
    }
    Shape sample = inputs_.shape();
    sample.erase(0);
    spec_ = {.input = sample, .input_dtype = inputs_.dtype(), .classes = classes};
    bytes_ = size_t(sample.numel()) * size_of(inputs_.dtype());
  }
  int64_t size() const override { return inputs_.size(0); }
  const RecordSpec& spec() const override { return spec_; }
  void read(int64_t id, void* input, int64_t* label) const override {
    std::memcpy(input, static_cast<const char*>(inputs_.raw()) + id * int64_t(bytes_), bytes_);
    *label = labels_.data<int64_t>()[id];
  }

 private:
  Tensor inputs_, labels_;
  RecordSpec spec_;
  size_t bytes_;
};

}  // namespace

std::shared_ptr<Dataset> array_dataset(const Tensor& inputs, const Tensor& labels, int64_t classes) {
  return std::make_shared<ArrayDataset>(inputs, labels, classes);
}

}  // namespace xylem
