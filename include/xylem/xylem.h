// SPDX-License-Identifier: Apache-2.0
// Everything a program needs: tensors, operations, layers, training.
#pragma once
#include "core/autograd/autograd.h"
#include "core/device/allocator.h"
#include "core/device/device.h"
#include "core/device/graph.h"
#include "core/tensor/tensor.h"
#include "core/util/check.h"
#include "core/util/rng.h"
#include "models/nn/layers.h"
#include "models/nn/module.h"
#include "models/nn/safetensors.h"
#include "models/nn/sequential.h"
#include "ops/ops.h"
