// SPDX-License-Identifier: Apache-2.0
// JPEG and PNG files, and the resizing that makes a dataset of them. In a build without libjpeg and libpng reading and
// writing throw.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace xylem {

bool built_with_images();

struct Image {
  int64_t height = 0, width = 0, channels = 0;
  std::vector<uint8_t> pixels;  // [height, width, channels]
};

// channels: 3 (RGB) or 1 (grey); others are converted, transparency is blended onto black. With `at_least` a JPEG may
// be decoded at a half, quarter or eighth of its size, as long as no side gets shorter: much faster when it is shrunk
// anyway. Throws naming the file if it is missing, damaged, truncated or neither JPEG nor PNG.
Image read_image(const std::string& path, int64_t channels = 3, int64_t at_least = 0);
Image decode_image(const void* bytes, size_t size, const std::string& name, int64_t channels = 3, int64_t at_least = 0);
void write_image(const std::string& path, const Image& image);  // .png, .jpg or .jpeg

// Bilinear; when shrinking, the triangle is as wide as the step between source pixels, so that all of them count.
Image resize_image(const Image& image, int64_t height, int64_t width);
Image center_square(const Image& image);

}  // namespace xylem
